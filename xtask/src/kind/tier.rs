//! The frame of a tier that needs a kind cluster: docker, the cluster, the tier's steps, and the end of both without a trace.
//! Owns the order and the names of these checks. Called by the tiers.

use std::time::Instant;

use anyhow::Result;

use super::bed::{Bed, as_before, seen};
use super::image::Made;
use crate::sh;
use crate::summary::Counts;

/// Makes a cluster of that name with a node of each image, and takes all of it away after the steps. `tier` begins the
/// name of each check.
///
/// # Errors
/// When docker does not start.
pub(crate) fn on_cluster(
    tier: &str,
    cluster: &str,
    nodes: &[&Made],
    steps: impl FnOnce(&Bed) -> Counts,
) -> Result<Counts> {
    sh::require_root("a kind cluster")?;
    let host = seen()?;
    let bed = Bed::start(sh::target_dir().join(format!("{tier}-tier")), cluster)?;
    let mut counts = timed(&format!("{tier}: create cluster"), || bed.create(nodes));
    if counts.failed == 0 {
        counts += steps(&bed);
    }
    if counts.failed > 0 {
        println!("{}", bed.state());
    }
    counts += timed(&format!("{tier}: delete cluster"), || bed.delete());
    counts += timed(&format!("{tier}: docker's end leaves no cgroup"), || bed.end());
    counts += timed(&format!("{tier}: the host has the links and mounts that it had"), || as_before(&host));
    Ok(counts)
}

/// A check, and how long it took.
pub(crate) fn timed(name: &str, step: impl FnOnce() -> Result<()>) -> Counts {
    let begin = Instant::now();
    let outcome = step();
    println!("{:>5} s", begin.elapsed().as_secs());
    Counts::check(name, outcome)
}
