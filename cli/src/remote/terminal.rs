//! This process's terminal while a remote one is shown on it: raw, and back to what it was whatever
//! happens. Owns the mode. Called by `remote::command`.

use std::io::{IsTerminal, stdin};

use anyhow::{Context, Result};
use gantry_shim::streaming::Size;
use rustix::termios::{OptionalActions, Termios};

/// Raw mode as long as this lives.
#[derive(Debug)]
pub(super) struct Raw {
    before: Termios,
}

impl Raw {
    /// Makes stdin raw: keys go to the other side as they are, Ctrl-C too, and those that were typed
    /// before it.
    ///
    /// # Errors
    /// When the terminal refuses.
    pub(super) fn enter() -> Result<Self> {
        let before = rustix::termios::tcgetattr(stdin()).context("read the terminal's mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(stdin(), OptionalActions::Now, &raw).context("make the terminal raw")?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone has no mode. At once: one that was stopped never drains.
        let _ = rustix::termios::tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// Whether stdin is a terminal.
pub(crate) fn is_there() -> bool {
    stdin().is_terminal()
}

/// Its size now; None when it has none.
pub(super) fn size() -> Option<Size> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout())
        .or_else(|_| rustix::termios::tcgetwinsize(stdin()))
        .ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some(Size { width: size.ws_col, height: size.ws_row })
}
