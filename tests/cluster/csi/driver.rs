//! The tests' CSI driver on the cluster's node: installed, waited for, held up, and removed. What is installed is in
//! `gantry_tests::cluster::csi`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::csi::{CsiInstall, DRIVER_CONTAINER, DRIVER_SET, is_given_back};
use gantry_tests::leakcheck::mounts;
use gantry_tests::poll::poll_every;
use serde_json::Value;

use crate::spec::{PATIENCE, Spec};

/// A driver that runs on the node.
pub(super) struct InstalledDriver<'a> {
    spec: &'a Spec<'a>,
    /// Of the driver and of its StorageClass.
    pub(super) name: String,
    installed: CsiInstall,
}

impl<'a> InstalledDriver<'a> {
    /// Installs it and waits until the node has it.
    pub(super) fn install(spec: &'a Spec<'a>, name: &str) -> Result<Self> {
        let installed = CsiInstall {
            name: name.to_owned(),
            namespace: spec.namespace.clone(),
            state: spec.folder()?.join("state"),
            attach: true,
            binding: "WaitForFirstConsumer",
            server: None,
        };
        let driver = Self { spec, name: name.to_owned(), installed };
        driver.installed.beside().into_iter().try_for_each(|object| spec.apply_beside(object))?;
        driver.installed.inside().into_iter().try_for_each(|object| spec.apply(object))?;
        spec.kubectl(&["rollout", "status", DRIVER_SET, "--timeout=180s"])?;
        driver.await_on_node(true)?;
        Ok(driver)
    }

    /// Waits until the node's CSINode names it, or does no more.
    pub(super) fn await_on_node(&self, wanted: bool) -> Result<()> {
        let has = |names: &str| names.split(' ').any(|name| name == self.name) == wanted;
        let what = format!("csinode/{}", self.spec.node());
        self.spec.await_that(&[&what], "{.spec.drivers[*].name}", has).map(drop)
    }

    /// Kills the driver, and keeps it from starting until [`Self::release`].
    pub(super) fn kill_and_hold(&self) -> Result<()> {
        self.installed.hold()?;
        self.installed.kill()
    }

    /// Lets the driver start.
    pub(super) fn release(&self) -> Result<()> {
        self.installed.release()
    }

    /// What the driver knows of its volumes.
    pub(super) fn volumes(&self) -> Result<Vec<Value>> {
        self.installed.volumes()
    }

    fn await_volumes(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Result<()> {
        poll_every(Duration::from_millis(500), what, PATIENCE, || {
            let all = self.volumes().map_err(|error| format!("{error:#}"))?;
            if wanted(&all) { Ok(()) } else { Err(format!("{all:?}")) }
        })
    }

    /// Waits until no volume is published, staged or attached, and the cluster has no attachment.
    pub(super) fn await_idle(&self) -> Result<()> {
        self.await_volumes("the volumes to be given back", |all| all.iter().all(is_given_back))?;
        self.spec.await_value(&["volumeattachments"], &self.of_attachments("metadata.name"), "")?;
        let in_use = |all: &str| !all.contains(&self.name);
        let node = format!("node/{}", self.spec.node());
        self.spec.await_that(&[&node], "{.status.volumesInUse}", in_use).map(drop)
    }

    /// A field of each of its VolumeAttachments, by JSONPath.
    pub(super) fn of_attachments(&self, field: &str) -> String {
        self.installed.of_attachments(field)
    }

    /// Waits until it has no volume at all.
    pub(super) fn await_empty(&self) -> Result<()> {
        self.await_volumes("the volumes to be deleted", <[Value]>::is_empty)
    }

    /// The driver was never asked out of turn, nothing of it is left below the kubelet's folder; then it goes.
    pub(super) fn remove(self) -> Result<()> {
        let said = self.spec.kubectl(&["logs", DRIVER_SET, "--container", DRIVER_CONTAINER])?;
        let refused = said.lines().find(|line| line.contains("FailedPrecondition"));
        ensure!(refused.is_none(), "the driver was asked out of turn: {refused:?}");
        let own = self.installed.staging_folder();
        poll_every(Duration::from_millis(500), "the node to be clean of volumes", PATIENCE, || {
            let text = |error: anyhow::Error| format!("{error:#}");
            let below = match std::fs::read_dir(&own) {
                Ok(entries) => entries.count(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
                Err(error) => return Err(error.to_string()),
            };
            let all = mounts().map_err(text)?;
            let mounted = all.iter().find(|mount| mount.point.starts_with(&own));
            match (below, mounted) {
                (0, None) => Ok(()),
                _ => Err(format!("{below} folders below {}, {mounted:?}", own.display())),
            }
        })?;
        self.spec.kubectl(&["delete", DRIVER_SET, "--timeout=60s"])?;
        self.await_on_node(false)?;
        let socket = self.installed.socket_folder();
        std::fs::remove_dir_all(&socket).with_context(|| socket.display().to_string())
    }
}
