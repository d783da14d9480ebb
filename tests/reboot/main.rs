//! A real reboot: one half of these tests leaves pods behind, the machine goes down, hard or
//! cleanly, and the other half looks at what the disk still has. Owns what is handed from one to
//! the other. Runs in the small VM alone, with a disk at /var, half by half, as part of `cargo xtask
//! test --tier vm`.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

mod after;
mod agent;
mod before;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use gantry_tests::node::Roots;
use gantry_tests::place;
use serde::{Deserialize, Serialize};

/// A node of these tests: what tells it from the other one.
#[derive(Debug, Clone, Copy)]
enum Which {
    /// Pods by CRI alone.
    Cri,
    /// Pods of an agent.
    Agent,
}

impl Which {
    fn number(self) -> u8 {
        match self {
            Which::Cri => 0,
            Which::Agent => 1,
        }
    }

    /// Where on the disk its things are.
    fn folder(self) -> PathBuf {
        PathBuf::from(format!("/var/gantry-reboot{}", self.number()))
    }

    fn roots(self) -> Result<Roots> {
        ensure!(
            Path::new(place::VM_MARK).exists(),
            "only the small VM is rebooted: `cargo xtask test --tier vm`"
        );
        // Not on the disk.
        let run = PathBuf::from(format!("/run/gantry-reboot{}", self.number()));
        Roots::kept(&self.folder(), &run, self.number())
    }

    /// Where the first half writes what the other one needs to know.
    fn handed_over(self) -> PathBuf {
        self.folder().join("made.json")
    }
}

/// What the first half made and a reboot must not lose.
#[derive(Debug, Serialize, Deserialize)]
struct RuntimeBefore {
    /// Pulled, and known to be on disk.
    image: String,
    /// How many layers it has.
    layers: usize,
    /// A reference that is pulled right before the end, with one layer more: there or not.
    late: String,
    sandboxes: Vec<String>,
    containers: Vec<Container>,
    /// A layer's folder that no index knows.
    stray: PathBuf,
}

/// A container and how it ended; none where it ran on.
#[derive(Debug, Serialize, Deserialize)]
struct Container {
    id: String,
    exit_code: Option<i32>,
}
