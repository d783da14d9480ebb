//! Tests that find that this machine lacks what they look at. Owns the line by which `cargo xtask test`
//! counts them as not run instead of passed; decides nothing. Called by such tests.

use std::io::Write;
use std::panic::Location;

/// What the line begins with.
pub const NOT_RUN: &str = "not run: ";

/// Says that the caller did not run, and why. It goes past libtest's capture, which keeps what a
/// passing test prints.
#[track_caller]
pub fn not_run(why: &str) {
    let at = Location::caller();
    let line = format!("{NOT_RUN}{}:{}: {why}\n", at.file(), at.line());
    // Who reads it may be gone; then nobody counts either.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}
