//! `cargo xtask bench pods`: many pods at once on a real control plane, beside upstream's kubelet and containerd, in one
//! run. Owns command line and form; measures nothing (`gantry_tests::bench::pods` does). Called by `main`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::bench::pods::shape::PodShape;
use gantry_tests::bench::pods::steady::IdleNode;
use gantry_tests::bench::pods::{self, NodeUnderTest, PodRound, PodsAsked};

use super::picture::{self, BarGroup};

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
    /// What the pods look like: plain, containers, volumes, probes, or crash, which is measured for a minute
    #[arg(long, default_value = "plain", value_parser = PodShape::from_str)]
    shape: PodShape,
    /// `kubeAPIQPS` and `kubeAPIBurst` of every kubelet
    #[arg(long)]
    qps: Option<u32>,
    /// Seconds in which nothing happens once all are ready: the daemons' processor time is measured
    #[arg(long)]
    idle: Option<u64>,
    /// Kills the kubelet when all are ready, and measures until the next one has them
    #[arg(long)]
    kill_kubelet: bool,
    /// Where a picture of the medians goes
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Programs that are built already
    #[arg(long, hide = true)]
    built: Option<PathBuf>,
}

impl PodsBenchArgs {
    fn words(&self) -> Vec<String> {
        let sizes: Vec<String> = self.pods.iter().map(ToString::to_string).collect();
        let alone = self.alone.then(|| "--alone".to_owned());
        let more = [
            alone,
            self.qps.map(|qps| format!("--qps={qps}")),
            self.idle.map(|seconds| format!("--idle={seconds}")),
            self.kill_kubelet.then(|| "--kill-kubelet".to_owned()),
            self.svg.as_ref().map(|file| format!("--svg={}", file.display())),
        ];
        let shape = format!("--shape={}", self.shape.name());
        [format!("--pods={}", sizes.join(",")), format!("--rounds={}", self.rounds), shape]
            .into_iter()
            .chain(more.into_iter().flatten())
            .collect()
    }

    fn wanted(&self) -> PodsAsked {
        PodsAsked {
            sizes: self.pods.clone(),
            rounds: 1,
            shape: self.shape,
            qps: self.qps,
            idle: self.idle.map(Duration::from_secs),
            kill: self.kill_kubelet,
        }
    }
}

/// Builds everything, then runs the other half in a place of its own.
pub(crate) fn outside(asked: &PodsBenchArgs) -> Result<()> {
    super::enter("bench-pods-inside", &asked.words(), asked.built.as_deref())
}

/// The bench itself: each round on each node, one after the other, each with a control plane of its own.
pub(crate) fn inside(asked: &PodsBenchArgs) -> Result<()> {
    let wanted = asked.wanted();
    super::show_machine();
    let peer = (!asked.alone).then_some(NodeUnderTest::Upstream);
    // What crashes runs; the null kubelet runs nothing.
    let floor = (asked.shape != PodShape::Crash).then_some(NodeUnderTest::Null);
    let own = [NodeUnderTest::Gantry, NodeUnderTest::OneProcess].into_iter().chain(floor);
    let mut measured: Vec<(NodeUnderTest, Vec<PodRound>)> =
        peer.into_iter().chain(own).map(|node| (node, Vec::new())).collect();
    for _ in 0..asked.rounds {
        for (node, rounds) in &mut measured {
            rounds.extend(pods::pods(*node, &wanted)?);
        }
    }
    for size in &wanted.sizes {
        show(*size, &wanted, &measured);
    }
    match &asked.svg {
        Some(file) => {
            let title = "Pods on one node: seconds, medians of the rounds";
            let text = picture::bars(title, &groups(&wanted.sizes, &measured));
            std::fs::write(file, text).with_context(|| file.display().to_string())
        }
        None => Ok(()),
    }
}

/// A node and its rounds of one size.
type Rounds<'a> = (NodeUnderTest, Vec<&'a PodRound>);

fn of_size(size: usize, measured: &[(NodeUnderTest, Vec<PodRound>)]) -> Vec<Rounds<'_>> {
    let all = measured.iter();
    all.map(|(node, rounds)| (*node, rounds.iter().filter(|round| round.pods == size).collect())).collect()
}

/// A figure of a table: its head, its unit's digits behind the point, and how it is read from the rounds.
struct Column {
    head: &'static str,
    digits: usize,
    figure: fn(&[&PodRound]) -> f64,
}

const COLUMNS: [Column; 9] = [
    Column { head: "p50 s", digits: 3, figure: |rounds| middle(rounds, |round| at(round, 50).as_secs_f64()) },
    Column { head: "p90 s", digits: 3, figure: |rounds| middle(rounds, |round| at(round, 90).as_secs_f64()) },
    Column {
        head: "all s",
        digits: 3,
        figure: |rounds| middle(rounds, |round| round.all_ready().as_secs_f64()),
    },
    Column { head: "gone s", digits: 3, figure: |rounds| middle(rounds, |round| round.gone.as_secs_f64()) },
    Column {
        head: "node cpu s",
        digits: 2,
        figure: |rounds| middle(rounds, |round| round.node.as_secs_f64()),
    },
    Column {
        head: "API cpu s",
        digits: 2,
        figure: |rounds| middle(rounds, |round| round.api_server.as_secs_f64()),
    },
    Column {
        head: "PSS MB",
        digits: 1,
        figure: |rounds| middle(rounds, |round| megabytes(round.memory.values().sum())),
    },
    Column { head: "available MB", digits: 1, figure: |rounds| middle(rounds, less_available) },
    Column { head: "requests a pod", digits: 2, figure: requests },
];

/// One size as a table of Markdown: a row for each node, below it its share of the first one's figures.
fn show(size: usize, asked: &PodsAsked, measured: &[(NodeUnderTest, Vec<PodRound>)]) {
    let nodes = of_size(size, measured);
    println!("\n{size} {}; medians of the rounds\n", kind_of(asked));
    let heads: Vec<&str> = COLUMNS.iter().map(|column| column.head).collect();
    println!("| | {} |\n|---{}|", heads.join(" | "), "|---".repeat(COLUMNS.len()));
    let mut base: Option<Vec<f64>> = None;
    for (node, rounds) in &nodes {
        let figures: Vec<f64> = COLUMNS.iter().map(|column| (column.figure)(rounds)).collect();
        let cells =
            COLUMNS.iter().zip(&figures).map(|(column, figure)| format!("{figure:.*}", column.digits));
        println!("| {} | {} |", node.name(), cells.collect::<Vec<_>>().join(" | "));
        match &base {
            Some(peer) => {
                let shares = COLUMNS
                    .iter()
                    .zip(peer.iter().zip(&figures))
                    .map(|(column, (peer, own))| ratio(*peer, *own, column.digits));
                println!("| | {} |", shares.collect::<Vec<_>>().join(" | "));
            }
            None => base = Some(figures),
        }
    }
    show_memory(&nodes);
    show_rest(&nodes);
    show_requests(&nodes);
}

fn kind_of(asked: &PodsAsked) -> String {
    let qps = asked.qps.map_or_else(String::new, |qps| format!(", kubeAPIQPS {qps}"));
    let over = match asked.shape {
        PodShape::Crash => format!(" over {} s", pods::STORM.as_secs()),
        PodShape::Plain | PodShape::Containers | PodShape::Volumes | PodShape::Probes => String::new(),
    };
    format!("pods at once ({}){over}{qps}", asked.shape.name())
}

/// What only some rounds have.
fn show_rest(nodes: &[Rounds<'_>]) {
    for (node, rounds) in nodes {
        show_traffic(*node, rounds);
        show_idle(*node, rounds);
        for took in rounds.iter().filter_map(|round| round.adoption) {
            println!("killed, {}: all pods again after {:.2} s, 0 restarts", node.name(), took.as_secs_f64());
        }
        let restarts: u64 = rounds.iter().map(|round| round.restarts).sum();
        if restarts > 0 {
            println!("restarts, {}: {restarts} in {} rounds", node.name(), rounds.len());
        }
    }
}

/// Of a round with an idle time that time's is in it.
fn show_traffic(node: NodeUnderTest, rounds: &[&PodRound]) {
    let of = |bytes: fn(&PodRound) -> u64| middle(rounds, |round| kilobytes_a_pod(bytes(round), round.pods));
    let (sent, received) = (of(|round| round.traffic.sent), of(|round| round.traffic.received));
    if sent > 0.0 {
        println!(
            "traffic, {}: {sent:.0} KB to the API server and {received:.0} KB from it for a pod",
            node.name()
        );
    }
}

/// What happens while nothing happens.
fn show_idle(node: NodeUnderTest, rounds: &[&PodRound]) {
    let idle: Vec<&IdleNode> = rounds.iter().filter_map(|round| round.idle.as_ref()).collect();
    let Some(first) = idle.first() else { return };
    let name = node.name();
    for daemon in first.shares.keys() {
        let share = middle(&idle, |idle| idle.shares.get(daemon).copied().unwrap_or_default());
        println!("idle, {name}: {daemon} {share:.2} % of one core");
    }
    let requests = middle(&idle, |idle| idle.requests.values().sum());
    let [sent, received] = [0, 1]
        .map(|way: usize| middle(&idle, |idle| idle.traffic.get(way).copied().unwrap_or_default() / 1e3));
    println!(
        "idle, {name}: in a minute {requests:.1} requests, {sent:.1} KB to the API server and {received:.1} KB from it"
    );
    let kinds: BTreeSet<&String> = idle.iter().flat_map(|idle| idle.requests.keys()).collect();
    for kind in kinds {
        let figure = middle(&idle, |idle| idle.requests.get(kind).copied().unwrap_or_default());
        println!("  {kind:<34}{figure:>9.2}");
    }
}

/// Programs of at least half a megabyte.
fn show_memory(nodes: &[Rounds<'_>]) {
    println!("\nmemory by program, PSS in MB, when all were ready");
    for (node, rounds) in nodes {
        let programs: BTreeSet<&String> = rounds.iter().flat_map(|round| round.memory.keys()).collect();
        let of = |program: &String| {
            middle(rounds, |round| megabytes(round.memory.get(program).copied().unwrap_or_default()))
        };
        let shown =
            programs.into_iter().map(|program| (program, of(program))).filter(|(_, size)| *size >= 0.5);
        let shown: Vec<String> = shown.map(|(program, size)| format!("{program} {size:.1}")).collect();
        println!("  {:<22}{}", node.name(), shown.join(", "));
    }
}

fn show_requests(nodes: &[Rounds<'_>]) {
    let kinds: BTreeSet<&String> =
        nodes.iter().flat_map(|(_, rounds)| rounds).flat_map(|round| round.requests.keys()).collect();
    let names: Vec<&str> = nodes.iter().map(|(node, _)| node.name()).collect();
    println!("\nrequests a pod, from its making to its end: {}", names.join(", "));
    for kind in kinds {
        let figures = nodes.iter().map(|(_, rounds)| {
            let all: usize = rounds.iter().filter_map(|round| round.requests.get(kind)).sum();
            format!("{:>9.2}", share(all, rounds))
        });
        println!("  {kind:<34}{}", figures.collect::<String>());
    }
}

/// What the picture shows: ours first, which it draws in its own colour.
fn groups(sizes: &[usize], measured: &[(NodeUnderTest, Vec<PodRound>)]) -> Vec<BarGroup> {
    let group = |size: usize, what: &str, figure: fn(&[&PodRound]) -> f64| {
        let mut nodes = of_size(size, measured);
        nodes.sort_by_key(|(node, _)| *node == NodeUnderTest::Upstream);
        let rows = nodes.iter().map(|(node, rounds)| (node.name().to_owned(), figure(rounds))).collect();
        (format!("{size} pods: {what}"), rows)
    };
    let of = |size: &usize| {
        let [_, _, all, gone, cpu, ..] = &COLUMNS;
        [("all ready", all), ("all gone", gone), ("processor time of the node", cpu)]
            .map(|(what, column)| group(*size, what, column.figure))
    };
    sizes.iter().flat_map(of).collect()
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn megabytes(kilobytes: u64) -> f64 {
    kilobytes as f64 * 1024.0 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn kilobytes_a_pod(bytes: u64, pods: usize) -> f64 {
    bytes as f64 / 1e3 / pods.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn less_available(round: &PodRound) -> f64 {
    round.available as f64 * 1024.0 / 1e6
}

fn requests(rounds: &[&PodRound]) -> f64 {
    share(rounds.iter().flat_map(|round| round.requests.values()).sum(), rounds)
}

/// For each pod of the rounds.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn share(all: usize, rounds: &[&PodRound]) -> f64 {
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

fn middle<T>(rounds: &[&T], figure: impl Fn(&T) -> f64) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(|round| figure(round)).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// How often ours goes into the peer's, as `1/8.0`; `-` where ours is shown as 0 with so many digits behind the point.
pub(super) fn ratio(peer: f64, own: f64, digits: usize) -> String {
    let is_shown = format!("{own:.digits$}").contains(|digit| matches!(digit, '1'..='9'));
    if is_shown { format!("1/{:.1}", peer / own) } else { "-".to_owned() }
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
            node: Duration::ZERO,
            memory: [("kubelet".to_owned(), 1000), ("pause".to_owned(), 500)].into(),
            available: 2000,
            ..PodRound::default()
        };
        assert_eq!((at(&round, 50), at(&round, 90)), (Duration::from_secs(5), Duration::from_secs(9)));
        assert!((requests(&[&round, &round]) - 2.5).abs() < 1e-9);
        let [.., memory, _, _] = &COLUMNS;
        assert!(((memory.figure)(&[&round]) - 1.536).abs() < 1e-9);
    }

    #[test]
    fn what_is_shown_as_nothing_has_no_share() {
        assert_eq!(ratio(8.0, 1.0, 2), "1/8.0");
        assert_eq!(ratio(8.0, 0.005_1, 2), "1/1568.6");
        assert_eq!(ratio(8.0, 0.004_9, 2), "-");
        assert_eq!(ratio(8.0, 0.0, 2), "-");
    }
}
