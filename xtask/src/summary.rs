//! Counting tests: reads libtest's `test result:` lines as they stream by, and what the first failed
//! test said. Owns the counts; never decides what runs. Called by the tiers.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::sh;

/// Lines of a failed test that are kept.
const KEPT: usize = 12;

/// How many passed and failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// What the first that failed said.
    pub(crate) first: Option<String>,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.first = self.first.take().or(other.first);
    }
}

impl Counts {
    /// One check that passed or failed as a whole; a failure is shown.
    pub(crate) fn check(what: &str, outcome: Result<()>) -> Counts {
        match outcome {
            Ok(()) => {
                println!("check {what} ... ok");
                Counts { passed: 1, ..Counts::default() }
            }
            Err(error) => {
                println!("check {what} ... FAILED: {error:#}");
                Counts::failure(format!("{what}: {error:#}"))
            }
        }
    }

    /// One that failed.
    pub(crate) fn failure(what: String) -> Counts {
        Counts { passed: 0, failed: 1, first: Some(what) }
    }

    /// The counts in one line of libtest's output, when it is a summary.
    pub(crate) fn of_line(line: &str) -> Option<Counts> {
        let (_, tail) = line.split_once("test result: ")?;
        let number = |word: &str| -> Option<u64> {
            tail.split(['.', ';']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
        };
        Some(Counts { passed: number("passed")?, failed: number("failed")?, first: None })
    }
}

/// The first failed test's name and the beginning of its output, from libtest's lines.
#[derive(Debug, Default)]
struct FirstFailure {
    lines: Vec<String>,
    ended: bool,
}

impl FirstFailure {
    /// `---- NAME stdout ----`, its output, then the next one's or `failures:` and the names.
    fn read(&mut self, line: &str) {
        let named = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        match named {
            Some(name) if self.lines.is_empty() => self.lines.push(name.to_owned()),
            None if self.lines.is_empty() => {}
            _ if named.is_some() || line == "failures:" => self.ended = true,
            _ if !self.ended && self.lines.len() < KEPT && !line.is_empty() => {
                self.lines.push(line.to_owned());
            }
            _ => {}
        }
    }

    fn text(self) -> Option<String> {
        (!self.lines.is_empty()).then(|| self.lines.join("\n"))
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
    let (mut counts, mut first) = (Counts::default(), FirstFailure::default());
    let mut last = String::new();
    let stdout = child.stdout.take().context("no stdout")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.with_context(|| format!("read from {shown}"))?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        println!("{line}");
        see(line);
        first.read(line);
        if let Some(more) = Counts::of_line(line) {
            counts += more;
        }
        if !line.is_empty() {
            line.clone_into(&mut last);
        }
    }
    counts.first = first.text();
    let status = child.wait().with_context(|| format!("wait for {shown}"))?;
    if !status.success() && counts.failed == 0 {
        println!("{shown}: {status}, without a failed test");
        counts += Counts::failure(format!("{shown}: {status}, without a failed test; it ended with: {last}"));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_libtest_summaries() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 12, failed: 3, first: None }));
        let line = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 1, failed: 0, first: None }));
        assert_eq!(Counts::of_line("test lifecycle::one ... ok"), None);
    }

    #[test]
    fn a_crash_is_a_failure() {
        let counts = count(&mut Command::new("false")).unwrap();
        assert_eq!((counts.passed, counts.failed), (0, 1));
        let first = counts.first.unwrap();
        assert!(first.starts_with("false: exit status: 1, without a failed test"), "{first}");
    }

    #[test]
    fn keeps_what_the_first_failed_test_said() {
        let text = "test a::b ... FAILED\ntest c ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n\
                    Error: no rain\n\n---- c stdout ----\nError: no sun\n\nfailures:\n    a::b\n    c\n\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        let counts = count(Command::new("printf").arg("%s\n").arg(text)).unwrap();
        let first = Some("a::b\nError: no rain".to_owned());
        assert_eq!(counts, Counts { passed: 3, failed: 2, first: first.clone() });
        let mut total = Counts { passed: 1, ..Counts::default() };
        total += counts;
        total += Counts::failure("a later one".to_owned());
        assert_eq!((total.failed, total.first), (3, first));
    }
}
