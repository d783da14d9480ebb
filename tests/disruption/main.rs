//! The tier disruption: what a node's pods live through while its kubelet is swapped, killed or rotates, and while the API
//! server is away. A cluster for each spec, since each disturbs all of it. Minutes long, so CI leaves it out: run by
//! `cargo xtask test --tier disruption`, one of them with `--filter NAME`.
//!
//! GANTRY_CLUSTER_KUBELET (`gantry`, or `upstream` to prove a spec) and GANTRY_CLUSTER_RUNTIME (`containerd` or `gantry`)
//! say on what; GANTRY_SWAP_SECONDS, GANTRY_KILL_SECONDS, GANTRY_AWAY_SECONDS and GANTRY_ROTATE_SECONDS how long.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test program")]

mod away;
mod fixture;
mod kill;
mod pods;
mod records;
mod requests;
mod resized;
mod rotate;
mod steps;
mod swap;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gantry_tests::cluster::{Join, harness};

use self::fixture::ClusterFixture;

/// A spec and the node it begins with.
struct DisruptionSpec {
    name: &'static str,
    /// The upstream kubelet first, whichever is proven
    upstream_first: bool,
    join: fn() -> Result<Join>,
    run: fn(&mut ClusterFixture) -> Result<()>,
}

const SPECS: [DisruptionSpec; 8] = [
    DisruptionSpec {
        name: "swap_of_kubelets_disturbs_no_pod",
        upstream_first: true,
        join: join_by_kubeconfig,
        run: swap::run,
    },
    DisruptionSpec {
        name: "swap_of_kubelets_keeps_resized_and_evicted_pods",
        upstream_first: true,
        join: join_by_kubeconfig,
        run: resized::run,
    },
    DisruptionSpec {
        name: "kill_of_the_kubelet_disturbs_no_container",
        upstream_first: false,
        join: join_by_kubeconfig,
        run: kill::run,
    },
    DisruptionSpec {
        name: "away_api_server_stops_no_pod",
        upstream_first: false,
        join: join_by_kubeconfig,
        run: away::run,
    },
    DisruptionSpec {
        name: "rotate_of_certificates_ends_no_session",
        upstream_first: false,
        join: join_by_request,
        run: rotate::run,
    },
    DisruptionSpec {
        name: "requests_are_no_more_than_upstreams",
        upstream_first: true,
        join: join_by_kubeconfig,
        run: requests::run,
    },
    DisruptionSpec {
        name: "csi_volumes_lose_no_acknowledged_record",
        upstream_first: false,
        join: join_by_kubeconfig,
        run: records::run,
    },
    DisruptionSpec {
        name: "csi_volumes_outlive_a_kubelet_that_is_killed_at_each_step",
        upstream_first: false,
        join: join_by_kubeconfig,
        run: steps::run,
    },
];

fn join_by_kubeconfig() -> Result<Join> {
    Ok(Join::Given)
}

fn join_by_request() -> Result<Join> {
    Ok(Join::Asked(seconds("GANTRY_ROTATE_SECONDS", 180)?))
}

/// How long something lasts: by the variable, or as here.
fn seconds(variable: &str, default: u64) -> Result<Duration> {
    let given = std::env::var(variable).ok().map(|text| text.parse());
    let seconds = given.transpose().with_context(|| format!("{variable} is a number of seconds"))?;
    Ok(Duration::from_secs(seconds.unwrap_or(default)))
}

fn main() -> ExitCode {
    let filter = harness::filter(std::env::args().skip(1)).unwrap_or_default();
    if !SPECS.iter().any(|spec| spec.name.contains(&filter)) {
        eprintln!("no spec has {filter:?} in its name");
        return ExitCode::FAILURE;
    }
    let (mut passed, mut failed) = (0, 0);
    for spec in SPECS.iter().filter(|spec| spec.name.contains(&filter)) {
        let start = Instant::now();
        println!("--- {}", spec.name);
        let outcome = run(spec);
        let seconds = start.elapsed().as_secs();
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("test {} ... ok ({seconds} s)", spec.name);
            }
            Err(error) => {
                failed += 1;
                println!("{}", harness::failed(spec.name, seconds, &format!("{error:#}")));
            }
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(spec: &DisruptionSpec) -> Result<()> {
    let mut fixture = ClusterFixture::make(spec.upstream_first, (spec.join)()?)?;
    let outcome = (spec.run)(&mut fixture).and_then(|()| fixture.is_well());
    if outcome.is_err() {
        eprintln!("{}", fixture.describe());
    }
    match (outcome, fixture.end()) {
        (outcome, Ok(())) => outcome,
        (Ok(()), Err(error)) => Err(error.context("end the cluster")),
        (Err(error), Err(end)) => bail!("{error:#}\nand the cluster did not end: {end:#}"),
    }
}
