//! Churn: pods made, used and removed for minutes while runtimes and monitors are killed and calls are given
//! up. Two nodes side by side: one has its runtime killed again and again, the other's lives throughout, and
//! its memory, threads and descriptors are looked at. Owns who does what; what is left at the end is for
//! `leakcheck`, the figures are `series`'s. Called by `cargo xtask churn`.

mod random;
mod series;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::random::Random;
use self::series::Series;
use self::worker::ChurnWorker;
use crate::leakcheck::{Scope, Snapshot};
use crate::node::{Node, Roots};
use crate::pod::{self, Pod};
use crate::proc;
use crate::ready::web_image;
use crate::registry::Registry;

/// Of each node.
const WORKERS: u64 = 3;
/// Between two kills, at most.
const KILL_AT_MOST: u64 = 4000;
const SAMPLE: Duration = Duration::from_secs(2);
/// Its monitor is never killed, and is looked at.
const KEPT: &str = "kept";

/// What to do, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct ChurnOptions {
    /// Of the churn, without its beginning and end.
    pub time: Duration,
    /// Of the same seed the same choices are made; what comes of them depends on the machine.
    pub seed: u64,
}

/// What the workers share.
#[derive(Debug, Default)]
struct ChurnShared {
    over: AtomicBool,
    /// How often what happened.
    counts: Mutex<BTreeMap<String, u64>>,
}

impl ChurnShared {
    fn count(&self, what: impl Into<String>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what.into()).or_default() += 1;
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// The two nodes, and what was there before their pods.
struct Nodes {
    /// Its runtime lives throughout.
    steady: Node,
    shaken: Node,
    before: [Snapshot; 2],
}

impl Nodes {
    fn new(image: &str) -> Result<Self> {
        let start = || -> Result<Node> {
            let node = Node::start_on(Roots::new()?)?;
            node.pull(image).context("PullImage")?;
            node.await_durable()?;
            Ok(node)
        };
        let (steady, shaken) = (start()?, start()?);
        let scopes = scopes(&steady, &shaken)?;
        let before = [Snapshot::take(&scopes[0])?, Snapshot::take(&scopes[1])?];
        Ok(Nodes { steady, shaken, before })
    }

    /// Removes what workers had to leave, and compares.
    fn end(&self) -> Result<()> {
        for node in [&self.steady, &self.shaken] {
            for id in worker::list_images(node.cri())? {
                worker::remove(node.cri(), &id).with_context(|| format!("remove {id} at the end"))?;
            }
        }
        for (before, scope) in self.before.iter().zip(scopes(&self.steady, &self.shaken)?) {
            before.await_clean(&scope)?;
        }
        Ok(())
    }
}

/// Of each node, where the runtimes and bridges of both may be.
fn scopes(one: &Node, other: &Node) -> Result<[Scope; 2]> {
    let own: Vec<i32> = [one, other]
        .map(Node::pid)
        .into_iter()
        .map(|pid| Ok(pid?.as_raw_nonzero().get()))
        .collect::<Result<_>>()?;
    let bridges: Vec<String> =
        [one, other].into_iter().flat_map(|node| node.roots().scope().bridges).collect();
    Ok([one, other].map(|node| Scope { own: own.clone(), bridges: bridges.clone(), ..node.roots().scope() }))
}

/// Churns, and says what happened.
///
/// # Errors
/// A pod that can't be made or removed in time, something left, or memory that grows.
pub fn run(wanted: &ChurnOptions, mut say: impl FnMut(&str)) -> Result<()> {
    say(&format!("churn of {} s, seed {}", wanted.time.as_secs(), wanted.seed));
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let mut nodes = Nodes::new(&image)?;
    let kept = keep_one(&nodes.steady, &image)?;
    let shared = Arc::new(ChurnShared::default());
    let workers = start_workers(&nodes, &image, wanted.seed, &shared);
    let mut series = Series::default();
    let disturbed = disturb(&mut nodes, &kept, wanted, &shared, &mut series);
    shared.over.store(true, Ordering::Relaxed);
    let ended: Vec<Result<()>> = workers
        .into_iter()
        .map(|worker| worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?)
        .collect();
    for (what, count) in shared.counts.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        say(&format!("{count:>8}  {what}"));
    }
    say(&series.table());
    disturbed?;
    ended.into_iter().collect::<Result<()>>()?;
    nodes.end()?;
    say("nothing is left");
    say(&series.verdict()?);
    Ok(())
}

fn start_workers(
    nodes: &Nodes,
    image: &str,
    seed: u64,
    shared: &Arc<ChurnShared>,
) -> Vec<std::thread::JoinHandle<Result<()>>> {
    let mut workers = Vec::new();
    for (node, name) in [(&nodes.steady, "steady"), (&nodes.shaken, "shaken")] {
        for number in 0..WORKERS {
            let random = Random::new(seed.wrapping_add(workers.len() as u64 + 1));
            let (socket, logs, image, shared) =
                (node.socket(), node.logs(), image.to_owned(), shared.clone());
            let name = format!("{name}{number}");
            workers.push(std::thread::spawn(move || {
                ChurnWorker::new(&socket, &logs, &image, &name, random, shared)?.run()
            }));
        }
    }
    workers
}

/// A pod that outlives everything else, with a container that says something all the time.
fn keep_one(node: &Node, image: &str) -> Result<String> {
    let pod = Pod::run(node, KEPT)?;
    pod.start(&pod::container_config(KEPT, image, &["/workload", "count", "0"]))?;
    Ok(pod.id.clone())
}

/// Kills until the time is over, and looks at who lives.
fn disturb(
    nodes: &mut Nodes,
    kept: &str,
    wanted: &ChurnOptions,
    shared: &ChurnShared,
    series: &mut Series,
) -> Result<()> {
    let mut random = Random::new(wanted.seed);
    let began = Instant::now();
    let kept_monitor = monitor_of(&nodes.steady, kept)?;
    let runtime = nodes.steady.pid()?.as_raw_nonzero().get();
    let mut next_kill = random.until(KILL_AT_MOST);
    let mut next_sample = SAMPLE;
    while began.elapsed() < wanted.time {
        std::thread::sleep(Duration::from_millis(20));
        if began.elapsed() >= next_sample {
            next_sample += SAMPLE;
            series.take(began.elapsed(), runtime, kept_monitor)?;
        }
        if began.elapsed() < next_kill {
            continue;
        }
        next_kill = began.elapsed() + random.until(KILL_AT_MOST);
        if random.below(3) == 0 {
            nodes.shaken.restart().context("restart the runtime that was killed")?;
            shared.count("killed a runtime");
        } else if kill_a_monitor(&mut random, kept_monitor)? {
            shared.count("killed a monitor");
        }
    }
    ensure!(proc::one(runtime).is_some_and(|process| process.state != 'Z'), "the steady runtime ended");
    Ok(())
}

/// The monitor of one sandbox, by its cgroup.
fn monitor_of(node: &Node, sandbox: &str) -> Result<i32> {
    let above = format!("{}-monitors/{sandbox}", node.roots().tag());
    let folders = crate::leakcheck::tagged_cgroups(node.roots().tag())?;
    let own =
        folders.iter().find(|folder| folder.ends_with(&above)).context("no cgroup of the kept monitor")?;
    let members = std::fs::read_to_string(own.join("cgroup.procs"))?;
    members.lines().next().and_then(|line| line.parse().ok()).context("the kept pod has no monitor")
}

fn kill_a_monitor(random: &mut Random, but: i32) -> Result<bool> {
    let all = proc::all()?.into_iter();
    let monitors: Vec<_> = all
        .filter(|process| process.name.starts_with("gantry-monitor") && process.state != 'Z')
        .filter(|process| process.pid != but)
        .collect();
    if monitors.is_empty() {
        return Ok(false);
    }
    proc::kill(monitors[random.index(monitors.len())].pid)?;
    Ok(true)
}
