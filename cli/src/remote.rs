//! The far end of exec, attach and port-forward: what a URL of a CRI runtime leads to, on this terminal.
//! Owns the connection and the terminal's mode; never asks for the URL. Called by `gantry exec`,
//! `attach`, `cp` and `port-forward`.

mod command;
mod connect;
mod forward;
mod terminal;

pub(crate) use command::{Pipes, Streams, run, run_piped};
pub(crate) use forward::port_forward;
pub(crate) use terminal::is_there as on_terminal;
