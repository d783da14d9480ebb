//! Colours of words in tables. Owns which word has which, and whether this terminal gets any; never a word itself.
//! Called by ps and doctor.

use std::io::{IsTerminal, stdout};

/// What is said with a colour; the words say it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    /// It does not go on by itself.
    Red,
    /// It is under way, or less than it could be.
    Yellow,
    /// It is over.
    Dim,
}

impl Colour {
    /// Of a pod's status, as `gantry ps` shows it.
    pub(crate) fn of_status(status: &str) -> Option<Self> {
        let bare = status.strip_prefix("Init:").unwrap_or(status);
        let is_bad =
            ["BackOff", "Error", "Killed", "Failed", "Evicted", "InvalidImageName", "ContainerCannotRun"]
                .iter()
                .any(|word| bare.ends_with(word))
                || ["Err", "OutOf", "ExitCode:", "Signal:"].iter().any(|word| bare.starts_with(word));
        match bare {
            "Running" => None,
            "Completed" | "Succeeded" => Some(Self::Dim),
            _ if is_bad => Some(Self::Red),
            _ => Some(Self::Yellow),
        }
    }

    /// The text in this colour, and what follows as before (ECMA-48).
    pub(crate) fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Red => 31,
            Self::Yellow => 33,
            Self::Dim => 2,
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Whether stdout is a terminal that wants colours (no-color.org).
pub(crate) fn wanted() -> bool {
    stdout().is_terminal() && !crate::no_color() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_stays_wrong_is_red() {
        for status in
            ["CrashLoopBackOff", "Init:ErrImagePull", "Error", "OOMKilled", "Init:Error", "StartError"]
        {
            assert_eq!(Colour::of_status(status), Some(Colour::Red), "{status}");
        }
        for status in ["ContainerCreating", "Pending", "Init:0/1", "Terminating", "PodInitializing"] {
            assert_eq!(Colour::of_status(status), Some(Colour::Yellow), "{status}");
        }
        assert_eq!(Colour::of_status("Running"), None);
        assert_eq!(Colour::of_status("Completed"), Some(Colour::Dim));
        assert_eq!(Colour::Red.paint("no"), "\u{1b}[31mno\u{1b}[0m");
    }
}
