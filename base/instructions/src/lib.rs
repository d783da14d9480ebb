//! Instructions that a piece of work takes, held against a number in the repository. callgrind counts them, so that no
//! load of the machine changes the figure. Owns the second run of the test, under valgrind; never the work. Called by
//! unit tests.

#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "for tests alone: they run programs"
)]

use std::path::Path;
use std::process::Command;

/// Set in the second run.
const COUNTED: &str = "GANTRY_INSTRUCTIONS_COUNTED";

/// Holds `work` to `measured` instructions and a tenth more. `test` is the caller's own name, as libtest shows it: the
/// program runs that test once more, under callgrind, and there the work is done and counted.
///
/// # Panics
/// When the work takes more, with the figure; when valgrind is missing, with the remedy; when nothing was counted.
pub fn hold(test: &str, measured: u64, mut work: impl FnMut()) {
    if std::env::var_os(COUNTED).is_some() {
        return gantry_counted_work(&mut work);
    }
    let took = count(test).unwrap_or_else(|why| panic!("count the instructions of {test}: {why}"));
    let most = measured + measured / 10;
    println!("{test}: {took} instructions, {measured} when they were measured, {most} at most");
    assert!(took > 0, "callgrind saw nothing of {test}: is that the test's name?");
    assert!(
        took <= most,
        "{test} takes {took} instructions, {most} at most: profile it, or raise the number and say why"
    );
}

/// callgrind counts while this function runs.
#[inline(never)]
fn gantry_counted_work(work: &mut dyn FnMut()) {
    work();
}

fn count(test: &str) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    let folder = tempfile::tempdir().map_err(|error| format!("make a folder: {error}"))?;
    let file = folder.path().join("callgrind.out");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--toggle-collect=*gantry_counted_work*"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(own)
        .args(["--exact", test, "--test-threads=1"])
        .env(COUNTED, "1")
        .output()
        .map_err(|error| {
            format!("start valgrind: {error}: `cargo xtask test` installs it, or apt-get install valgrind")
        })?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        return Err(format!("the test failed under valgrind: {}", String::from_utf8_lossy(&text)));
    }
    total(&file)
}

/// The sum of all that was counted (Callgrind Format Specification, `totals`).
fn total(file: &Path) -> Result<u64, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("read {}: {error}", file.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let line = line.ok_or_else(|| format!("{} has no totals", file.display()))?;
    line.trim().parse().map_err(|error| format!("totals {line:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    fn add(times: u64) {
        for number in 0..times {
            black_box(black_box(number) + 1);
        }
    }

    #[test]
    fn ten_times_the_work_is_ten_times_the_instructions() {
        let few = "tests::few_instructions_are_counted";
        let many = "tests::many_instructions_are_counted";
        let [few, many] = [few, many].map(|test| count(test).unwrap());
        assert!(few * 9 < many && many < few * 11, "{few} and {many}");
    }

    #[test]
    fn few_instructions_are_counted() {
        hold("tests::few_instructions_are_counted", 100_000, || add(1000));
    }

    #[test]
    fn many_instructions_are_counted() {
        hold("tests::many_instructions_are_counted", 1_000_000, || add(10_000));
    }

    #[test]
    #[should_panic(expected = "at most: profile it")]
    fn more_than_a_tenth_more_is_a_failure() {
        hold("tests::few_instructions_are_counted", 1000, || add(1000));
    }
}
