//! Which cgroup file systems a host has, read from the mount table, never guessed from folder names (each v1
//! controller may be a mount of its own). Pure but for `Layout::detect`.

use std::io;
use std::path::{Path, PathBuf};

use gantry_base::mountinfo::{self, MountInfo};

/// The host's cgroup file systems are not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mount table could not be read.
    #[error("read the mount table /proc/self/mountinfo")]
    Mounts(#[source] io::Error),
    /// No cgroup file system is mounted.
    #[error("no cgroup file system is mounted: mount cgroup2 on /sys/fs/cgroup")]
    NotMounted,
}

/// What a v1 hierarchy may be mounted with (cgroups(7)).
const CONTROLLERS: [&str; 13] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "hugetlb",
    "net_cls",
    "net_prio",
    "perf_event",
    "rdma",
];

/// One hierarchy of a host that has v1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Mount options that name it: `memory`, `cpu,cpuacct`, `name=systemd`; none for the v2 one of a hybrid host.
    pub options: String,
    /// Where it is mounted.
    pub mount: PathBuf,
}

impl Hierarchy {
    /// Whether it is the v2 one: without controllers, but where systemd looks for its units' processes.
    #[must_use]
    pub fn is_unified(&self) -> bool {
        self.options.is_empty()
    }

    /// Whether this hierarchy carries `controller`.
    #[must_use]
    pub fn has(&self, controller: &str) -> bool {
        !self.is_unified() && self.options.split(',').any(|option| option == controller)
    }
}

/// The host's cgroup file systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// cgroup v2 holds the controllers.
    Unified {
        /// Where it is mounted.
        mount: PathBuf,
    },
    /// v1 hierarchies, with or without a v2 one that holds none (hybrid).
    Legacy {
        /// All of them, by mount order; the v2 one last.
        hierarchies: Vec<Hierarchy>,
    },
}

impl Layout {
    /// Reads this process's mount table.
    ///
    /// # Errors
    /// When it can't be read, or has no cgroup file system.
    pub fn detect() -> Result<Self, Error> {
        Self::of(&mountinfo::own().map_err(Error::Mounts)?).ok_or(Error::NotMounted)
    }

    /// The layout that a mount table shows; None without a cgroup file system. Version 1 holds the controllers
    /// where `memory` is one of its hierarchies: a stray mount of another, such as `net_cls` for a VPN, makes
    /// no v1 host.
    #[must_use]
    pub fn of(mounts: &[MountInfo]) -> Option<Self> {
        let unified = mounts.iter().find(|mount| mount.kind == "cgroup2").map(|mount| mount.point.clone());
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        for mount in mounts.iter().filter(|mount| mount.kind == "cgroup") {
            let known = |option: &&str| CONTROLLERS.contains(option) || option.starts_with("name=");
            let options = mount.options.split(',').filter(known).collect::<Vec<_>>().join(",");
            // Mounted twice, it is one hierarchy.
            if !options.is_empty() && !hierarchies.iter().any(|hierarchy| hierarchy.options == options) {
                hierarchies.push(Hierarchy { options, mount: mount.point.clone() });
            }
        }
        if hierarchies.iter().any(|hierarchy| hierarchy.has("memory")) {
            hierarchies.extend(unified.map(|mount| Hierarchy { options: String::new(), mount }));
            return Some(Self::Legacy { hierarchies });
        }
        unified.map(|mount| Self::Unified { mount })
    }

    /// Whether this is cgroup v2.
    #[must_use]
    pub fn is_unified(&self) -> bool {
        matches!(self, Self::Unified { .. })
    }

    /// Every mount point, the v2 one of a hybrid host last.
    #[must_use]
    pub fn mounts(&self) -> Vec<&Path> {
        match self {
            Self::Unified { mount } => vec![mount],
            Self::Legacy { hierarchies } => hierarchies.iter().map(|found| found.mount.as_path()).collect(),
        }
    }

    /// The folder of `path` in the v2 hierarchy of a hybrid host.
    #[must_use]
    pub fn hybrid(&self, path: &str) -> Option<PathBuf> {
        match self {
            Self::Unified { .. } => None,
            Self::Legacy { hierarchies } => hierarchies
                .iter()
                .find(|hierarchy| hierarchy.is_unified())
                .map(|hierarchy| hierarchy.mount.join(path.trim_start_matches('/'))),
        }
    }

    /// The folders of `path` where systemd keeps its units, whichever of them it looks at.
    #[must_use]
    pub fn of_systemd(&self, path: &str) -> Vec<PathBuf> {
        let path = path.trim_start_matches('/');
        match self {
            Self::Unified { mount } => vec![mount.join(path)],
            Self::Legacy { hierarchies } => hierarchies
                .iter()
                .filter(|hierarchy| hierarchy.is_unified() || hierarchy.has("name=systemd"))
                .map(|hierarchy| hierarchy.mount.join(path))
                .collect(),
        }
    }

    /// Where the file system is mounted that has the files of `controller`.
    #[must_use]
    pub fn mount_of(&self, controller: &str) -> Option<&Path> {
        match self {
            Self::Unified { mount } => Some(mount),
            Self::Legacy { hierarchies } => hierarchies
                .iter()
                .find(|hierarchy| hierarchy.has(controller))
                .map(|found| found.mount.as_path()),
        }
    }

    /// The folder of `path` where `controller` has its files.
    #[must_use]
    pub fn folder_of(&self, controller: &str, path: &str) -> Option<PathBuf> {
        Some(self.mount_of(controller)?.join(path.trim_start_matches('/')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
         32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
         35 31 0:32 / /odd/place rw,relatime - cgroup cgroup rw,memory\n\
         36 31 0:32 / /again rw,relatime - cgroup none rw,memory\n\
         40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n";
    const V2: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    fn layout(table: &str) -> Option<Layout> {
        Layout::of(&mountinfo::parse(table.as_bytes()))
    }

    #[test]
    fn a_hybrid_host_is_v1_with_every_hierarchy_found_by_its_options() {
        let layout_of_both = layout(&format!("{V1}{V2}")).unwrap();
        assert!(!layout_of_both.is_unified());
        assert_eq!(layout_of_both.folder_of("memory", "/gantry/x"), Some("/odd/place/gantry/x".into()));
        assert_eq!(layout_of_both.folder_of("cpuacct", "/g"), Some("/sys/fs/cgroup/cpu,cpuacct/g".into()));
        assert_eq!(layout_of_both.mounts().len(), 4);
        assert_eq!(layout_of_both.folder_of("", "/g"), None, "a controller");
        assert_eq!(layout_of_both.hybrid("/g"), Some("/sys/fs/cgroup/unified/g".into()));
        let known = ["/sys/fs/cgroup/systemd/g", "/sys/fs/cgroup/unified/g"];
        assert_eq!(layout_of_both.of_systemd("/g"), known.map(PathBuf::from));
        assert_eq!(layout(V1).unwrap().hybrid("/g"), None);
    }

    #[test]
    fn a_v2_host_is_unified_and_a_host_without_either_has_no_layout() {
        let unified = Layout::Unified { mount: "/sys/fs/cgroup/unified".into() };
        assert_eq!(layout(V2), Some(unified.clone()));
        let systemd_only = "33 25 0:28 / /s rw - cgroup none rw,name=systemd\n";
        assert_eq!(layout(&format!("{systemd_only}{V2}")), Some(unified));
        assert_eq!(layout("1 1 0:1 / / rw - ext4 /dev/vda rw\n"), None);
    }

    #[test]
    fn a_stray_v1_mount_makes_no_v1_host() {
        let stray = "50 31 0:40 / /sys/fs/cgroup/net_cls rw - cgroup net_cls rw,net_cls\n";
        assert!(layout(&format!("{V2}{stray}")).unwrap().is_unified());
    }
}
