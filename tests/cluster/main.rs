//! The cluster tier: kubectl as a user types it, on a real control plane. One cluster for all specs, since one takes a
//! minute to come up; each has a namespace of its own and ends with the node as it found it. Run by
//! `cargo xtask test --tier cluster`, in a place of its own.
//!
//! GANTRY_CLUSTER_KUBELET (`gantry`, or `upstream` to prove a spec) and GANTRY_CLUSTER_RUNTIME (`containerd` or `gantry`)
//! say on what. Not libtest's own harness: that one could not end the cluster after the last test.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test program")]

mod deployment;
mod spec;
mod volumes;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use gantry_tests::cluster::network::Outside;
use gantry_tests::cluster::{Cluster, Options, kubelet, runtime};
use gantry_tests::node::tail;

use self::spec::Spec;

type Run = fn(&Spec<'_>) -> Result<()>;

/// Specs by name; the smoke tier has at most 25.
const SPECS: [(&str, Run); 5] = [
    ("deployment_of_nginx_is_rolled_out_served_and_deleted", deployment::nginx),
    ("exec_and_logs_reach_a_container", deployment::exec_and_logs),
    ("a_job_runs_to_its_end", deployment::job),
    ("a_changed_config_map_arrives_in_its_volume", volumes::config_map),
    ("a_pods_token_is_its_service_accounts", volumes::token),
];

fn main() -> ExitCode {
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let (mut passed, mut failed) = (0, 0);
    let mut count = |outcome: Result<()>, what: &str, start: Instant| {
        let seconds = start.elapsed().as_secs();
        match outcome {
            Ok(()) => {
                println!("test {what} ... ok ({seconds} s)");
                passed += 1;
            }
            Err(error) => {
                println!("test {what} ... FAILED ({seconds} s)\n{error:#}");
                failed += 1;
            }
        }
    };
    let start = Instant::now();
    let folder = tempfile::Builder::new().prefix("gc-").tempdir();
    match folder.context("make a folder").and_then(|folder| Ok((cluster(folder.path())?, folder))) {
        Ok((mut cluster, folder)) => {
            let wanted = |name: &str| filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()));
            for (name, body) in SPECS.into_iter().filter(|(name, _)| wanted(name)) {
                let start = Instant::now();
                let outcome = Spec::run(&cluster, name, body).and_then(|()| cluster.check());
                if outcome.is_err() {
                    eprintln!("{}", tail(&folder.path().join("log/kubelet.log")));
                }
                count(outcome, name, start);
            }
            let start = Instant::now();
            let ended = cluster.end();
            count(ended.and(folder.close().context("remove the folder")), "the_cluster_ends", start);
        }
        Err(error) => count(Err(error), "the_cluster_starts", start),
    }
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; 0 ignored",
        if failed == 0 { "ok" } else { "FAILED" }
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cluster(folder: &Path) -> Result<Cluster> {
    let kubelet = match std::env::var("GANTRY_CLUSTER_KUBELET").as_deref() {
        Ok("upstream") => kubelet::Kind::Upstream,
        Ok("gantry") | Err(_) => kubelet::Kind::Gantry,
        Ok(other) => bail!("GANTRY_CLUSTER_KUBELET={other}: gantry or upstream"),
    };
    let runtime = match std::env::var("GANTRY_CLUSTER_RUNTIME").as_deref() {
        Ok("containerd") | Err(_) => runtime::Kind::Containerd,
        Ok("gantry") => runtime::Kind::Gantry,
        Ok(other) => bail!("GANTRY_CLUSTER_RUNTIME={other}: containerd or gantry"),
    };
    println!("a cluster with {kubelet:?} on {runtime:?}");
    Cluster::start(Options {
        folder: folder.to_owned(),
        runtime,
        kubelet: Some(kubelet),
        addons: true,
        number: 0,
        outside: Outside::Closed,
    })
}
