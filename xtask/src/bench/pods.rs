//! `cargo xtask bench pods`: many pods at once on a real control plane, beside upstream's kubelet and containerd, in one
//! run. Owns command line and form; measures nothing (`gantry_tests::bench::pods` does). Called by `main`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::bench::pods::{self, NodeUnderTest, PodRound, PodsAsked};
use gantry_tests::cluster::isolation;
use gantry_tests::place;

use crate::cell::Cell;
use crate::{build, cluster, sh};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PodsBenchArgs {
    /// How many pods at once, one size after the other
    #[arg(long, value_delimiter = ',', default_value = "1,10,30,100")]
    pods: Vec<usize>,
    /// How often each
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Without the peer
    #[arg(long)]
    alone: bool,
    /// Programs that are built already
    #[arg(long, hide = true)]
    built: Option<PathBuf>,
}

impl PodsBenchArgs {
    fn words(&self) -> Vec<String> {
        let sizes: Vec<String> = self.pods.iter().map(ToString::to_string).collect();
        let alone = self.alone.then(|| "--alone".to_owned());
        [format!("--pods={}", sizes.join(",")), format!("--rounds={}", self.rounds)]
            .into_iter()
            .chain(alone)
            .collect()
    }
}

/// Builds everything, then runs the other half in a place of its own.
pub(crate) fn outside(asked: &PodsBenchArgs) -> Result<()> {
    sh::require_root("the bench")?;
    let programs = match &asked.built {
        Some(programs) => std::path::absolute(programs)?,
        None => build::build(true)?,
    };
    cluster::prepare_beside(&programs, false)?;
    let cell = Cell::new()?;
    let [unshare, init @ ..] = isolation::INIT;
    let mut command = cell.command(Path::new(unshare))?;
    command.args(init).arg(std::env::current_exe().context("find this program")?).arg("bench-pods-inside");
    let ran = sh::run(command.args(asked.words()).env(place::BIN_DIR, programs));
    cell.close()?;
    ran
}

/// The bench itself.
pub(crate) fn inside(asked: &PodsBenchArgs) -> Result<()> {
    let wanted = PodsAsked { sizes: asked.pods.clone(), rounds: asked.rounds };
    super::show_machine();
    let peer = (!asked.alone).then_some(NodeUnderTest::Upstream);
    let nodes: Vec<NodeUnderTest> = peer.into_iter().chain([NodeUnderTest::Gantry]).collect();
    let mut measured = Vec::new();
    for node in nodes {
        measured.push((node, pods::pods(node, &wanted)?));
    }
    for size in &wanted.sizes {
        show(*size, &measured);
    }
    Ok(())
}

/// One size: a row for each node, then the requests.
fn show(size: usize, measured: &[(NodeUnderTest, Vec<PodRound>)]) {
    println!("\n{size} pods at once; medians of the rounds, in seconds");
    println!(
        "{:<22}{:>9}{:>9}{:>9}{:>9}{:>16}{:>18}",
        "", "p50", "p90", "all", "gone", "API server", "requests a pod"
    );
    let of =
        |rounds: &[PodRound]| rounds.iter().filter(|round| round.pods == size).cloned().collect::<Vec<_>>();
    let mut base: Option<[f64; 3]> = None;
    for (node, rounds) in measured {
        let rounds = of(rounds);
        let row = [middle(&rounds, |round| at(round, 50)), middle(&rounds, |round| at(round, 90))];
        let ends = [middle(&rounds, PodRound::all_ready), middle(&rounds, |round| round.gone)];
        let (server, asked) = (middle(&rounds, |round| round.api_server), requests(&rounds));
        println!(
            "{:<22}{:>9.3}{:>9.3}{:>9.3}{:>9.3}{server:>16.2}{asked:>18.2}",
            node.name(),
            row[0],
            row[1],
            ends[0],
            ends[1]
        );
        let figures = [row[0], ends[0], ends[1]];
        match base {
            Some(peer) => println!(
                "{:<22}{:>9}{:>9}{:>9}{:>9}",
                "",
                ratio(peer[0], figures[0]),
                "",
                ratio(peer[1], figures[1]),
                ratio(peer[2], figures[2])
            ),
            None => base = Some(figures),
        }
    }
    show_requests(measured, &of);
}

fn show_requests(measured: &[(NodeUnderTest, Vec<PodRound>)], of: &impl Fn(&[PodRound]) -> Vec<PodRound>) {
    let kinds: BTreeSet<String> = measured
        .iter()
        .flat_map(|(_, rounds)| of(rounds))
        .flat_map(|round| round.requests.into_keys())
        .collect();
    println!("requests a pod, from its making to its end");
    for kind in kinds {
        let figures = measured.iter().map(|(_, rounds)| {
            let rounds = of(rounds);
            let all: usize = rounds.iter().filter_map(|round| round.requests.get(&kind)).sum();
            format!("{:>9.2}", share(all, &rounds))
        });
        println!("  {kind:<34}{}", figures.collect::<String>());
    }
}

fn requests(rounds: &[PodRound]) -> f64 {
    share(rounds.iter().flat_map(|round| round.requests.values()).sum(), rounds)
}

/// For each pod of the rounds.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn share(all: usize, rounds: &[PodRound]) -> f64 {
    let pods: usize = rounds.iter().map(|round| round.pods).sum();
    all as f64 / pods.max(1) as f64
}

/// How long until that per cent of the pods were ready.
fn at(round: &PodRound, percent: usize) -> Duration {
    let mut ready = round.ready.clone();
    ready.sort();
    let index = (ready.len() * percent).div_ceil(100).saturating_sub(1);
    ready.get(index).copied().unwrap_or_default()
}

fn middle(rounds: &[PodRound], figure: impl Fn(&PodRound) -> Duration) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(|round| figure(round).as_secs_f64()).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

fn ratio(peer: f64, own: f64) -> String {
    if own > 0.0 { format!("1/{:.1}", peer / own) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_pods_are_ranks_of_their_times() {
        let round = PodRound {
            pods: 10,
            ready: (1..=10).rev().map(Duration::from_secs).collect(),
            gone: Duration::ZERO,
            requests: [("patch pods/status".to_owned(), 25)].into(),
            api_server: Duration::ZERO,
        };
        assert_eq!((at(&round, 50), at(&round, 90)), (Duration::from_secs(5), Duration::from_secs(9)));
        assert!((requests(&[round.clone(), round]) - 2.5).abs() < 1e-9);
        assert_eq!(ratio(8.0, 1.0), "1/8.0");
    }
}
