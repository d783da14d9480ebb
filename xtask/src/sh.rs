//! Running programs: with a clear error when one is missing or fails. Owns the wording and the
//! folders of the repository; decides nothing. Called by every task.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The repository: asked at run time, since checkouts that share a target folder share binaries.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let parent = manifest.as_deref().and_then(Path::parent);
    parent.map_or_else(|| std::env::current_dir().unwrap_or_default(), Path::to_path_buf)
}

/// Cargo's target folder: CARGO_TARGET_DIR, else `target` in the repository.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => std::env::current_dir().unwrap_or_default().join(dir),
        None => root().join("target"),
    }
}

/// What outlives a checkout: tools, the VM's kernel. GANTRY_CACHE, else /var/cache/gantry.
pub(crate) fn cache_dir() -> PathBuf {
    std::env::var_os("GANTRY_CACHE").map_or_else(|| PathBuf::from("/var/cache/gantry"), PathBuf::from)
}

/// Ticks of a second in /proc, on every architecture that this project runs on.
const USER_HZ: u64 = 100;

/// CPU time of the programs that were started and have ended, and of theirs; proc_pid_stat(5), fields 16 and 17.
pub(crate) fn cpu_of_children() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    // The second field may hold spaces, and ends with the last bracket.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 =
        fields.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 1000 / USER_HZ))
}

/// What `cargo test` builds, always: cargo unifies the features of what it is asked for, so that another choice of packages
/// is another build of nearly all of them. With the features, since they add tests and take none away.
pub(crate) const SELECTION: [&str; 5] =
    ["--workspace", "--exclude", "xtask", "--features", "gantry-agent/containerd,gantry/failpoints"];

/// A cargo call in the repository.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root()).env("CARGO_TARGET_DIR", target_dir());
    command
}

/// A call of `go` in a folder of the repository. Go keeps its caches where it does by itself, or
/// where GOCACHE and GOMODCACHE say.
pub(crate) fn go(folder: &str, args: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.args(args).current_dir(root().join(folder)).env("CGO_ENABLED", "0");
    command
}

/// Runs a command to its end, its output on this terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.stdin(Stdio::null()).status().with_context(|| missing(command))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs a command to its end and returns its stdout; stderr goes to this terminal.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let shown = show(command);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().with_context(|| missing(command))?;
    if !output.status.success() {
        bail!("{shown}: {}", output.status);
    }
    Ok(output.stdout)
}

/// The command line as one would type it, without its environment.
pub(crate) fn show(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    words.join(" ")
}

/// The error that a program is missing, with how it is installed.
pub(crate) fn missing(command: &Command) -> String {
    gantry_needs::remedy(&command.get_program().to_string_lossy())
}

/// Root, or an error that says so.
pub(crate) fn require_root(what: &str) -> Result<()> {
    if !is_root()? {
        bail!("{what} makes namespaces, mounts and cgroups: run it as root (sudo -E)");
    }
    Ok(())
}

/// Whether this process is root's.
pub(crate) fn is_root() -> Result<bool> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .and_then(|ids| ids.split_whitespace().nth(1));
    Ok(effective == Some("0"))
}

/// As one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_one_word_of_the_shell_there() {
        let script = "printf '%s\\n' \"$HOME\"; echo it''s";
        let output =
            Command::new("sh").args(["-c", &format!("printf %s {}", quoted(script))]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), script);
    }
}
