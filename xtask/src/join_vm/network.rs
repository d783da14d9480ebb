//! The machine's place in the network of kind's nodes: what Vagrant asks of `vagrant/cluster.sh`. Owns the tap in docker's
//! bridge. Called by the tier's steps.

use anyhow::Result;

use crate::kind::Bed;

/// The link in docker's bridge that a machine's second card leads to.
pub(super) const TAP: &str = "gantry-vm";

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
        let tap = TAP;
        let bridge = bed.vagrant_script(&["bridge", bed.name()])?;
        for words in [
            &["ip", "tuntap", "add", tap, "mode", "tap"][..],
            &["ip", "link", "set", tap, "master", &bridge, "up"],
        ] {
            bed.run(words)?;
        }
        Ok(Self { tap, network: bed.vagrant_script(&["address", bed.name(), "1"])? })
    }

    pub(super) fn address(&self) -> &str {
        self.network.split('/').next().unwrap_or(&self.network)
    }
}
