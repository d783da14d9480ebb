//! The machine's place in the network of kind's nodes: what Vagrant asks of `vagrant/cluster.sh`. Owns the tap in docker's
//! bridge. Called by the tier's steps.

use anyhow::{Context, Result};

use super::CLUSTER;
use crate::kind::Bed;
use crate::sh;

/// Where a machine's second card is.
#[derive(Debug)]
pub(super) struct Place {
    /// The link that qemu takes.
    pub(super) tap: &'static str,
    /// ADDRESS/PREFIX.
    pub(super) network: String,
}

impl Place {
    /// Makes the link, in docker's bridge. It goes with docker's namespaces.
    pub(super) fn make(bed: &Bed) -> Result<Self> {
        let tap = "gantry-vm";
        let bridge = cluster(bed, &["bridge", CLUSTER])?;
        for words in [
            &["ip", "tuntap", "add", tap, "mode", "tap"][..],
            &["ip", "link", "set", tap, "master", &bridge, "up"],
        ] {
            bed.run(words)?;
        }
        Ok(Self { tap, network: cluster(bed, &["address", CLUSTER, "1"])? })
    }

    pub(super) fn address(&self) -> &str {
        self.network.split('/').next().unwrap_or(&self.network)
    }
}

/// Asks the script that Vagrant asks.
pub(super) fn cluster(bed: &Bed, words: &[&str]) -> Result<String> {
    let script = sh::root().join("vagrant/cluster.sh");
    let script = script.to_str().context("a path")?;
    bed.run(&[&["sh", script], words].concat())
}

/// The address of the node that kind made.
pub(super) fn control_plane(bed: &Bed) -> Result<String> {
    let form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
    bed.run(&["docker", "inspect", "--format", form, &container()])
}

/// That node's container, and its name in the cluster.
pub(super) fn container() -> String {
    format!("{CLUSTER}-control-plane")
}
