//! `cargo xtask` begins here. Owns the look at what a task needs, before anything else is built, and
//! the installation of what is missing; then the real `xtask` is built and takes its place. Never
//! installs without saying so. Called by cargo's alias.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod check;
mod install;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use gantry_needs::{exists, missing, path, uses};

/// What the command line says, as far as it matters here.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommandLine {
    task: String,
    tiers: Vec<String>,
    full: bool,
    no_install: bool,
    check: bool,
    help: bool,
}

impl CommandLine {
    fn read(words: &[String]) -> CommandLine {
        let mut asked =
            CommandLine { task: words.first().cloned().unwrap_or_default(), ..CommandLine::default() };
        let mut words = words.iter().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--tier" => asked.tiers.extend(words.next().cloned()),
                "--full" => asked.full = true,
                "--no-install" => asked.no_install = true,
                "--check" => asked.check = true,
                "--help" | "-h" => asked.help = true,
                word => asked.tiers.extend(word.strip_prefix("--tier=").map(str::to_owned)),
            }
        }
        asked
    }

    /// Tests that make namespaces want root; the demo asks for it by itself once it is built.
    fn wants_root(&self) -> bool {
        let unprivileged = |tier: &String| tier == "static" || tier == "unit";
        matches!(self.task.as_str(), "vagrant-box" | "kind")
            || self.task == "test"
                && (self.tiers.is_empty() || self.full || !self.tiers.iter().all(unprivileged))
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let text: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    match start(&CommandLine::read(&text), &words) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Looks, installs, and hands over.
fn start(asked: &CommandLine, words: &[OsString]) -> Result<ExitCode, String> {
    if asked.help {
        return Err(format!("start cargo: {}", xtask(words).exec()));
    }
    if asked.wants_root() && !install::is_root()? {
        println!("these tests make namespaces, mounts and cgroups: running them as root by sudo");
        return Err(format!("start sudo: {}", as_root(words).exec()));
    }
    let uses = uses(&asked.task, &asked.tiers, asked.full);
    if !uses.is_empty() {
        if !exists("go") {
            return Err(
                "Go is not installed: unpack Go 1.26 or newer from https://go.dev/dl into /usr/local"
                    .to_owned(),
            );
        }
        let needs = missing(&uses, exists);
        if !needs.is_empty() {
            install::packages(&needs, asked.no_install)?;
        }
    }
    if asked.check {
        return check::started(&uses);
    }
    if asked.task == "test" && !asked.no_install {
        install::caches(&asked.tiers)?;
    }
    Err(format!("start cargo: {}", xtask(words).exec()))
}

/// The real program: cargo builds and runs it. On a terminal cargo shows how far it is.
fn xtask(words: &[OsString]) -> Command {
    let mut command = Command::new(cargo());
    command.arg("run").env("PATH", path());
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    command.args(["--package", "xtask", "--"]).args(words);
    command
}

/// The same command line as root: with this user's toolchain, and a target folder that is not this
/// user's, in which root's files would be in the way later.
fn as_root(words: &[OsString]) -> Command {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let rustup = std::env::var_os("RUSTUP_HOME").map_or_else(|| home.join(".rustup"), PathBuf::from);
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "/var/cache/gantry/target".into());
    let mut command = Command::new("sudo");
    command.args(["--", "env"]);
    for (name, value) in
        [("PATH", path()), ("RUSTUP_HOME", rustup.into_os_string()), ("CARGO_TARGET_DIR", target)]
    {
        let mut pair = OsString::from(format!("{name}="));
        pair.push(value);
        command.arg(pair);
    }
    for name in ["RUSTUP_TOOLCHAIN", "GANTRY_CACHE", "CARGO_INCREMENTAL"] {
        if let Some(value) = std::env::var_os(name) {
            let mut pair = OsString::from(format!("{name}="));
            pair.push(value);
            command.arg(pair);
        }
    }
    command.arg(cargo()).arg("xtask").args(words);
    command
}

fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> CommandLine {
        CommandLine::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn reads_what_matters_before_a_build() {
        let asked = read("test --tier unit --tier=kernel --full --no-install");
        assert_eq!(asked.tiers, ["unit", "kernel"]);
        assert!(asked.full && asked.no_install && asked.wants_root());
        assert!(!read("test --tier unit --filter x").wants_root());
        assert!(read("test").wants_root() && !read("demo --check").wants_root());
        assert!(read("demo --check").check);
    }

    #[test]
    fn root_gets_the_users_toolchain() {
        let command = as_root(&["test".into()]);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(words[..2], ["--", "env"]);
        assert!(words.iter().any(|word| word.starts_with("RUSTUP_HOME=")));
        assert_eq!(words[words.len() - 2..], ["xtask", "test"]);
    }
}
