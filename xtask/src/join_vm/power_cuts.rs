//! The tier `power-cuts`: a machine that joins a kind cluster as in `join-vm`, loses its power twenty times while it pulls
//! images and starts pods, then its network for five minutes, then the right time. After each of them the node is ready
//! by itself, its pods run, and `gantry doctor --deep` finds the image store whole. Owns the steps and what is seen after
//! each. Called by the tiers.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::programs::{self, Set};
use gantry_tests::image::{Image, Layer};

use super::network::TAP;
use super::{JoinVmFixture, JoinVmStep, NODE, package, steps};
use crate::kind::pods::{WAIT, containers};
use crate::kind::registry::{Filling, RunningRegistry};
use crate::kind::{self, web};
use crate::summary::Counts;
use crate::{dist, sh, vagrant_box};

const STORM: &str = include_str!("storm.yaml");
/// How often the power goes.
const CUTS: u32 = 20;
/// Longer than the API server waits before it calls a node NotReady, shorter than pods are left on one.
const WITHOUT_NETWORK: Duration = Duration::from_secs(300);
/// Bytes of a layer that gzip makes no smaller.
const LAYER: usize = 3 << 20;

const STEPS: [JoinVmStep; 6] = [
    ("power-cuts: the machine boots and answers by ssh", steps::boot),
    ("power-cuts: apt-get install starts the runtime", package::install),
    ("power-cuts: Vagrant's script joins the cluster, and the node becomes ready", steps::join),
    ("power-cuts: 20 power cuts amid pulls and starts", cuts),
    ("power-cuts: five minutes without a network", without_network),
    ("power-cuts: the clock an hour ahead, and an hour behind", wrong_clock),
];

/// All of it.
pub(crate) fn tests() -> Result<Counts> {
    sh::require_root("a kind cluster")?;
    let deb = dist::package()?;
    let unpacked = tempfile::tempdir()?;
    let own = dist::unpack(&deb, unpacked.path())?;
    vagrant_box::files()?;
    web::fetch()?;
    let made = kind::node_image(&own)?;
    programs::build(&[Set::Metrics])?;
    let store = fill(&own)?;
    kind::on_cluster("power-cuts", "power-cuts", &[&made], |bed| {
        let staged = RunningRegistry::start(bed, &store)
            .and_then(|served| Ok((served, JoinVmFixture::new(bed, &deb, &own)?)));
        match staged {
            Ok((served, mut fixture)) => {
                fixture.mirror = Some(served.url.clone());
                fixture.run("power-cuts", &STEPS)
            }
            Err(error) => Counts::check("power-cuts: registry and machine's files", Err(error)),
        }
    })
}

/// Two images for each cut: what is pulled is never there already, but for the base that all have.
fn fill(own: &Path) -> Result<PathBuf> {
    let store = sh::target_dir().join("power-cuts-images");
    if store.exists() {
        fs::remove_dir_all(&store).with_context(|| format!("clear {}", store.display()))?;
    }
    let filling = Filling::start(&store, own)?;
    for round in 0..=CUTS {
        for (number, name) in ["storm-a", "storm-b"].into_iter().enumerate() {
            let seed = u64::from(round) * 2 + number as u64;
            let layer = |file: u64| {
                let bytes = gantry_tests::image::noise(seed * 8 + file, LAYER);
                Layer::default().file(&format!("data/{file}"), 0o644, bytes)
            };
            let layers = vec![Layer::busybox()?, layer(1), layer(2), layer(3)];
            let cmd = vec!["/bin/busybox".to_owned(), "sleep".into(), "1000000".into()];
            let built = Image { layers, cmd, ..Image::default() }.build()?;
            filling.push(&format!("localhost/tier/{name}:v{round}"), &built)?;
        }
    }
    Ok(store)
}

fn cuts(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    roll_out(fixture, 0)?;
    settle(fixture)?;
    for cut in 1..=CUTS {
        apply(fixture, cut)?;
        // From before the first byte is pulled until after the last pod has started, in steps of 0.7 s.
        let delay = Duration::from_millis(u64::from(cut * 7 % CUTS) * 700);
        thread::sleep(delay);
        let seen = fixture.bed.kubectl(&["get", "pods", "--selector=app=storm", "--no-headers"])?;
        let begin = Instant::now();
        let boot = fixture.machine()?.cut_power()?;
        let booted = begin.elapsed();
        fixture.nodes(|it| it.await_ready(&boot)).with_context(|| format!("cut {cut}"))?;
        let ready = begin.elapsed();
        let whole = settle(fixture).with_context(|| format!("cut {cut}"))?;
        println!(
            "cut {cut:>2}, {:>4.1} s after the new images were named ({}): ssh after {} s, node ready after {} s, pods after \
             {} s; {whole}",
            delay.as_secs_f64(),
            in_short(&seen),
            booted.as_secs(),
            ready.as_secs(),
            begin.elapsed().as_secs()
        );
    }
    Ok(())
}

/// How many pods were in each state.
fn in_short(listed: &str) -> String {
    let mut counted = std::collections::BTreeMap::<&str, usize>::new();
    for state in listed.lines().filter_map(|line| line.split_whitespace().nth(2)) {
        *counted.entry(state).or_default() += 1;
    }
    let words: Vec<String> = counted.iter().map(|(state, count)| format!("{count} {state}")).collect();
    words.join(", ")
}

fn apply(fixture: &JoinVmFixture<'_>, round: u32) -> Result<()> {
    let manifest = fixture.folder.join("storm.yaml");
    fs::write(&manifest, STORM.replace("ROUND", &round.to_string()))?;
    fixture.bed.kubectl(&["apply", "--filename", manifest.to_str().context("a path")?]).map(drop)
}

fn roll_out(fixture: &JoinVmFixture<'_>, round: u32) -> Result<()> {
    apply(fixture, round)?;
    await_rollout(fixture)
}

fn await_rollout(fixture: &JoinVmFixture<'_>) -> Result<()> {
    let words = ["rollout", "status", "deployment/storm", "--timeout=600s"];
    fixture.bed.kubectl(&words).map(drop)
}

/// The pods run, those of before are gone, and the store is whole; says what it has.
fn settle(fixture: &mut JoinVmFixture<'_>) -> Result<String> {
    await_rollout(fixture)?;
    let form = "jsonpath={.items[*].metadata.name}";
    let pods = ["kubectl", "get", "pods", "--selector=app=storm", "--output", form];
    fixture.bed.within(WAIT, "the earlier pods to go", &pods, |said| said.split_whitespace().count() == 3)?;
    store(fixture)
}

fn store(fixture: &mut JoinVmFixture<'_>) -> Result<String> {
    // It ends with 1 where anything at all is wrong with the machine: the row of the store is what counts here.
    let said = fixture.machine()?.run("gantry doctor --deep -o json || true")?;
    let rows: serde_json::Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let rows = rows.as_array().context("doctor's rows")?.iter().filter(|row| row["name"] == "store");
    let rows: Vec<_> = rows.collect();
    ensure!(!rows.is_empty() && rows.iter().all(|row| row["verdict"] == "OK"), "doctor --deep: {rows:?}");
    Ok(rows.iter().filter_map(|row| row["seen"].as_str()).collect::<Vec<_>>().join("; "))
}

fn without_network(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let bed = fixture.bed;
    let before = containers(bed, NODE)?;
    bed.run(&["ip", "link", "set", TAP, "down"])?;
    let begin = Instant::now();
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let ready = ["kubectl", "get", "node", NODE, "--output", ready];
    let seen = bed.within(WITHOUT_NETWORK, "the node to be missed", &ready, |said| said == "Unknown");
    println!("the API server calls the node Unknown after {} s", begin.elapsed().as_secs());
    thread::sleep(WITHOUT_NETWORK.saturating_sub(begin.elapsed()));
    bed.run(&["ip", "link", "set", TAP, "up"])?;
    let up = Instant::now();
    seen?;
    bed.within(WAIT, "the node to be ready again", &ready, |said| said == "True")?;
    println!("ready {} s after the network came back", up.elapsed().as_secs());
    settle(fixture)?;
    let after = containers(bed, NODE)?;
    ensure!(before == after, "the containers before:\n{before}\nand after:\n{after}");
    Ok(())
}

fn wrong_clock(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let bed = fixture.bed;
    let before = containers(bed, NODE)?;
    fixture.machine()?.run("date --set '+1 hour'")?;
    answers(fixture).context("an hour ahead")?;
    // The cluster's certificates are not valid yet for who lives an hour before them: the node may be missed, its pods not.
    fixture.machine()?.run("date --set '-2 hours'")?;
    thread::sleep(Duration::from_secs(60));
    fixture.machine()?.run("date --set '+1 hour'")?;
    answers(fixture).context("the right time again")?;
    let after = containers(bed, NODE)?;
    ensure!(before == after, "the containers before:\n{before}\nand after:\n{after}");
    Ok(())
}

/// The node's lease is renewed and the kubelet serves exec and logs.
fn answers(fixture: &mut JoinVmFixture<'_>) -> Result<()> {
    let bed = fixture.bed;
    let lease =
        ["get", "lease", "--namespace=kube-node-lease", NODE, "--output", "jsonpath={.spec.renewTime}"];
    let last = bed.kubectl(&lease)?;
    let words = [&["kubectl"], &lease[..]].concat();
    bed.within(WAIT, "the node's lease to be renewed", &words, |said| said != last)?;
    let form = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let ready = ["kubectl", "get", "node", NODE, "--output", form];
    bed.within(WAIT, "the node to be ready", &ready, |said| said == "True")?;
    let pods = bed.kubectl(&["get", "pods", "--selector=app=storm", "--output", "name"])?;
    let pod = pods.lines().next().context("no pod is there")?;
    let name = bed.kubectl(&["exec", pod, "--container=one", "--", "/bin/busybox", "hostname"])?;
    ensure!(pod.ends_with(&name), "exec in {pod} is in {name}");
    settle(fixture).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_counted_by_their_state() {
        let listed = "storm-1 2/2 Running 0 1s\nstorm-2 0/2 ContainerCreating 0 1s\nstorm-3 2/2 Running 1 1s";
        assert_eq!(in_short(listed), "1 ContainerCreating, 2 Running");
    }
}
