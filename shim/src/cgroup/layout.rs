//! Which cgroup file systems this host has, read from the mount table, never guessed from folder
//! names (each v1 controller may be a mount of its own). PURE but for `Layout::detect`.

use std::fs;
use std::path::PathBuf;

use super::Error;

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
    /// Reads the mount table.
    ///
    /// # Errors
    /// When it can't be read, or has no cgroup file system.
    pub fn detect() -> Result<Self, Error> {
        Self::parse(&fs::read_to_string("/proc/self/mountinfo").map_err(Error::Mounts)?)
    }

    fn parse(mountinfo: &str) -> Result<Self, Error> {
        let (mut hierarchies, mut unified): (Vec<Hierarchy>, Option<PathBuf>) = (Vec::new(), None);
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let (Some(mount), mut right) = (left.split(' ').nth(4), right.split(' ')) else { continue };
            let (kind, options) = (right.next().unwrap_or(""), right.nth(1).unwrap_or(""));
            match kind {
                "cgroup2" if unified.is_none() => unified = Some(mount.into()),
                "cgroup" => {
                    let named: Vec<&str> = options
                        .split(',')
                        .filter(|option| CONTROLLERS.contains(option) || option.starts_with("name="))
                        .collect();
                    let options = named.join(",");
                    if !options.is_empty() && !hierarchies.iter().any(|known| known.options == options) {
                        hierarchies.push(Hierarchy { options, mount: mount.into() });
                    }
                }
                _ => {}
            }
        }
        match unified {
            // A hybrid host keeps its controllers in v1.
            unified if hierarchies.iter().any(|hierarchy| hierarchy.has("memory")) => {
                hierarchies.extend(unified.map(|mount| Hierarchy { options: String::new(), mount }));
                Ok(Self::Legacy { hierarchies })
            }
            Some(mount) => Ok(Self::Unified { mount }),
            None => Err(Error::NotMounted),
        }
    }

    /// Whether this is cgroup v2.
    #[must_use]
    pub fn is_unified(&self) -> bool {
        matches!(self, Self::Unified { .. })
    }

    pub(super) fn mounts(&self) -> Vec<PathBuf> {
        match self {
            Self::Unified { mount } => vec![mount.clone()],
            Self::Legacy { hierarchies } => {
                hierarchies.iter().map(|hierarchy| hierarchy.mount.clone()).collect()
            }
        }
    }

    /// The folder of `path` in the v2 hierarchy of a hybrid host.
    pub(super) fn hybrid(&self, path: &str) -> Option<PathBuf> {
        match self {
            Self::Unified { .. } => None,
            Self::Legacy { hierarchies } => hierarchies
                .iter()
                .find(|hierarchy| hierarchy.is_unified())
                .map(|hierarchy| hierarchy.mount.join(path.trim_start_matches('/'))),
        }
    }

    /// The folders of `path` where systemd keeps its units, whichever of them it looks at.
    pub(super) fn of_systemd(&self, path: &str) -> Vec<PathBuf> {
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

    /// The folder of `path` where `controller` has its files.
    pub(super) fn folder_of(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let mount = match self {
            Self::Unified { mount } => mount,
            Self::Legacy { hierarchies } => {
                &hierarchies.iter().find(|hierarchy| hierarchy.has(controller))?.mount
            }
        };
        Some(mount.join(path.trim_start_matches('/')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_host_is_v1_with_every_hierarchy_found_by_its_options() {
        let table = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                     32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                     35 31 0:32 / /odd/place rw,relatime - cgroup cgroup rw,memory\n\
                     40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
                     41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let layout = Layout::parse(table).unwrap();
        assert!(!layout.is_unified());
        assert_eq!(layout.folder_of("memory", "/gantry/x"), Some("/odd/place/gantry/x".into()));
        assert_eq!(layout.folder_of("cpuacct", "/g"), Some("/sys/fs/cgroup/cpu,cpuacct/g".into()));
        assert_eq!(layout.mounts().len(), 4);
        assert_eq!(layout.folder_of("", "/g"), None, "a controller");
        assert_eq!(layout.hybrid("/g"), Some("/sys/fs/cgroup/unified/g".into()));
        let known = ["/sys/fs/cgroup/systemd/g", "/sys/fs/cgroup/unified/g"];
        assert_eq!(layout.of_systemd("/g"), known.map(PathBuf::from));
        let (v1, _) = table.split_once("41 31").unwrap();
        assert_eq!(Layout::parse(v1).unwrap().hybrid("/g"), None);
    }

    #[test]
    fn a_v2_host_is_unified_and_a_host_without_either_is_refused() {
        let table = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(Layout::parse(table).unwrap(), Layout::Unified { mount: "/sys/fs/cgroup".into() });
        assert!(matches!(Layout::parse("1 1 0:1 / / rw - ext4 /dev/vda rw\n"), Err(Error::NotMounted)));
    }
}
