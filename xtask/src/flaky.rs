//! A test that failed is run again alone, once, when its tier has ended. Owns the rule: which outcome
//! is green, and how it is told; how a single test is run is the tier's. Called by the tiers.

use anyhow::Result;

use crate::summary::Counts;

/// More tests than these that fail first and pass alone fail the tier all the same.
const MOST: usize = 3;

/// Runs each failed test again by `again`, which is given its name. A failure without a test's name
/// (a build error, a crash, a leak) stays one.
pub(crate) fn settle(mut counts: Counts, again: &mut dyn FnMut(&str) -> Result<Counts>) -> Counts {
    let named = counts.failures.len();
    if named == 0 || u64::try_from(named).is_ok_and(|named| named < counts.failed) {
        return counts;
    }
    if named > MOST {
        println!("{named} tests failed, more than {MOST}: none is run again");
        return counts;
    }
    for failure in counts.failures.clone() {
        println!("--- again, alone: {}", failure.name);
        let passes = match again(&failure.name) {
            Ok(counts) => counts.failed == 0 && counts.passed > 0,
            Err(error) => {
                println!("{error:#}");
                false
            }
        };
        if passes {
            counts.failed -= 1;
            counts.passed += 1;
            counts.flaky.push(format!("flaky: {}: {}", failure.name, failure.words()));
        }
    }
    if counts.failed == 0 {
        counts.first = None;
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::summary;

    /// Libtest's output for one test, which fails as often as `file` has lines; each run takes one.
    fn harness(file: &Path) -> Result<Counts> {
        let script = r#"
            if [ -s "$0" ]; then
              sed -i 1d "$0"
              printf '%s\n' 'test a::b ... FAILED' '' 'failures:' '' '---- a::b stdout ----' 'Error: no rain' '' \
                'failures:' '    a::b' '' 'test result: FAILED. 4 passed; 1 failed; 0 ignored'
              exit 101
            fi
            echo 'test result: ok. 1 passed; 0 failed; 0 ignored'
        "#;
        summary::count(Command::new("sh").args(["-c", script]).arg(file))
    }

    fn after_failures(times: usize) -> Counts {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("failures");
        std::fs::write(&file, "once\n".repeat(times)).unwrap();
        let first = harness(&file).unwrap();
        settle(first, &mut |name| {
            assert_eq!(name, "a::b");
            harness(&file)
        })
    }

    #[test]
    fn a_test_that_fails_once_and_passes_alone_is_told_and_passes() {
        let counts = after_failures(1);
        assert_eq!((counts.passed, counts.failed), (5, 0));
        assert_eq!(counts.flaky, ["flaky: a::b: Error: no rain"]);
        assert_eq!(counts.first, None);
    }

    #[test]
    fn a_test_that_fails_twice_fails() {
        let counts = after_failures(2);
        assert_eq!((counts.passed, counts.failed), (4, 1));
        assert_eq!(counts.flaky, [""; 0]);
        assert_eq!(counts.first.as_deref(), Some("a::b\nError: no rain"));
    }

    #[test]
    fn a_leak_beside_a_failed_test_is_a_failure_of_its_own() {
        let script = "printf '%s\\n' '---- a::b stdout ----' 'Error: no rain' 'failures:' '    a::b' \
            'test result: FAILED. 4 passed; 1 failed; 0 ignored' 'leakcheck: a mount was left behind'; exit 1";
        let first = summary::count(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!((first.passed, first.failed), (4, 2));
        let mut never = |name: &str| -> Result<Counts> { panic!("{name} ran again") };
        assert_eq!(settle(first, &mut never).failed, 2);
    }

    #[test]
    fn four_tests_or_a_crash_are_not_run_again() {
        let failure = |name: &str| summary::FailedTest { name: name.to_owned(), said: Vec::new() };
        let four =
            Counts { failed: 4, failures: ["a", "b", "c", "d"].map(failure).to_vec(), ..Counts::default() };
        let mut never = |name: &str| -> Result<Counts> { panic!("{name} ran again") };
        assert_eq!(settle(four.clone(), &mut never), four);
        let crash = Counts { failed: 2, failures: vec![failure("a")], ..Counts::default() };
        assert_eq!(settle(crash.clone(), &mut never), crash);
        let mut none = |_: &str| Ok(Counts::default());
        let one = Counts { failed: 1, failures: vec![failure("a")], ..Counts::default() };
        assert_eq!(settle(one, &mut none).failed, 1, "a test that is not found did not pass");
    }
}
