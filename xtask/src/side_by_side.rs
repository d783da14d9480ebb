//! Two jobs at a time: tests run one after the other and wait half of their time, so two places of their own keep two
//! cores busy. Owns how a test binary is cut into jobs, and their turns; a place is the caller's. Called by the tiers that
//! need root, and by `vm`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};
use gantry_tests::place;

use crate::summary::Counts;

/// Work of one place.
pub(crate) type Job<'a> = Box<dyn FnOnce() -> Result<Counts> + Send + 'a>;

/// Two threads take one job after the other.
pub(crate) fn run(jobs: Vec<Job<'_>>) -> Result<Counts> {
    let queue = Mutex::new(jobs.into_iter());
    let work = || -> Result<Counts> {
        let mut counts = Counts::default();
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            match next {
                Some(job) => counts += job()?,
                None => return Ok(counts),
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut counts = work()?;
        counts += other.join().map_err(|_| anyhow!("the second thread of jobs died"))??;
        Ok(counts)
    })
}

/// The modules of a test binary in groups of about as many tests: more groups than jobs that run at once, since the same
/// number takes one of them twice as long as another. `first` is how many tests more the first group has already.
///
/// # Errors
/// When the binary does not list its tests.
pub(crate) fn groups(binary: &Path, programs: &Path, first: usize) -> Result<Vec<Vec<String>>> {
    let mut list = Command::new(binary);
    let list = list.args(["--list", "--format", "terse"]).env(place::BIN_DIR, programs).output();
    let list = list.with_context(|| format!("start {}", binary.display()))?;
    ensure!(list.status.success(), "{} --list: {}", binary.display(), list.status);
    Ok(divide(&String::from_utf8_lossy(&list.stdout), first))
}

/// Of the list as libtest prints it.
fn divide(list: &str, first: usize) -> Vec<Vec<String>> {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        // Some are in no module.
        let part = test.split_once("::").map_or(test.to_owned(), |(module, _)| format!("{module}::"));
        *sizes.entry(part).or_default() += 1;
    }
    let mut order: Vec<(String, usize)> = sizes.into_iter().collect();
    order.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    let mut groups = vec![Vec::new(); 4];
    let mut loads = [first, 0, 0, 0];
    for (module, size) in order {
        let lightest = (0..loads.len()).min_by_key(|group| loads[*group]).unwrap_or_default();
        groups[lightest].push(module);
        loads[lightest] += size;
    }
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_divided_by_how_many_tests_they_have() {
        let list = "a::one: test\na::two: test\na::three: test\nb::one: test\nc::x::one: test\nd::one: test\nalone: test\n";
        assert_eq!(divide(list, 2), [vec!["a::"], vec!["alone", "c::"], vec!["b::", "d::"]]);
        assert_eq!(divide("a::one: test\n", 0), [["a::"]]);
    }

    #[test]
    fn each_job_is_done_once_and_an_error_of_one_is_told() {
        let counted = || Box::new(|| Ok(Counts { passed: 1, ..Counts::default() })) as Job;
        assert_eq!(run((0..5).map(|_| counted()).collect()).unwrap().passed, 5);
        let error = run(vec![counted(), Box::new(|| Err(anyhow!("no cell")))]).unwrap_err();
        assert_eq!(error.to_string(), "no cell");
    }
}
