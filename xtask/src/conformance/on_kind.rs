//! The suites of e2e.test on a kind cluster whose nodes have one kubelet, the control plane's included: `cargo xtask
//! conformance conformance`, and `e2e --on-kind`. Owns that cluster, where the specs' images come from, and the files that
//! the conformance programme takes. Called by `conformance`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use gantry_tests::cluster::images;

use super::call::{Called, e2e_flags, ginkgo};
use super::suites::{Choice, Suite};
use super::{Name, SuiteRun, Wanted, attempts};
use crate::cluster::{KubeletName, RuntimeName};
use crate::kind::registry::RunningRegistry;
use crate::kind::{self, Bed};
use crate::summary::Counts;

const CLUSTER: &str = "conformance";

/// Makes the cluster, runs what is chosen, writes the table, takes the cluster away.
pub(super) fn run(wanted: &Wanted, suite: &Suite, own: &Path, folder: &Path) -> Result<()> {
    ensure!(wanted.suite != Name::Node, "a kind cluster is for e2e.test: `node` starts a kubelet itself");
    ensure!(
        wanted.suite != Name::CsiHostpath,
        "the tests' CSI driver has one node: csi-hostpath runs without --on-kind"
    );
    let made = match wanted.kubelet {
        KubeletName::Gantry => kind::node_image(own)?,
        KubeletName::Upstream => kind::upstream_image(own)?,
        KubeletName::None => bail!("a kind cluster has kubelets: --kubelet gantry or upstream"),
    };
    let nodes = vec![&made; usize::from(workers(wanted)) + 1];
    let counts = kind::on_cluster("conformance", CLUSTER, &nodes, |bed| {
        Counts::check("conformance: the specs", specs(bed, wanted, suite, folder))
    })?;
    if counts.failed > 0 {
        bail!("not green");
    }
    Ok(())
}

/// Some specs want two nodes that take pods.
fn workers(wanted: &Wanted) -> u8 {
    wanted.nodes.unwrap_or(if wanted.suite == Name::Conformance { 2 } else { 1 })
}

fn specs(bed: &Bed, wanted: &Wanted, suite: &Suite, folder: &Path) -> Result<()> {
    let served = RunningRegistry::start(bed, &images::store()?)?;
    for node in bed.run(&["kind", "get", "nodes", "--name", CLUSTER])?.lines() {
        served.mirror(bed, node)?;
    }
    let scratch = tempfile::Builder::new().prefix("gc-").tempdir()?;
    // Of loopback in the control plane's container, and so of the engine's namespaces: kind forwards it.
    let kubeconfig = scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, bed.run(&["kind", "get", "kubeconfig", "--name", CLUSTER])?)?;
    let attempt = |choice: &Choice, procs: usize, folder: &Path| {
        choice.write(folder)?;
        let called = Called {
            suite: wanted.suite,
            out: folder.to_owned(),
            runtime: RuntimeName::Gantry,
            kubelet: wanted.kubelet,
            procs,
            serial: false,
            minutes: None,
            disk: None,
            in_vm: false,
            flags: suite.flags.clone(),
        };
        let run = tempfile::Builder::new().prefix("gc-").tempdir()?;
        let flags = e2e_flags(&kubeconfig, folder, workers(wanted))?;
        let ended = ginkgo(bed.command()?, &called, run.path(), "e2e.test", &flags);
        SuiteRun::read(folder, ended)
    };
    let (table, wrongs) = attempts(wanted, suite, folder, attempt)?;
    let text = table.markdown();
    std::fs::write(folder.join("table.md"), &text)?;
    if wanted.suite == Name::Conformance {
        keep_for_the_programme(folder)?;
    }
    println!("{text}\n{}", folder.join("table.md").display());
    ensure!(table.is_green() && wrongs.is_empty(), "not green {}", wrongs.join("; "));
    Ok(())
}

/// The conformance programme takes `junit_01.xml`, which the suite writes there itself, and its log as `e2e.log`
/// (github.com/cncf/k8s-conformance, instructions.md).
fn keep_for_the_programme(folder: &Path) -> Result<()> {
    let junit = folder.join("junit_01.xml");
    ensure!(junit.exists(), "the suite left no {}", junit.display());
    std::fs::copy(folder.join("suite.log"), folder.join("e2e.log")).context("keep the suite's log")?;
    Ok(())
}
