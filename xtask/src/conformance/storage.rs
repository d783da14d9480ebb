//! The tests' CSI driver on a cluster on which upstream's storage suites run: installed, and told to the suite by a
//! definition (`tests/suites/csi-hostpath.yaml`). Owns both; what the driver is, is in the harness. Called by `call`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::cluster::Cluster;
use gantry_tests::cluster::csi::{CsiInstall, DRIVER_SET};
use serde_json::json;

use crate::sh;

/// As the definition names it.
const DRIVER: &str = "suite.gantry.test";
const NAMESPACE: &str = "csi-driver";
const DEFINITION: &str = "tests/suites/csi-hostpath.yaml";
const PATIENCE: Duration = Duration::from_secs(180);

/// Installs the driver, waits until the node has it, and returns the suite's flag for it.
pub(super) fn install(cluster: &Cluster, folder: &Path) -> Result<String> {
    let driver = CsiInstall {
        name: DRIVER.to_owned(),
        namespace: NAMESPACE.to_owned(),
        state: folder.join("csi"),
        attach: true,
        binding: "Immediate",
        server: None,
    };
    let kubectl = cluster.kubectl();
    kubectl.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }))?;
    for object in driver.beside().into_iter().chain(driver.inside()) {
        kubectl.apply(&object)?;
    }
    let rollout = ["rollout", "status", DRIVER_SET, "--namespace", NAMESPACE, "--timeout=180s"];
    kubectl.run(&rollout).context("start the driver")?;
    let node = format!("csinode/{}", cluster.node());
    let has = |names: &str| names.split(' ').any(|name| name == DRIVER);
    kubectl.await_value(&["get", &node], "{.spec.drivers[*].name}", PATIENCE, has)?;
    Ok(format!("--storage.testdriver={}", sh::root().join(DEFINITION).display()))
}
