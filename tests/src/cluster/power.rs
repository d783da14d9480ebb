//! A power cut of a cluster's node, while its control plane runs on: everything that runs there is killed, mounts and what
//! a tmpfs would lose are gone, and the boot has another ID. Owns what power off takes away. The pods' bridge stays, which
//! CNI plugins take as they find it. Called by the tier disruption.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use super::isolation::BOOT_ID;
use super::{Cluster, remove_cgroups};
use crate::leakcheck::{mounts, tagged_cgroups};
use crate::poll::poll;
use crate::proc;

/// Below these a node mounts; what is bound to the folders themselves is the disk.
const MOUNTED_BELOW: [&str; 4] = ["/run/", "/var/lib/kubelet/", "/var/lib/containerd/", "/var/lib/gantry/"];

impl Cluster {
    /// Cuts the node's power and puts it on again; returns when the runtime is ready and the kubelet has been started.
    ///
    /// # Errors
    /// When something cannot be killed, unmounted, removed or started.
    pub fn cycle_power(&mut self, boot_id: &str) -> Result<()> {
        self.kubelet()?.process().kill()?;
        self.ground.runtime.process().kill()?;
        kill_all()?;
        remove_cgroups()?;
        unmount_all()?;
        for entry in std::fs::read_dir("/run").context("read /run")? {
            let path = entry.context("read /run")?.path();
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.with_context(|| format!("remove {}", path.display()))?;
        }
        let file = self.folder().join("boot-id");
        std::fs::write(&file, format!("{boot_id}\n")).with_context(|| file.display().to_string())?;
        if !mounts()?.iter().any(|mount| mount.point == Path::new(BOOT_ID)) {
            mount_bind(&file, BOOT_ID).with_context(|| format!("bind {BOOT_ID}"))?;
        }
        self.ground.runtime.take_over()?;
        self.kubelet()?.process().restart()
    }
}

/// Monitors and shims first: of what dies under their eyes they would write a record.
fn kill_all() -> Result<()> {
    let shims = || -> Result<Vec<i32>> {
        let all = proc::all()?.into_iter();
        Ok(all.filter(|one| one.name.starts_with("containerd-shim")).map(|one| one.pid).collect())
    };
    shims()?.into_iter().try_for_each(proc::kill)?;
    poll("the node's processes to end", Duration::from_secs(20), || {
        let text = |error: anyhow::Error| format!("{error:#}");
        let mut found = Vec::new();
        for tag in ["gantry-monitors", "kubepods"] {
            for folder in tagged_cgroups(tag).map_err(text)? {
                let members = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
                found.extend(members.lines().filter_map(|line| line.parse::<i32>().ok()));
            }
        }
        found.iter().copied().try_for_each(proc::kill).map_err(text)?;
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    })
}

fn unmount_all() -> Result<()> {
    let is_nodes =
        |path: &Path| MOUNTED_BELOW.iter().any(|folder| path.to_string_lossy().starts_with(folder));
    for mount in mounts()?.iter().rev().filter(|mount| is_nodes(&mount.point)) {
        let at = || format!("unmount {}", mount.point.display());
        unmount(&mount.point, UnmountFlags::DETACH).with_context(at)?;
    }
    Ok(())
}
