//! How the demo looks: titles that say what comes, commands as one would type them, their output.
//! Owns the layout; decides nothing. Called by `tour`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use gantry_tests::node::Roots;
use gantry_tests::standalone::Standalone;

use crate::sh;

/// What comes next, and why one would look.
pub(super) fn title(what: &str, why: &str) {
    println!("\n=== {what}");
    println!("    {why}\n");
}

/// A file of the folder `demo`, shown.
pub(super) fn manifest(name: &str) -> Result<PathBuf> {
    let path = sh::root().join("demo").join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => println!("$ cat demo/{name}\n{text}"),
        Err(error) => bail!("read {}: {error}", path.display()),
    }
    Ok(path)
}

/// `gantry run` in the background.
pub(super) fn run(roots: Roots, name: &str) -> Result<Standalone> {
    let path = manifest(name)?;
    println!("$ gantry run demo/{name} &");
    Standalone::start_files(roots, &[path], &[])
}

/// A gantry command, shown with its output.
pub(super) fn gantry(run: &Standalone, command: &str, args: &[&str]) -> Result<String> {
    println!("$ gantry {}", [&[command], args].concat().join(" "));
    let text = run.gantry_ok(command, args)?;
    print!("{text}");
    Ok(text)
}

/// What a `gantry run` has printed, from both streams of its.
pub(super) fn said(run: &Standalone) {
    for line in run.stderr().lines().chain(run.stdout().lines()) {
        println!("  | {line}");
    }
}
