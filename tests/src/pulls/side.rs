//! A node of the pull bench: one runtime with one setting, in a cgroup of its own. Owns its start, a measured
//! pull and what makes the next one cold; compares nothing. Called by `pulls`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gantry_proto::cri;
use serde::Serialize;

use super::meter::Meter;
use super::podman::Podman;
use crate::containerd::{Containerd, ContainerdOptions, Tuning};
use crate::node::{Node, Programs, Roots};
use crate::poll::poll;
use crate::registry::Registry;

/// Longer than any of the bench's images takes on a slow disk.
const LONG: Duration = Duration::from_secs(1200);
/// Bytes that may be left of an image when the next pull begins: a database that has grown.
const LITTLE: u64 = 8 << 20;

/// What of containerd's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// As it comes, without igzip and unpigz.
    Default,
    /// igzip, ten downloads, four unpacks, fetched in pieces.
    Tuned,
    /// As it comes, and durable when the pull is over.
    Synced,
}

/// One node.
#[derive(Debug)]
pub(super) struct PullSide {
    pub(super) name: String,
    runtime: PullRuntime,
    // After the runtime, which lives in it.
    meter: Meter,
    _scratch: tempfile::TempDir,
}

#[derive(Debug)]
enum PullRuntime {
    Gantry(Box<Node>),
    Containerd(Box<Containerd>, Peer),
    Podman(Podman),
}

/// One pull.
#[derive(Debug, Clone, Serialize)]
pub struct Pull {
    /// Seconds until containers can be made of it.
    pub usable: f64,
    /// Seconds until a power cut does no harm; None where nobody says.
    pub durable: Option<f64>,
    /// Seconds of processor time of the node's processes until usable.
    pub processor: f64,
    /// Bytes of anonymous memory of all its processes, at the most.
    pub memory: u64,
    /// Bytes on disk when all is written.
    pub disk: u64,
}

impl PullSide {
    /// Our runtime without these optimisations.
    pub(super) fn gantry(disabled: &[String]) -> Result<Self> {
        let name = match disabled {
            [] => "gantry".to_owned(),
            some => format!("gantry without {}", some.join(", ")),
        };
        let scratch = tempfile::Builder::new().prefix("gantry-bench-").tempdir()?;
        let meter = Meter::new(&cgroup_name(scratch.path()))?;
        let mut programs = Programs::built()?;
        let wrapper = scratch.path().join("gantry");
        meter.write_wrapper(&programs.gantry, &wrapper)?;
        programs.gantry = wrapper;
        let mut node = Node::start_with(Roots::new()?, programs)?;
        if !disabled.is_empty() {
            node.restart_with(&[format!("--pull-without={}", disabled.join(","))])?;
        }
        Ok(Self { name, runtime: PullRuntime::Gantry(Box::new(node)), meter, _scratch: scratch })
    }

    /// The peer with one of its settings; `igzip` is the folder of Debian's package.
    pub(super) fn containerd(peer: Peer, registry: &Registry, igzip: &Path) -> Result<Self> {
        let name = match peer {
            Peer::Default => "containerd",
            Peer::Tuned => "containerd tuned",
            Peer::Synced => "containerd synced",
        };
        let scratch = tempfile::Builder::new().prefix("gantry-bench-").tempdir()?;
        let meter = Meter::new(&cgroup_name(scratch.path()))?;
        let mut tuning = Tuning { cgroups: meter.folders().to_vec(), ..Tuning::default() };
        match peer {
            Peer::Default => {}
            Peer::Synced => tuning.images = "image_pull_with_sync_fs = true\n".to_owned(),
            Peer::Tuned => {
                tuning.tables = TUNED.to_owned();
                tuning.path = vec![igzip.join("usr/bin")];
                let libraries = igzip.join("usr/lib/x86_64-linux-gnu").to_string_lossy().into_owned();
                tuning.variables = vec![("LD_LIBRARY_PATH".to_owned(), libraries)];
            }
        }
        let options =
            ContainerdOptions { registry, pause: "unused/pause:1", portmap: false, tuning: &tuning };
        let runtime = PullRuntime::Containerd(Box::new(Containerd::start(options)?), peer);
        Ok(Self { name: name.to_owned(), runtime, meter, _scratch: scratch })
    }

    /// Debian's podman, a process for each pull.
    pub(super) fn podman() -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("gantry-bench-").tempdir()?;
        let meter = Meter::new(&cgroup_name(scratch.path()))?;
        let runtime = PullRuntime::Podman(Podman::new(&meter)?);
        Ok(Self { name: "podman".to_owned(), runtime, meter, _scratch: scratch })
    }

    /// Pulls from this `host:port` speak plain HTTP, too.
    pub(super) fn trust(&self, host: &str) -> Result<()> {
        match &self.runtime {
            // One takes loopback so, the other is told with each pull.
            PullRuntime::Gantry(_) | PullRuntime::Podman(_) => Ok(()),
            PullRuntime::Containerd(containerd, _) => containerd.trust(host),
        }
    }

    /// Pulls an image that is not there, and removes it again.
    ///
    /// # Errors
    /// The runtime's.
    pub(super) fn pull(&self, image: &str) -> Result<Pull> {
        let at = || format!("{}: {image}", self.name);
        let before = self.disk()?;
        rustix::fs::sync();
        let (processor, watch) = (self.meter.cpu()?, self.meter.watch());
        let begun = Instant::now();
        let pulled = self.fetch(image);
        let usable = begun.elapsed();
        let (processor, memory) = (self.meter.cpu()? - processor, watch.most()?);
        pulled.with_context(at)?;
        let durable = self.durable(begun).with_context(at)?;
        rustix::fs::sync();
        let disk = self.disk()?.saturating_sub(before);
        self.remove(image, before, disk).with_context(at)?;
        Ok(Pull {
            usable: usable.as_secs_f64(),
            durable: durable.map(|durable| durable.as_secs_f64()),
            processor: processor.as_secs_f64(),
            memory,
            disk,
        })
    }

    /// Pulls without measuring: what is asked for is there afterwards.
    pub(super) fn fetch(&self, image: &str) -> Result<()> {
        let cri = match &self.runtime {
            PullRuntime::Podman(podman) => return podman.pull(image),
            PullRuntime::Gantry(node) => node.cri(),
            PullRuntime::Containerd(containerd, _) => containerd.cri(),
        };
        let pulled = cri.until(async { tokio::time::sleep(LONG).await }, |_, mut images| async move {
            let image = Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() });
            images.pull_image(cri::PullImageRequest { image, ..Default::default() }).await
        });
        pulled.context("no answer in twenty minutes")??;
        Ok(())
    }

    /// Looks whether an image is there, as a kubelet does with IfNotPresent.
    pub(super) fn look(&self, image: &str) -> Result<()> {
        let cri = match &self.runtime {
            PullRuntime::Podman(podman) => return podman.look(image),
            PullRuntime::Gantry(node) => node.cri(),
            PullRuntime::Containerd(containerd, _) => containerd.cri(),
        };
        let spec = Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() });
        let found = cri.image_status(cri::ImageStatusRequest { image: spec, verbose: false })?.image;
        found.map(drop).context("it is not there")
    }

    pub(super) fn drop_image(&self, image: &str) -> Result<()> {
        let cri = match &self.runtime {
            PullRuntime::Podman(podman) => return podman.remove(image),
            PullRuntime::Gantry(node) => node.cri(),
            PullRuntime::Containerd(containerd, _) => containerd.cri(),
        };
        let removed = cri.until(async { tokio::time::sleep(LONG).await }, |_, mut images| async move {
            let image = Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() });
            images.remove_image(cri::RemoveImageRequest { image }).await
        });
        removed.context("RemoveImage: no answer in twenty minutes")??;
        Ok(())
    }

    /// When all of the last pull is on the disk.
    fn durable(&self, begun: Instant) -> Result<Option<Duration>> {
        match &self.runtime {
            PullRuntime::Containerd(_, Peer::Synced) => Ok(Some(begun.elapsed())),
            PullRuntime::Containerd(..) | PullRuntime::Podman(_) => Ok(None),
            PullRuntime::Gantry(node) => {
                let journal = node.state().join("images");
                poll("the pull to be durable", LONG, || {
                    let left = std::fs::read_dir(&journal).map_err(|error| error.to_string())?.count();
                    if left == 0 { Ok(Some(begun.elapsed())) } else { Err(format!("{left} records")) }
                })
            }
        }
    }

    fn root(&self) -> PathBuf {
        match &self.runtime {
            PullRuntime::Gantry(node) => node.root(),
            PullRuntime::Containerd(containerd, _) => containerd.root(),
            PullRuntime::Podman(podman) => podman.root(),
        }
    }

    /// Bytes below the root.
    fn disk(&self) -> Result<u64> {
        measure_usage(&self.root())
    }

    fn remove(&self, image: &str, before: u64, pulled: u64) -> Result<()> {
        self.drop_image(image)?;
        // The database of one grows, but no layer may be left, nor its deletion fall into the next pull.
        poll("the image's files to be gone", LONG, || {
            let left = self.disk().map_err(|error| error.to_string())?.saturating_sub(before);
            if left <= (pulled / 4).min(LITTLE) { Ok(()) } else { Err(format!("{left} bytes")) }
        })
    }
}

/// Where igzip is found and everything that may be done at once is.
const TUNED: &str = r#"[plugins."io.containerd.transfer.v1.local"]
max_concurrent_downloads = 10
max_concurrent_unpacks = 4
concurrent_layer_fetch_buffer = 8388608
"#;

fn cgroup_name(scratch: &Path) -> String {
    scratch.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Bytes that the files below `folder` take, each inode once.
fn measure_usage(folder: &Path) -> Result<u64> {
    let mut seen = std::collections::HashSet::new();
    let (mut bytes, mut folders) = (0, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        // What is removed meanwhile is no longer there.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(meta) = entry.path().symlink_metadata() else { continue };
            if seen.insert(meta.ino()) {
                bytes += meta.blocks() * 512;
            }
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(bytes)
}
