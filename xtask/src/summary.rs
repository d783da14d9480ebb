//! Counting tests: reads libtest's `test result:` lines as they stream by. Owns the counts; never
//! decides what runs. Called by the tiers.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::sh;

/// How many passed and failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl Counts {
    /// One check that passed or failed as a whole; a failure is shown.
    pub(crate) fn check(what: &str, outcome: Result<()>) -> Counts {
        match outcome {
            Ok(()) => {
                println!("check {what} ... ok");
                Counts { passed: 1, failed: 0 }
            }
            Err(error) => {
                println!("check {what} ... FAILED: {error:#}");
                Counts { passed: 0, failed: 1 }
            }
        }
    }

    /// The counts in one line of libtest's output, when it is a summary.
    pub(crate) fn of_line(line: &str) -> Option<Counts> {
        let (_, tail) = line.split_once("test result: ")?;
        let number = |word: &str| -> Option<u64> {
            tail.split(['.', ';']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
        };
        Some(Counts { passed: number("passed")?, failed: number("failed")? })
    }
}

/// Runs a test command, shows its output, counts. A command that fails without a failed test
/// (a build error, a crash) counts as one failure.
pub(crate) fn count(command: &mut Command) -> Result<Counts> {
    watch(command, &mut |_| {})
}

/// As [`count`], and hands each line to `see` too.
pub(crate) fn watch(command: &mut Command, see: &mut dyn FnMut(&str)) -> Result<Counts> {
    let shown = sh::show(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {shown}"))?;
    let mut counts = Counts::default();
    let stdout = child.stdout.take().context("no stdout")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.with_context(|| format!("read from {shown}"))?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        println!("{line}");
        see(line);
        if let Some(more) = Counts::of_line(line) {
            counts += more;
        }
    }
    let status = child.wait().with_context(|| format!("wait for {shown}"))?;
    if !status.success() && counts.failed == 0 {
        println!("{shown}: {status}, without a failed test");
        counts.failed = 1;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_libtest_summaries() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 12, failed: 3 }));
        let line = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 1, failed: 0 }));
        assert_eq!(Counts::of_line("test lifecycle::one ... ok"), None);
    }

    #[test]
    fn a_crash_is_a_failure() {
        let counts = count(&mut Command::new("false")).unwrap();
        assert_eq!(counts, Counts { passed: 0, failed: 1 });
    }
}
