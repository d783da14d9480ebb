//! How slow this machine is right now, beside the one that the tests' waits were written on. Owns the
//! work and its usual time. Called once by the leak check around each test binary, on the host and in
//! the VM.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::MOST;

/// Some processes and some counting: what starting pods is made of.
const WORK: &str =
    "i=0; while [ $i -lt 40000 ]; do i=$((i + 1)); done; for j in 1 2 3 4 5 6 7 8; do /bin/sh -c true; done";

/// What [`WORK`] takes at most on two idle cores of 2026: 38 ms were measured.
const USUAL: Duration = Duration::from_millis(60);

/// By what the bounds of waits are multiplied: 1 on a machine that is as fast as usual.
pub(crate) fn factor() -> Result<f64> {
    let start = Instant::now();
    let status =
        Command::new("/bin/sh").args(["-c", WORK]).stdin(Stdio::null()).status().context("start /bin/sh")?;
    ensure!(status.success(), "/bin/sh: {status}");
    Ok((start.elapsed().as_secs_f64() / USUAL.as_secs_f64()).clamp(1.0, MOST))
}
