//! The cluster tier: kubectl as a user types it, on a real control plane. One cluster for all specs, since one takes a
//! minute to come up; each has a namespace of its own and ends with the node as it found it. Run by
//! `cargo xtask test --tier cluster`, in a place of its own; eleven of them are the tier `smoke`.
//!
//! GANTRY_CLUSTER_KUBELET (`gantry`, or `upstream` to prove a spec) and GANTRY_CLUSTER_RUNTIME (`containerd` or `gantry`)
//! say on what. Not libtest's own harness: that one could not end the cluster after the last test.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test program")]

mod csi;
mod deployment;
mod devices;
mod health;
mod jobs;
mod requests;
mod scaling;
mod served;
mod sets;
mod spec;
mod streams;
mod volumes;
mod watching;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use gantry_tests::cluster::network::Outside;
use gantry_tests::cluster::{Cluster, ClusterOptions, Join, harness, kubelet, runtime};
use gantry_tests::node::tail;

use self::spec::Spec;

type SpecRun = fn(&Spec<'_>) -> Result<()>;

/// Specs by name, those that take longest first. They run beside each other.
const BESIDE: [(&str, SpecRun); 31] = [
    ("pods_above_limits_of_local_storage_are_evicted", health::local_storage),
    ("an_autoscaler_follows_the_load_up_and_down", scaling::autoscaler),
    ("a_cron_job_ticks_with_the_clock", jobs::cron_job),
    ("a_csi_volume_grows_under_its_pod_and_is_measured", csi::growth::growth),
    ("a_csi_drivers_volumes_follow_a_stateful_sets_pods", csi::stateful_set),
    ("an_inline_csi_volume_lives_as_long_as_its_pod", csi::inline),
    ("a_stateful_sets_volumes_follow_their_pods", sets::stateful_set),
    ("a_changed_config_map_arrives_in_its_volume", volumes::config_map),
    ("a_device_plugins_devices_are_given_to_pods", devices::device_plugin),
    ("top_measures_pods_and_the_node", scaling::top),
    ("probes_start_serve_and_restart_a_container", health::probes),
    ("deployment_of_nginx_is_rolled_out_served_and_deleted", deployment::nginx),
    ("a_rollout_that_cannot_pull_is_undone", deployment::rollout),
    ("a_manifest_is_applied_changed_and_deleted", deployment::applied),
    ("a_container_out_of_memory_is_killed_and_says_so", health::out_of_memory),
    ("a_daemon_set_follows_the_nodes_labels", sets::daemon_set),
    ("limits_hold_a_container", health::limits),
    ("debug_adds_a_container_to_a_running_pod", streams::debug),
    ("debug_sees_the_processes_of_its_target", streams::debug_target),
    ("files_are_copied_in_both_directions", streams::copy),
    ("ports_are_forwarded_to_a_pod_and_a_service", streams::port_forward),
    ("a_followed_log_ends_with_its_container", streams::logs),
    ("a_shell_on_a_terminal_gets_keys_and_sizes", streams::terminal),
    ("attach_reaches_a_containers_stdin", streams::attach),
    ("a_watch_shows_a_pod_come_and_go", watching::watch),
    ("describe_tells_a_pods_events_in_order", watching::describe),
    ("exec_and_logs_reach_a_container", deployment::exec_and_logs),
    ("a_job_runs_to_its_end", jobs::job),
    ("a_pods_requests_are_few", requests::few),
    ("a_pods_token_is_its_service_accounts", volumes::token),
    ("the_tests_csi_driver_passes_the_sanity_suite", csi::sanity),
];

/// Those that CI runs on each change, with the filter `smoke`: one of each kind, sturdy and short.
const SMOKE: [&str; 11] = [
    "a_changed_config_map_arrives_in_its_volume",
    "probes_start_serve_and_restart_a_container",
    "deployment_of_nginx_is_rolled_out_served_and_deleted",
    "a_container_out_of_memory_is_killed_and_says_so",
    "a_daemon_set_follows_the_nodes_labels",
    "files_are_copied_in_both_directions",
    "ports_are_forwarded_to_a_pod_and_a_service",
    "exec_and_logs_reach_a_container",
    "a_job_runs_to_its_end",
    "a_pods_requests_are_few",
    "a_pods_token_is_its_service_accounts",
];

/// After the others, one by one: these take the node from everyone.
const ALONE: [(&str, SpecRun); 3] = [
    ("a_raw_block_csi_volume_is_a_device_of_its_pods", csi::block::block),
    ("a_pod_ends_when_its_killed_csi_driver_is_back", csi::killed),
    ("a_drained_node_is_empty_until_it_is_uncordoned", scaling::drain),
];

/// How many run at a time: they wait most of theirs.
const THREADS: usize = 5;

/// What came of specs so far.
#[derive(Debug, Default)]
struct Tally {
    passed: AtomicUsize,
    failed: AtomicUsize,
}

impl Tally {
    /// Says it as libtest does, all of one at once.
    fn count(&self, outcome: Result<()>, what: &str, start: Instant) {
        let seconds = start.elapsed().as_secs();
        let (counter, said) = match outcome {
            Ok(()) => (&self.passed, format!("test {what} ... ok ({seconds} s)")),
            Err(error) => (&self.failed, harness::failed(what, seconds, &format!("{error:#}"))),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        println!("{said}");
    }
}

fn main() -> ExitCode {
    let known = |name: &&str| BESIDE.iter().chain(&ALONE).any(|(other, _)| other == name);
    if let Some(name) = SMOKE.iter().find(|name| !known(name)) {
        eprintln!("the smoke specs name {name:?}, which is none");
        return ExitCode::FAILURE;
    }
    let filter = harness::filter(std::env::args().skip(1));
    let all = || BESIDE.iter().chain(&ALONE);
    if let Some(filter) =
        filter.as_deref().filter(|filter| !all().any(|(name, _)| is_wanted(name, Some(filter))))
    {
        eprintln!("no spec has {filter:?} in its name");
        return ExitCode::FAILURE;
    }
    let tally = Tally::default();
    let start = Instant::now();
    let folder = tempfile::Builder::new().prefix("gc-").tempdir();
    match folder.context("make a folder").and_then(|folder| Ok((cluster(folder.path())?, folder))) {
        Ok((mut cluster, folder)) => {
            println!("the cluster is ready ({} s)", start.elapsed().as_secs());
            specs(&mut cluster, filter.as_deref(), &tally);
            if tally.failed.load(Ordering::Relaxed) > 0 {
                eprintln!("{}", tail(&folder.path().join("log/kubelet.log")));
            }
            let start = Instant::now();
            let ended = cluster.end();
            tally.count(ended.and(folder.close().context("remove the folder")), "the_cluster_ends", start);
        }
        Err(error) => tally.count(Err(error), "the_cluster_starts", start),
    }
    let (passed, failed) = (tally.passed.into_inner(), tally.failed.into_inner());
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether the filter is for this spec: a part of its name, or `smoke`.
fn is_wanted(name: &str, filter: Option<&str>) -> bool {
    match filter {
        None => true,
        Some("smoke") => SMOKE.contains(&name),
        Some(part) => name.contains(part),
    }
}

/// Those that the filter is for.
fn specs(cluster: &mut Cluster, filter: Option<&str>, tally: &Tally) {
    let wanted = |(name, _): &&(&str, SpecRun)| is_wanted(name, filter);
    let left = Mutex::new(BESIDE.iter().filter(wanted));
    let shared: &Cluster = cluster;
    let work = || {
        let next = || left.lock().ok()?.next();
        while let Some((name, body)) = next() {
            let start = Instant::now();
            tally.count(Spec::run(shared, name, *body), name, start);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    for (name, body) in ALONE.iter().filter(wanted) {
        let start = Instant::now();
        tally.count(Spec::run(cluster, name, *body), name, start);
    }
    let start = Instant::now();
    tally.count(cluster.check(), "every_program_of_the_cluster_runs_on", start);
}

fn cluster(folder: &Path) -> Result<Cluster> {
    let kubelet = match std::env::var("GANTRY_CLUSTER_KUBELET").as_deref() {
        Ok("upstream") => kubelet::KubeletKind::Upstream,
        Ok("gantry") | Err(_) => kubelet::KubeletKind::Gantry,
        Ok(other) => bail!("GANTRY_CLUSTER_KUBELET={other}: gantry or upstream"),
    };
    let runtime = match std::env::var("GANTRY_CLUSTER_RUNTIME").as_deref() {
        Ok("containerd") | Err(_) => runtime::RuntimeKind::Containerd,
        Ok("gantry") => runtime::RuntimeKind::Gantry,
        Ok(other) => bail!("GANTRY_CLUSTER_RUNTIME={other}: containerd or gantry"),
    };
    println!("a cluster with {kubelet:?} on {runtime:?}");
    Cluster::start(ClusterOptions {
        folder: folder.to_owned(),
        runtime,
        kubelet: Some(kubelet),
        addons: true,
        number: 0,
        outside: Outside::Closed,
        join: Join::Given,
        settings: Default::default(),
    })
}
