//! The tour of a new user of crictl (`tests/go/tour`): its command line, its transcript, and how two of
//! them compare. Owns the comparison; the steps are the Go program's. Called by the CRI and peer tiers.

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use crate::peers::Programs;
use crate::place;
use crate::suite::{Images, Subject, command_within};

/// A line that one of the two has alone, and why that is right.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// Beginning of the step's heading; empty for any.
    pub step: &'static str,
    /// Of whom.
    pub whose: TourSide,
    /// Part of the line.
    pub line: &'static str,
    /// Why it is there for the one and not for the other.
    pub why: &'static str,
}

/// Whose line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TourSide {
    /// Gantry's alone.
    Ours,
    /// The peer's alone.
    Theirs,
    /// Either's.
    Both,
}

/// Runs the tour to its end and returns what it printed.
///
/// # Errors
/// The step that failed.
pub fn run(subject: Subject<'_>, images: &Images) -> Result<String> {
    let output = command_within(&Programs::tour()?, subject.within)
        .arg(format!("--endpoint=unix://{}", subject.socket.display()))
        .arg(format!("--image={}", images.basic))
        .arg(format!("--cgroup-parent={}", place::cgroup_parent(&[subject.cgroup_tag, "podtour"])))
        .stdin(Stdio::null())
        .output()
        .context("start the tour")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(text)
}

/// A heading and its lines.
type TourStep<'a> = (&'a str, Vec<&'a str>);

fn steps(text: &str) -> Vec<TourStep<'_>> {
    let mut steps: Vec<TourStep<'_>> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(heading), _) => steps.push((heading, Vec::new())),
            (None, Some((_, lines))) => lines.push(line.trim_start()),
            (None, None) => {}
        }
    }
    steps
}

/// Holds two transcripts against each other: the same steps in the same order, and in each the same lines
/// but for what is allowed. An allowance that nothing needs is one too many.
///
/// # Errors
/// Every line that only one of them has.
pub fn compare(ours: &str, theirs: &str, allowed: &[Difference]) -> Result<()> {
    let (ours, theirs) = (steps(ours), steps(theirs));
    let headings = |steps: &[TourStep<'_>]| steps.iter().map(|(heading, _)| (*heading).to_owned()).collect();
    let (here, there): (Vec<String>, Vec<String>) = (headings(&ours), headings(&theirs));
    ensure!(here == there, "not the same steps:\n{here:#?}\n{there:#?}");
    let mut wrong = Vec::new();
    let mut needed = vec![false; allowed.len()];
    for ((heading, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        for (side, line) in alone(ours, theirs) {
            let fits = |one: &Difference| {
                let whose = one.whose == side || one.whose == TourSide::Both;
                heading.starts_with(one.step) && whose && line.contains(one.line)
            };
            match allowed.iter().position(fits) {
                Some(index) => needed[index] = true,
                None => wrong.push(format!("$ {heading}\n  {side:?}: {line}")),
            }
        }
    }
    let idle = allowed.iter().zip(needed).filter(|(_, needed)| !needed);
    wrong.extend(idle.map(|(one, _)| format!("nothing needs {one:?}")));
    if !wrong.is_empty() {
        bail!("{} differences:\n{}", wrong.len(), wrong.join("\n"));
    }
    Ok(())
}

/// Lines that one of them has more often.
fn alone<'a>(ours: &[&'a str], theirs: &[&'a str]) -> Vec<(TourSide, &'a str)> {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    ours.iter().for_each(|line| *counts.entry(line).or_default() += 1);
    theirs.iter().for_each(|line| *counts.entry(line).or_default() -= 1);
    let sides = counts.into_iter().filter(|(_, count)| *count != 0);
    sides.map(|(line, count)| (if count > 0 { TourSide::Ours } else { TourSide::Theirs }, line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "$ version\n  name: a\n$ ps\n  one\n  two\n";

    fn allow(step: &'static str, whose: TourSide, line: &'static str) -> Difference {
        Difference { step, whose, line, why: "a test" }
    }

    #[test]
    fn the_same_lines_in_another_order_are_the_same() {
        assert!(compare(OURS, "$ version\n  name: a\n$ ps\n  two\n  one\n", &[]).is_ok());
    }

    #[test]
    fn a_line_of_one_side_needs_its_allowance_and_each_allowance_its_line() {
        let theirs = "$ version\n  name: a\n$ ps\n  one\n  three\n";
        let error = compare(OURS, theirs, &[]).unwrap_err().to_string();
        assert!(error.contains("Ours: two") && error.contains("Theirs: three"), "{error}");
        let both = [allow("ps", TourSide::Ours, "two"), allow("", TourSide::Both, "thre")];
        assert!(compare(OURS, theirs, &both).is_ok());
        assert!(compare(OURS, theirs, &both[..1]).is_err());
        assert!(compare(OURS, theirs, &[both[0], both[1], allow("ps", TourSide::Ours, "one")]).is_err());
        // The right line, of the wrong step or side.
        for wrong in [allow("version", TourSide::Ours, "two"), allow("ps", TourSide::Theirs, "two")] {
            assert!(compare(OURS, theirs, &[wrong, both[1]]).is_err());
        }
    }

    #[test]
    fn a_step_that_is_missing_is_no_equality() {
        assert!(compare(OURS, "$ version\n  name: a\n", &[]).is_err());
    }
}
