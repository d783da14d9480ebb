//! Counting tests: reads libtest's `test result:` lines as they stream by, and what the first failed
//! test said. Owns the counts; never decides what runs. Called by the tiers.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{leakcheck, sh};

/// Lines of a failed test that are kept.
const KEPT: usize = 12;

/// How many passed and failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Of those that passed: they run in another tier, too, on another machine.
    pub(crate) repeated: u64,
    /// Tests that say that this machine lacks what they look at.
    pub(crate) not_run: Vec<String>,
    /// What the first that failed said.
    pub(crate) first: Option<String>,
    /// The tests that failed, as far as they have names.
    pub(crate) failures: Vec<FailedTest>,
    /// A line for each that failed and then passed alone.
    pub(crate) flaky: Vec<String>,
}

/// A failed test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedTest {
    pub(crate) name: String,
    /// The first lines of its output.
    pub(crate) said: Vec<String>,
}

impl FailedTest {
    /// The first words of what it said.
    pub(crate) fn words(&self) -> String {
        let line = self.said.first().map_or("it said nothing", String::as_str);
        line.chars().take(160).collect()
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.repeated += other.repeated;
        self.not_run.extend(other.not_run);
        self.first = self.first.take().or(other.first);
        self.failures.extend(other.failures);
        self.flaky.extend(other.flaky);
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
        Counts { failed: 1, first: Some(what), ..Counts::default() }
    }

    /// The counts in one line of libtest's output, when it is a summary.
    pub(crate) fn of_line(line: &str) -> Option<Counts> {
        let (_, tail) = line.split_once("test result: ")?;
        let number = |word: &str| -> Option<u64> {
            tail.split(['.', ';']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok())
        };
        Some(Counts { passed: number("passed")?, failed: number("failed")?, ..Counts::default() })
    }

    /// A line that a test wrote past libtest's capture: `not run: NAME: why`. Libtest counts it as passed.
    fn read_not_run(&mut self, line: &str) {
        // What libtest has written of the test's line stands before it.
        if let Some((_, what)) = line.split_once(gantry_tests::NOT_RUN) {
            self.not_run.push(what.to_owned());
        }
    }
}

/// The failed tests' names and the beginning of their output, from libtest's lines.
#[derive(Debug, Default)]
struct Failures {
    found: Vec<FailedTest>,
    /// Whether the lines that come are a test's output.
    within: bool,
}

impl Failures {
    /// `---- NAME stdout ----`, its output, then the next one's or `failures:` and the names.
    fn read(&mut self, line: &str) {
        let named = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        match (named, self.found.last_mut()) {
            (Some(name), _) => {
                self.found.push(FailedTest { name: name.to_owned(), said: Vec::new() });
                self.within = true;
            }
            _ if line == "failures:" => self.within = false,
            (None, Some(last)) if self.within && last.said.len() < KEPT && !line.is_empty() => {
                last.said.push(line.to_owned());
            }
            _ => {}
        }
    }

    /// The first one's name and what it said.
    fn first(&self) -> Option<String> {
        let first = self.found.first()?;
        Some([std::slice::from_ref(&first.name), &first.said].concat().join("\n"))
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
    let (mut counts, mut failures) = (Counts::default(), Failures::default());
    let mut leaks = Counts::default();
    let mut last = String::new();
    let stdout = child.stdout.take().context("no stdout")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.with_context(|| format!("read from {shown}"))?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        println!("{line}");
        see(line);
        failures.read(line);
        counts.read_not_run(line);
        if let Some(left) = leakcheck::left(line) {
            leaks += Counts::failure(format!("leakcheck: {left}"));
        }
        if let Some(more) = Counts::of_line(line) {
            counts += more;
        }
        if !line.is_empty() {
            line.clone_into(&mut last);
        }
    }
    counts.first = failures.first();
    counts.failures = failures.found;
    counts.passed = counts.passed.saturating_sub(counts.not_run.len() as u64);
    // No run of a failed test alone takes it away.
    counts += leaks;
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
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 12, failed: 3, ..Counts::default() }));
        let line = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(Counts::of_line(line), Some(Counts { passed: 1, ..Counts::default() }));
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
    fn a_test_that_could_not_run_is_not_counted_as_passed() {
        let text =
            "test a::b ... not run: a::b: Linux 6.1\nok\ntest result: ok. 3 passed; 0 failed; 0 ignored";
        let counts = count(Command::new("printf").arg("%s\n").arg(text)).unwrap();
        assert_eq!((counts.passed, counts.failed), (2, 0));
        assert_eq!(counts.not_run, ["a::b: Linux 6.1"]);
    }

    #[test]
    fn keeps_what_the_first_failed_test_said() {
        let text = "test a::b ... FAILED\ntest c ... FAILED\n\nfailures:\n\n---- a::b stdout ----\n\
                    Error: no rain\n\n---- c stdout ----\nError: no sun\n\nfailures:\n    a::b\n    c\n\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        let counts = count(Command::new("printf").arg("%s\n").arg(text)).unwrap();
        let first = Some("a::b\nError: no rain".to_owned());
        assert_eq!((counts.passed, counts.failed, &counts.first), (3, 2, &first));
        let failures: Vec<_> =
            counts.failures.iter().map(|failure| (&*failure.name, failure.words())).collect();
        assert_eq!(failures, [("a::b", "Error: no rain".to_owned()), ("c", "Error: no sun".to_owned())]);
        let mut total = Counts { passed: 1, ..Counts::default() };
        total += counts;
        total += Counts::failure("a later one".to_owned());
        assert_eq!((total.failed, total.first), (3, first));
    }
}
