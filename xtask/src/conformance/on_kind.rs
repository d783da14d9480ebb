//! The suite e2e on a kind cluster whose nodes are Gantry's, the control plane's included: `cargo xtask conformance e2e
//! --on-kind`. Owns that cluster and where the specs' images come from. Called by `conformance`.

use std::path::Path;

use anyhow::{Result, bail, ensure};
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
    ensure!(wanted.suite == Name::E2e, "a kind cluster is for e2e: `node` starts a kubelet itself");
    let made = kind::node_image(own)?;
    let counts = kind::on_cluster("conformance", CLUSTER, &[&made, &made], |bed| {
        Counts::check("conformance: the specs", specs(bed, wanted, suite, folder))
    })?;
    if counts.failed > 0 {
        bail!("not green");
    }
    Ok(())
}

fn specs(bed: &Bed, wanted: &Wanted, suite: &Suite, folder: &Path) -> Result<()> {
    let served = RunningRegistry::start(bed, &images::store()?)?;
    for node in [bed.control_plane(), format!("{CLUSTER}-worker")] {
        served.mirror(bed, &node)?;
    }
    let scratch = tempfile::Builder::new().prefix("gc-").tempdir()?;
    // Of loopback in the control plane's container, and so of the engine's namespaces: kind forwards it.
    let kubeconfig = scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, bed.run(&["kind", "get", "kubeconfig", "--name", CLUSTER])?)?;
    let attempt = |choice: &Choice, procs: usize, folder: &Path| {
        choice.write(folder)?;
        let called = Called {
            suite: Name::E2e,
            out: folder.to_owned(),
            runtime: RuntimeName::Gantry,
            kubelet: KubeletName::Gantry,
            procs,
            serial: false,
            flags: suite.flags.clone(),
        };
        let run = tempfile::Builder::new().prefix("gc-").tempdir()?;
        let ended = ginkgo(bed.command()?, &called, run.path(), "e2e.test", &e2e_flags(&kubeconfig, folder)?);
        SuiteRun::read(folder, ended)
    };
    let (table, wrongs) = attempts(wanted, suite, folder, attempt)?;
    let text = table.markdown();
    std::fs::write(folder.join("table.md"), &text)?;
    println!("{text}\n{}", folder.join("table.md").display());
    ensure!(table.is_green() && wrongs.is_empty(), "not green {}", wrongs.join("; "));
    Ok(())
}
