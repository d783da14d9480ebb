//! Control groups of sandboxes, containers and monitors, on v1, v2 and hybrid hosts (v1, and the v2 hierarchy without
//! controllers beside it). Owns making, limiting, killing and removing; never decides limits. Called by the runtime only;
//! the processes enter by themselves.

#![expect(clippy::disallowed_methods, reason = "files of the kernel's")]

pub(crate) mod detail;
mod devices;
mod limit;
mod owner;
pub(crate) mod rate;
mod resources;
pub mod stats;
mod tree;

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_proto::monitor::{CgroupTarget, Device};
use rustix::process::{Pid, Signal};

pub use gantry_cgroup::{Hierarchy, Layout};
pub use resources::Resources;

use gantry_sys as sys;

/// A cgroup operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host's cgroup file systems are not known.
    #[error(transparent)]
    Layout(#[from] gantry_cgroup::Error),
    /// A folder could not be made.
    #[error("make the cgroup {path}", path = path.display())]
    Create {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A value could not be written.
    #[error("write {value:?} to {path}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A memory limit that the members exceed already.
    #[error("memory limit of {limit} bytes is below the {usage} bytes in use by {path}: free memory, or set more", path = path.display())]
    BelowUsage {
        /// The cgroup.
        path: PathBuf,
        /// What was asked for.
        limit: i64,
        /// What is used.
        usage: u64,
    },
    /// The device filter could not be attached.
    #[error("attach the device filter to {path}", path = path.display())]
    Devices {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An accounting file could not be read.
    #[error("read {path}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A folder could not be removed.
    #[error("remove the cgroup {path}", path = path.display())]
    Remove {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// systemd has the scope of a pod elsewhere.
    #[error("systemd made the scope, and {path} is not there: mount the cgroup file systems where systemd has them", path = path.display())]
    Elsewhere {
        /// Where it should be.
        path: PathBuf,
    },
    /// A request that this host's cgroup version has no file for.
    #[error("{0} needs cgroup v2, and this node has v1: leave it unset here")]
    NeedsV2(String),
    /// A name that is no plain file name.
    #[error("{0:?} is not the name of a cgroup file")]
    BadName(String),
    /// A path that would leave the cgroup tree.
    #[error("cgroup path {0:?} is not absolute and plain")]
    BadPath(String),
}

impl Error {
    /// Whether a cgroup stays because of members that do not end.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Remove { source, .. } if source.kind() == io::ErrorKind::ResourceBusy)
    }
}

/// One cgroup: a folder in each v1 hierarchy, or one on v2. May not exist yet.
#[derive(Debug, Clone)]
pub struct Cgroup {
    layout: Layout,
    path: String,
}

fn write(path: PathBuf, value: &str) -> Result<(), Error> {
    // Never makes a file: one that is missing is a controller that is missing.
    let written =
        fs::OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|source| Error::Write { path, value: value.to_owned(), source })
}

impl Cgroup {
    /// Names a cgroup by its path below the root, as in `/gantry/ID`.
    ///
    /// # Errors
    /// When the path has `..` or is not absolute.
    pub fn new(layout: &Layout, path: &str) -> Result<Self, Error> {
        let plain = path.starts_with('/') && !path.split('/').any(|part| part == ".." || part == ".");
        if plain {
            Ok(Self { layout: layout.clone(), path: path.to_owned() })
        } else {
            Err(Error::BadPath(path.to_owned()))
        }
    }

    fn folders(&self) -> Vec<PathBuf> {
        self.layout.mounts().iter().map(|mount| mount.join(self.path.trim_start_matches('/'))).collect()
    }

    /// Makes the folders, parents first. On v2 each parent hands its controllers down; on v1 a new
    /// cpuset folder gets its parent's CPUs and memory nodes, or nothing could enter it.
    ///
    /// # Errors
    /// When a folder can't be made or prepared.
    pub fn create(&self) -> Result<(), Error> {
        match &self.layout {
            Layout::Unified { mount } => self.create_v2(mount),
            Layout::Legacy { hierarchies } => {
                hierarchies.iter().try_for_each(|hierarchy| self.create_v1(hierarchy))
            }
        }
    }

    fn steps(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').filter(|part| !part.is_empty())
    }

    fn create_v2(&self, mount: &Path) -> Result<(), Error> {
        let mut folder = mount.to_path_buf();
        for part in self.steps() {
            delegate(&folder)?;
            folder.push(part);
            make(&folder)?;
        }
        Ok(())
    }

    fn create_v1(&self, hierarchy: &Hierarchy) -> Result<(), Error> {
        let mut folder = hierarchy.mount.clone();
        for part in self.steps() {
            let parent = folder.clone();
            folder.push(part);
            make(&folder)?;
            if hierarchy.has("cpuset") {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    inherit(&parent.join(file), &folder.join(file))?;
                }
            }
        }
        Ok(())
    }

    /// Lets the members use the standard devices of a container and `extra`, devices of the node with
    /// what is permitted on each (letters r, w, m; none for all).
    ///
    /// # Errors
    /// When the filter can't be attached: the container must not start without it.
    pub fn restrict_devices(&self, extra: &[Device]) -> Result<(), Error> {
        let rules: Vec<devices::DeviceRule> =
            devices::defaults().into_iter().chain(extra.iter().filter_map(devices::of)).collect();
        match &self.layout {
            Layout::Unified { mount } => {
                let path = mount.join(self.path.trim_start_matches('/'));
                let attach = || -> io::Result<()> {
                    let folder = fs::File::open(&path)?;
                    sys::bpf::attach_device_program(folder.as_fd(), &devices::program(&rules))
                };
                attach().map_err(|source| Error::Devices { path: path.clone(), source })
            }
            Layout::Legacy { .. } => {
                let Some(folder) = self.layout.folder_of("devices", &self.path) else {
                    return Err(Error::Devices {
                        path: self.path.clone().into(),
                        source: io::Error::new(
                            io::ErrorKind::Unsupported,
                            "this node has no devices controller",
                        ),
                    });
                };
                write(folder.join("devices.deny"), "a")?;
                rules.iter().try_for_each(|rule| write(folder.join("devices.allow"), &rule.to_string()))
            }
        }
    }

    /// Moves the process that opened the scope `scope` out of its way, into this cgroup of it: on v2 no folder above
    /// may hand controllers down while it has members, so the folder is made without. Elsewhere both may be.
    ///
    /// # Errors
    /// When the scope is not where this process sees it.
    pub(crate) fn enter_first(&self, scope: &str, pid: u32) -> Result<(), Error> {
        let known = self.layout.of_systemd(scope);
        if !known.iter().any(|folder| folder.is_dir()) {
            return Err(Error::Elsewhere { path: known.into_iter().next().unwrap_or_default() });
        }
        let Layout::Unified { mount } = &self.layout else { return Ok(()) };
        let mut folder = mount.clone();
        for part in self.steps() {
            folder.push(part);
            make(&folder)?;
        }
        write(folder.join("cgroup.procs"), &pid.to_string())
    }

    /// What the monitor and its children need to know.
    #[must_use]
    pub fn target(&self) -> CgroupTarget {
        let folders = self.folders().iter().map(|folder| folder.display().to_string()).collect();
        let counter = if self.layout.is_unified() { "memory.events" } else { "memory.oom_control" };
        let oom_counter = self
            .layout
            .folder_of("memory", &self.path)
            .map(|folder| folder.join(counter).display().to_string())
            .unwrap_or_default();
        let hierarchies = match &self.layout {
            Layout::Unified { .. } => Vec::new(),
            // As runc: containers see those of v1 alone.
            Layout::Legacy { hierarchies } => {
                hierarchies.iter().filter(|h| !h.is_unified()).map(|h| h.options.clone()).collect()
            }
        };
        let mount = match &self.layout {
            Layout::Unified { mount } => mount.display().to_string(),
            Layout::Legacy { .. } => String::new(),
        };
        CgroupTarget { folders, unified: self.layout.is_unified(), oom_counter, hierarchies, mount }
    }

    /// The folder by which all members are frozen at once; None on a v1 host without that controller.
    #[must_use]
    pub(crate) fn freezer(&self) -> Option<PathBuf> {
        self.layout.folder_of("freezer", &self.path)
    }

    /// Lets the members go on, whoever froze them.
    ///
    /// # Errors
    /// When the file can't be written.
    pub(crate) fn thaw(&self) -> Result<(), Error> {
        let Some(folder) = self.freezer() else { return Ok(()) };
        if self.layout.is_unified() {
            write(folder.join("cgroup.freeze"), "0")
        } else {
            write(folder.join("freezer.state"), "THAWED")
        }
    }

    /// Whether any folder is there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.folders().iter().any(|folder| folder.exists())
    }

    /// Pids of the members, of this folder only.
    fn members(&self) -> Vec<Pid> {
        let mut pids: Vec<Pid> = self
            .folders()
            .iter()
            .filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok())
            .flat_map(|text| {
                text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect::<Vec<_>>()
            })
            .collect();
        pids.sort_by_key(|pid| pid.as_raw_nonzero());
        pids.dedup();
        pids
    }

    /// Whether nobody is in it and nothing is below it, in any hierarchy.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        let has_child = |folder: PathBuf| {
            fs::read_dir(folder).is_ok_and(|entries| {
                entries.flatten().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            })
        };
        self.members().is_empty() && !self.folders().into_iter().any(has_child)
    }

    /// Kills all members: by `cgroup.kill` on v2, those below too; on v1 frozen first, so that none forks away meanwhile.
    pub fn kill(&self) {
        if self.is_killed_by_file() {
            return;
        }
        self.while_frozen(|| {
            for pid in self.members() {
                // Gone already: what was wanted.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        });
    }

    /// Writes v2's `cgroup.kill`, which every kernel from 5.14 on has. False where members may be in v1 alone.
    fn is_killed_by_file(&self) -> bool {
        let kill = |folder: PathBuf| {
            // One that is not there has no members.
            let _ = fs::write(folder.join("cgroup.kill"), "1");
        };
        match &self.layout {
            Layout::Unified { mount } => kill(mount.join(self.path.trim_start_matches('/'))),
            Layout::Legacy { .. } => {
                self.layout.hybrid(&self.path).map(kill);
                return false;
            }
        }
        true
    }

    fn while_frozen(&self, work: impl FnOnce()) {
        let freezer = self.layout.folder_of("freezer", &self.path).map(|folder| folder.join("freezer.state"));
        let set = |state: &str| freezer.as_ref().is_some_and(|file| fs::write(file, state).is_ok());
        set("FROZEN");
        work();
        set("THAWED");
    }

    /// Kills what is left and removes the folders, children first. Waits up to two seconds for the
    /// dead to be gone. A cgroup that is not there is fine. Blocks: call it off the async threads.
    ///
    /// # Errors
    /// The first folder that stays.
    pub fn remove(&self) -> Result<(), Error> {
        let mut left = Ok(());
        for attempt in 0..100u64 {
            left = self.folders().into_iter().try_for_each(|folder| {
                tree::remove(&folder).map_err(|errno| Error::Remove { path: folder, source: errno.into() })
            });
            if left.is_ok() {
                break;
            }
            self.kill_tree();
            wait(Duration::from_millis((attempt / 2 + 1).min(30)));
        }
        left
    }

    /// Removes the folders that have neither members nor children; leaves the others alone.
    ///
    /// # Errors
    /// When an empty folder can't be removed.
    pub fn remove_if_empty(&self) -> Result<(), Error> {
        for folder in self.folders() {
            match fs::remove_dir(&folder) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy) => {}
                // A cgroup with children.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                result => result.map_err(|source| Error::Remove { path: folder, source })?,
            }
        }
        Ok(())
    }

    /// Kills the members of this cgroup and of all below it.
    pub(crate) fn kill_tree(&self) {
        if !self.is_killed_by_file() {
            self.while_frozen(|| self.folders().iter().for_each(|folder| tree::kill(folder)));
        }
    }
}

fn wait(time: Duration) {
    std::thread::sleep(time);
}

fn make(folder: &Path) -> Result<(), Error> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(|source| Error::Create { path: folder.to_owned(), source }),
    }
}

/// Enables every controller of `folder` for its children. Each by itself: one that the kernel can't
/// delegate here (cpu with real-time processes about) must not take the others along.
fn delegate(folder: &Path) -> Result<(), Error> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let enabled = read("cgroup.subtree_control");
    let enabled: Vec<&str> = enabled.split_whitespace().collect();
    for controller in read("cgroup.controllers").split_whitespace().filter(|name| !enabled.contains(name)) {
        let value = format!("+{controller}");
        match write(folder.join("cgroup.subtree_control"), &value) {
            Err(error) if matches!(controller, "memory" | "pids" | "cpu") => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn inherit(from: &Path, to: &Path) -> Result<(), Error> {
    let current = fs::read_to_string(to).unwrap_or_default();
    if !current.trim().is_empty() {
        return Ok(());
    }
    let value = fs::read_to_string(from).unwrap_or_default();
    if value.trim().is_empty() { Ok(()) } else { write(to.to_owned(), value.trim()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_v2_members_are_killed_by_one_file_and_nothing_of_v1_is_touched() {
        let mount = tempfile::tempdir().unwrap();
        let folder = mount.path().join("gantry/pod");
        fs::create_dir_all(&folder).unwrap();
        // Of this very process: whoever goes by it fails the test.
        fs::write(folder.join("cgroup.procs"), std::process::id().to_string()).unwrap();
        let layout = Layout::Unified { mount: mount.path().to_owned() };
        let cgroup = Cgroup { layout, path: "/gantry/pod".to_owned() };
        for kill in [Cgroup::kill, Cgroup::kill_tree] {
            kill(&cgroup);
            assert_eq!(fs::read_to_string(folder.join("cgroup.kill")).unwrap(), "1");
            fs::remove_file(folder.join("cgroup.kill")).unwrap();
            assert!(!folder.join("freezer.state").exists());
        }
    }
}
