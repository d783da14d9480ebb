//! The far end of exec, attach and port-forward: what a URL of a CRI runtime leads to, on this terminal.
//! Owns the connection and the terminal's mode; never asks for the URL. Called by `gantry exec`,
//! `attach` and `port-forward`.

mod command;
mod connect;
mod forward;
mod terminal;

pub(crate) use command::{Streams, run};
pub(crate) use forward::port_forward;

/// Runs what an Exec URL leads to on this process's own streams, and returns the command's exit code.
///
/// # Errors
/// When the URL can't be reached, or the command never ran.
pub(crate) async fn exec(url: &str, streams: Streams) -> anyhow::Result<i32> {
    command::run(url, streams).await
}
