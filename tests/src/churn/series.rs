//! What a process holds, over time: memory, threads, descriptors. Owns the verdict: the medians of the second
//! and of the last sixth of the time are compared, since the first one is a program finding its size. Called
//! by the churn.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Medians may differ by this part of the earlier one, and by what `MORE` says.
const PERCENT: u64 = 10;
/// KiB of memory, threads and descriptors beyond: so many pods may just be in the making.
const MORE: [u64; 3] = [4096, 12, 24];
const NAMES: [&str; 3] = ["KiB", "threads", "descriptors"];
/// Rows of the printed table.
const ROWS: usize = 30;

/// What one process holds.
type HeldResources = [u64; 3];

#[derive(Debug, Default)]
pub(super) struct Series {
    samples: Vec<(Duration, [HeldResources; 2])>,
}

/// Whose.
const WHO: [&str; 2] = ["runtime", "monitor"];

impl Series {
    /// Looks at both processes.
    ///
    /// # Errors
    /// When one is gone.
    pub(super) fn take(&mut self, at: Duration, runtime: i32, monitor: i32) -> Result<()> {
        self.samples.push((at, [measure_process(runtime)?, measure_process(monitor)?]));
        Ok(())
    }

    /// A row for each of about thirty moments.
    pub(super) fn table(&self) -> String {
        let mut text = String::from("       s | runtime KiB threads fds | monitor KiB threads fds");
        for (at, [runtime, monitor]) in self.samples.iter().step_by(self.samples.len() / ROWS + 1) {
            // Writing to a String can't fail.
            let _ = write!(
                text,
                "\n{:>8} | {:>11} {:>7} {:>3} | {:>11} {:>7} {:>3}",
                at.as_secs(),
                runtime[0],
                runtime[1],
                runtime[2],
                monitor[0],
                monitor[1],
                monitor[2]
            );
        }
        text
    }

    /// What did not grow; an error says what did.
    ///
    /// # Errors
    /// What grew, or that there are too few samples.
    pub(super) fn verdict(&self) -> Result<String> {
        let sixth = self.samples.len() / 6;
        ensure!(sixth >= 3, "{} samples tell nothing: churn for longer", self.samples.len());
        let (early, late) = (&self.samples[sixth..2 * sixth], &self.samples[self.samples.len() - sixth..]);
        let mut lines = Vec::new();
        let mut grown = Vec::new();
        for (who, name) in WHO.iter().enumerate() {
            for (what, unit) in NAMES.iter().enumerate() {
                let [before, after] = [early, late].map(|part| median(part, who, what));
                let line = format!("{name} {unit}: {before} in the second sixth, {after} in the last");
                if after > before + before * PERCENT / 100 + MORE[what] {
                    grown.push(line.clone());
                }
                lines.push(line);
            }
        }
        let allowed = format!(
            "allowed: {PERCENT} % and {} KiB, {} threads, {} descriptors more",
            MORE[0], MORE[1], MORE[2]
        );
        ensure!(grown.is_empty(), "grown: {} ({allowed})", grown.join("; "));
        lines.push(allowed);
        Ok(lines.join("\n"))
    }
}

fn median(part: &[(Duration, [HeldResources; 2])], who: usize, what: usize) -> u64 {
    let mut values: Vec<u64> = part.iter().map(|(_, held)| held[who][what]).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn measure_process(pid: i32) -> Result<HeldResources> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context(name.to_owned())?;
        Ok(line.split_whitespace().next().context(name.to_owned())?.parse()?)
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    Ok([field("VmRSS:")?, field("Threads:")?, descriptors as u64])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(runtime: impl Fn(u64) -> u64) -> Series {
        let sample = |at: u64| (Duration::from_secs(at), [[runtime(at), 10, 50], [900, 1, 12]]);
        Series { samples: (0..60).map(sample).collect() }
    }

    #[test]
    fn memory_that_grows_is_found_and_a_program_finding_its_size_is_not() {
        assert!(series(|at| 30_000 + at * 300).verdict().is_err());
        let flat = series(|at| if at < 8 { 10_000 + at * 4000 } else { 42_000 + at % 7 * 300 });
        assert!(flat.verdict().unwrap().contains("runtime KiB"));
        assert_eq!(flat.table().lines().count(), 21);
    }

    #[test]
    fn few_samples_are_no_verdict() {
        let few = Series { samples: series(|_| 1).samples[..12].to_vec() };
        assert!(few.verdict().unwrap_err().to_string().contains("churn for longer"));
    }
}
