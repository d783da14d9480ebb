//! What of the kernel is tried at the runtime's start, by a program of one thread: what it needs changes the
//! process that tries it. Owns the answer's form. Called by `runtime`.

#![expect(clippy::disallowed_methods, reason = "runs our own monitor")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::node::Programs;

/// Whether pods may have users of their own here; the error says what is in the way.
pub(crate) fn user_namespaces(programs: &Programs, layers: &Path, scratch: &Path) -> Result<(), String> {
    let mut command = Command::new(programs.monitor_path());
    command.arg0("gantry-monitor").arg("--probe-user-namespaces").args([layers, scratch]);
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().map_err(|error| format!("run gantry-monitor: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().trim_start_matches("gantry-monitor: ");
    Err(if said.is_empty() { output.status.to_string() } else { said.to_owned() })
}
