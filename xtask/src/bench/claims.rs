//! `cargo xtask bench claims`: many claims of a CSI driver mounted and unmounted at once, by upstream's kubelet and by
//! Gantry's on the same runtime, in one run. Owns command line and form; measures nothing
//! (`gantry_tests::bench::claims` does). Called by `main`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use gantry_tests::bench::claims::{self, ClaimsAsked, ClaimsRound};
use gantry_tests::bench::median;
use gantry_tests::cluster::kubelet::KubeletKind;

use super::pods::ratio;
use crate::cluster::RuntimeName;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClaimsBenchArgs {
    /// How many claims at once
    #[arg(long, default_value_t = 50)]
    claims: usize,
    /// Among how many pods the claims are shared out; as many as claims when not given
    #[arg(long)]
    pods: Option<usize>,
    /// How often on each kubelet
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Volumes that no controller attaches
    #[arg(long)]
    no_attach: bool,
    /// What runs the containers of both
    #[arg(long, value_enum, default_value = "containerd")]
    runtime: RuntimeName,
    /// Programs that are built already
    #[arg(long, hide = true)]
    built: Option<PathBuf>,
}

impl ClaimsBenchArgs {
    fn words(&self) -> Vec<String> {
        let runtime = match self.runtime {
            RuntimeName::Containerd => "containerd",
            RuntimeName::Gantry => "gantry",
        };
        let mut words = vec![
            format!("--claims={}", self.claims),
            format!("--rounds={}", self.rounds),
            format!("--runtime={runtime}"),
        ];
        words.extend(self.pods.map(|pods| format!("--pods={pods}")));
        words.extend(self.no_attach.then(|| "--no-attach".to_owned()));
        words
    }
}

/// Builds everything, then runs the other half in a place of its own.
pub(crate) fn outside(asked: &ClaimsBenchArgs) -> Result<()> {
    super::enter("bench-claims-inside", &asked.words(), asked.built.as_deref())
}

/// The bench itself: the kubelets take turns, each time with a control plane of their own.
pub(crate) fn inside(asked: &ClaimsBenchArgs) -> Result<()> {
    let pods = asked.pods.unwrap_or(asked.claims);
    ensure!(
        (1..=asked.claims).contains(&pods),
        "{} claims are for 1 to as many pods, not {pods}",
        asked.claims
    );
    let wanted =
        ClaimsAsked { claims: asked.claims, pods, attach: !asked.no_attach, runtime: asked.runtime.into() };
    super::show_machine();
    let mut measured: [(KubeletKind, Vec<ClaimsRound>); 2] =
        [KubeletKind::Upstream, KubeletKind::Gantry].map(|kind| (kind, Vec::new()));
    for _ in 0..asked.rounds {
        for (kind, rounds) in &mut measured {
            rounds.push(claims::round(*kind, &wanted)?);
        }
    }
    let attached = if wanted.attach { "attached" } else { "not attached" };
    println!(
        "\n{} claims of {pods} pods, {attached}, on {:?}; medians of the rounds\n",
        wanted.claims, wanted.runtime
    );
    show(&measured);
    show_requests(&measured);
    Ok(())
}

fn name(kind: KubeletKind) -> &'static str {
    match kind {
        KubeletKind::Upstream => "upstream",
        KubeletKind::Gantry | KubeletKind::Node => "gantry",
    }
}

/// A figure of a table: its head, and how it is read from a round.
struct ClaimsColumn {
    head: &'static str,
    figure: fn(&ClaimsRound) -> Duration,
}

const COLUMNS: [ClaimsColumn; 7] = [
    ClaimsColumn {
        head: "first Ready s",
        figure: |round| round.ready.iter().copied().min().unwrap_or_default(),
    },
    ClaimsColumn { head: "all Ready s", figure: ClaimsRound::all_ready },
    ClaimsColumn { head: "pods gone s", figure: |round| round.gone },
    ClaimsColumn { head: "unstaged s", figure: |round| round.unmounted },
    ClaimsColumn { head: "detached s", figure: |round| round.detached },
    ClaimsColumn { head: "kubelet cpu s", figure: |round| round.kubelet },
    ClaimsColumn { head: "API cpu s", figure: |round| round.api_server },
];

/// Behind the point of each figure.
const DIGITS: usize = 2;

/// A table of Markdown: a row for each kubelet, below ours its share of upstream's figures.
fn show(measured: &[(KubeletKind, Vec<ClaimsRound>)]) {
    let heads: Vec<&str> = COLUMNS.iter().map(|column| column.head).chain(["requests"]).collect();
    println!("| | {} |\n|---{}|", heads.join(" | "), "|---".repeat(heads.len()));
    let mut base: Option<Vec<f64>> = None;
    for (kind, rounds) in measured {
        let middle =
            |column: &ClaimsColumn| median(rounds.iter().map(|round| (column.figure)(round))).as_secs_f64();
        let figures: Vec<f64> =
            COLUMNS.iter().map(middle).chain([each(rounds, |round| round.requests.values().sum())]).collect();
        let cells: Vec<String> = figures.iter().map(|figure| format!("{figure:.DIGITS$}")).collect();
        println!("| {} | {} |", name(*kind), cells.join(" | "));
        match &base {
            Some(peer) => {
                let shares = peer.iter().zip(&figures).map(|(peer, own)| ratio(*peer, *own, DIGITS));
                println!("| | {} |", shares.collect::<Vec<_>>().join(" | "));
            }
            None => base = Some(figures),
        }
    }
    for (kind, rounds) in measured {
        let of = |figure: fn(&ClaimsRound) -> Duration| {
            rounds
                .iter()
                .map(|round| format!("{:.2}", figure(round).as_secs_f64()))
                .collect::<Vec<_>>()
                .join(" ")
        };
        println!(
            "{}: all Ready {}; unstaged {}",
            name(*kind),
            of(ClaimsRound::all_ready),
            of(|round| round.unmounted)
        );
    }
}

fn show_requests(measured: &[(KubeletKind, Vec<ClaimsRound>)]) {
    let all = measured.iter().flat_map(|(_, rounds)| rounds);
    let kinds: BTreeSet<&String> = all.flat_map(|round| round.requests.keys()).collect();
    let names: Vec<&str> = measured.iter().map(|(kind, _)| name(*kind)).collect();
    println!("\nrequests of a round: {}", names.join(", "));
    for request in kinds {
        let figures = measured.iter().map(|(_, rounds)| {
            format!("{:>9.1}", each(rounds, |round| round.requests.get(request).copied().unwrap_or_default()))
        });
        println!("  {request:<34}{}", figures.collect::<String>());
    }
}

/// The mean of the rounds.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn each(rounds: &[ClaimsRound], count: impl Fn(&ClaimsRound) -> usize) -> f64 {
    rounds.iter().map(count).sum::<usize>() as f64 / rounds.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_half_is_asked_for_the_same() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            asked: ClaimsBenchArgs,
        }
        let parse = |words: &[String]| {
            let all = std::iter::once("bench".to_owned()).chain(words.iter().cloned());
            <Line as clap::Parser>::try_parse_from(all).map(|line| line.asked)
        };
        let given =
            ["--claims=7", "--rounds=2", "--runtime=gantry", "--pods=3", "--no-attach"].map(str::to_owned);
        assert_eq!(parse(&given).unwrap().words(), given);
        assert_eq!(parse(&[]).unwrap().words(), ["--claims=50", "--rounds=3", "--runtime=containerd"]);
    }

    #[test]
    fn requests_are_a_mean_of_rounds() {
        let with = |count: usize| ClaimsRound {
            requests: [("get nodes".to_owned(), count)].into(),
            ..ClaimsRound::default()
        };
        let mean = each(&[with(2), with(3)], |round| round.requests.values().sum());
        assert!((mean - 2.5).abs() < 1e-9);
    }
}
