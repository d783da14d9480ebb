//! What every operation of the runtime shares: configuration, cgroup layout, images, the store, the
//! two programs, the way to the event task. Owns no logic. Made by `runtime::Runtime::start`.

pub(crate) mod output_budget;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use gantry_proto::cri;
use gantry_proto::runtime_ext::OutOfMemory;
use rustix::fs::{MemfdFlags, SealFlags};
use tokio::sync::mpsc;

use crate::apparmor::AppArmor;
use crate::cgroup::Layout;
use crate::config::RuntimeConfig;
use crate::error::Error;
use crate::event_stream::EventStream;
use crate::monitor_client::Event;
use crate::selinux::Selinux;
use crate::store::RecordStore;
use gantry_image::Images;
use gantry_image::usage::walker::Walker;
use output_budget::OutputBudget;

/// Shared by all operations, behind an Arc.
#[derive(Debug)]
pub(crate) struct Node {
    /// As started.
    pub config: RuntimeConfig,
    /// The host's cgroups.
    pub layout: Layout,
    /// Images and layers.
    pub images: Images,
    /// Sandboxes and containers.
    pub store: RecordStore,
    /// Sealed copies of the programs.
    pub programs: Programs,
    /// As this node has it.
    pub apparmor: AppArmor,
    /// As this node has it.
    pub selinux: Selinux,
    /// This boot.
    pub boot_id: String,
    /// Whether pods may have users of their own, or what is in the way.
    pub user_namespaces: Result<(), String>,
    /// No runtime has started whole on this state folder since the machine did.
    pub(crate) first_start_of_boot: bool,
    /// Counts what layers and containers take on disk.
    pub walker: Walker,
    /// To the clients of GetContainerEvents.
    pub container_events: EventStream<cri::ContainerEventResponse>,
    /// To the clients of WatchOutOfMemory.
    pub oom_events: EventStream<OutOfMemory>,
    /// For the outputs of execs.
    pub(crate) exec_output_budget: OutputBudget,
    /// To the event task.
    pub events: mpsc::UnboundedSender<Event>,
}

/// Our other programs as sealed memfds: what a container can reach through /proc/PID/exe can't be
/// written, and is not the installed file (CVE-2019-5736).
#[derive(Debug)]
pub(crate) struct Programs {
    monitor: OwnedFd,
    pause: OwnedFd,
    unpack: OwnedFd,
}

/// A program could not be loaded.
#[derive(Debug, thiserror::Error)]
#[error("load the program {path}: build it with `cargo xtask build`, or name its folder by --programs-dir", path = path.display())]
pub struct ProgramError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

impl Programs {
    /// Loads all from `folder`.
    ///
    /// # Errors
    /// When one is missing or can't be copied.
    pub(crate) fn load(folder: &Path) -> Result<Self, ProgramError> {
        let sealed = |name: &str| {
            let path = folder.join(name);
            seal(&path, name).map_err(|source| ProgramError { path, source })
        };
        Ok(Self {
            monitor: sealed("gantry-monitor")?,
            pause: sealed("gantry-pause")?,
            unpack: sealed("gantry-unpack")?,
        })
    }

    /// A path that execs the monitor from this process's children.
    #[must_use]
    pub(crate) fn monitor_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.monitor.as_raw_fd()).into()
    }

    /// A path that execs the unpacker from this process's children.
    #[must_use]
    pub(crate) fn unpack_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.unpack.as_raw_fd()).into()
    }

    /// A path that any root process opens pause by, while the runtime lives.
    #[must_use]
    pub(crate) fn pause_path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.pause.as_raw_fd())
    }
}

/// How often, and how long in between, a program that the kernel holds is sealed again.
const SEAL_TRIES: u32 = 20;
const SEAL_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

fn seal(path: &Path, name: &str) -> io::Result<OwnedFd> {
    // MFD_EXEC exists from Linux 6.3 on, where vm.memfd_noexec may make its absence an error.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = match rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        result => result,
    }?;
    let mut copy = fs::File::from(memfd);
    io::copy(&mut fs::File::open(path)?, &mut copy)?;
    let memfd = OwnedFd::from(copy);
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    // Busy while the kernel itself holds a page of it, which it does for moments (memfd_wait_for_pins).
    for _ in 0..SEAL_TRIES {
        match rustix::fs::fcntl_add_seals(&memfd, seals) {
            Err(rustix::io::Errno::BUSY) => std::thread::sleep(SEAL_PAUSE),
            result => return Ok(result.map(|()| memfd)?),
        }
    }
    rustix::fs::fcntl_add_seals(&memfd, seals)?;
    Ok(memfd)
}

impl Node {
    /// Folder of a sandbox's record.
    #[must_use]
    pub(crate) fn sandbox_folder(&self, id: &str) -> PathBuf {
        self.config.root.join("sandboxes").join(id)
    }

    /// Folder of a container's record.
    #[must_use]
    pub(crate) fn container_folder(&self, id: &str) -> PathBuf {
        self.config.root.join("containers").join(id)
    }

    /// Folder of what is being deleted.
    #[must_use]
    pub(crate) fn trash(&self) -> PathBuf {
        self.config.root.join("trash")
    }

    /// Folder of the monitors' sockets.
    #[must_use]
    pub(crate) fn monitor_sockets(&self) -> PathBuf {
        self.config.state.join("monitors")
    }

    /// Cgroup leaf of a sandbox's monitor, outside the pod's.
    #[must_use]
    pub(crate) fn monitor_cgroup(&self, id: &str) -> String {
        format!("{}-monitors/{id}", self.config.cgroup_root)
    }

    /// Where the chain runner keeps what it keeps, and whether it prefers programs to what is built in.
    #[must_use]
    pub(crate) fn cni_dirs(&self, prefer_external: bool) -> gantry_cni::chain::Dirs {
        gantry_cni::chain::Dirs {
            data_dir: self.config.cni_data_dir.clone(),
            cache_dir: self.config.cni_cache_dir.clone(),
            bin_dir: self.config.cni_bin_dir.clone(),
            prefer_external,
        }
    }
}

/// A new object's id: 64 hex digits, as every client of CRI expects.
///
/// # Errors
/// When the kernel gives no randomness.
pub(crate) fn new_id() -> Result<String, Error> {
    let mut bytes = [0u8; 32];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(|errno| {
        Error::Files { what: "get randomness for", path: "an id".into(), source: errno.into() }
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
