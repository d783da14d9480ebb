//! Which cgroup file systems there are, read from the mount table, never guessed from folder names
//! (each v1 controller may be a mount of its own). Pure: owns the parser; never reads the table.
//! Called by [`super::tree`] and the
//! server's statistics.

use std::path::PathBuf;

/// What a v1 hierarchy may be mounted with.
const CONTROLLERS: [&str; 13] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
    "rdma",
];

/// The host's cgroup file systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hierarchies {
    /// v2 holds the controllers.
    Unified(PathBuf),
    /// v1, with or without a v2 one that holds none (hybrid), which comes last.
    Legacy(Vec<Hierarchy>),
}

/// One of a host that has v1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// Mount options that name it: `memory`, `cpu,cpuacct`, `name=systemd`; none for the v2 one of a hybrid host, where
    /// systemd looks for its units' processes.
    pub(crate) options: String,
    pub(crate) mount: PathBuf,
}

impl Hierarchy {
    pub(crate) fn has(&self, controller: &str) -> bool {
        !self.options.is_empty() && self.options.split(',').any(|option| option == controller)
    }
}

/// None when nothing is mounted.
pub(crate) fn parse(mountinfo: &str) -> Option<Hierarchies> {
    let (mut legacy, mut unified): (Vec<Hierarchy>, Option<PathBuf>) = (Vec::new(), None);
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut right = right.split(' ');
        let (Some(mount), Some(kind)) = (left.split(' ').nth(4), right.next()) else { continue };
        let options = right.nth(1).unwrap_or_default();
        match kind {
            "cgroup2" if unified.is_none() => unified = Some(mount.into()),
            "cgroup" => {
                let known = |o: &&str| CONTROLLERS.contains(o) || o.starts_with("name=");
                let options = options.split(',').filter(known).collect::<Vec<_>>().join(",");
                // Mounted twice, it is one hierarchy.
                if !options.is_empty() && !legacy.iter().any(|h| h.options == options) {
                    legacy.push(Hierarchy { options, mount: mount.into() });
                }
            }
            _ => {}
        }
    }
    let has_controllers = legacy.iter().any(|h| CONTROLLERS.iter().any(|controller| h.has(controller)));
    match unified {
        Some(mount) if !has_controllers => Some(Hierarchies::Unified(mount)),
        unified if has_controllers => {
            legacy.extend(unified.map(|mount| Hierarchy { options: String::new(), mount }));
            Some(Hierarchies::Legacy(legacy))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_v2_and_hybrid_are_told_apart() {
        let v1 = "30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n\
            31 25 0:27 / /odd/cpu rw - cgroup none rw,cpu\n\
            32 25 0:27 / /again rw - cgroup none rw,cpu\n\
            33 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup none rw,xattr,name=systemd\n";
        let v2 = "40 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let Some(Hierarchies::Legacy(found)) = parse(&format!("{v1}{v2}")) else { panic!() };
        let options: Vec<_> = found.iter().map(|h| h.options.as_str()).collect();
        assert_eq!(options, ["memory", "cpu", "name=systemd", ""]);
        assert!(found.iter().all(|h| !h.has("")), "a controller");
        assert!(matches!(parse(v1), Some(Hierarchies::Legacy(list)) if list.len() == 3));
        assert_eq!(parse(v2), Some(Hierarchies::Unified("/sys/fs/cgroup/unified".into())));
        let systemd_only = "33 25 0:28 / /s rw - cgroup none rw,name=systemd\n";
        assert!(matches!(parse(&format!("{systemd_only}{v2}")), Some(Hierarchies::Unified(_))));
        assert_eq!(parse("1 1 0:1 / / rw - ext4 a rw\n"), None);
    }
}
