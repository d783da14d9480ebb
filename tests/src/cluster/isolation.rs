//! The isolation of a cluster's processes: a mount namespace in which `/run`, `/var/lib` and `/var/log` are empty, so that
//! kubelet and runtime find their paths where users have them and leave nothing on this host. Owns the folders bound
//! there and their undoing; never makes the namespace ([`INIT`] does, around the whole program). Called by `cluster`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use crate::leakcheck::mounts;
use crate::place;

/// Folders that are empty, so that what programs leave there by themselves is no other's.
pub const HIDDEN: [&str; 3] = ["/run", "/var/lib", "/var/log"];

/// Words before a program that wants a cluster: it runs in such a namespace.
pub const INIT: [&str; 7] = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT];

/// Empties [`HIDDEN`]. Shared within the namespace: a pod's mount with `mountPropagation` is to be seen by the kubelet.
const SCRIPT: &str = r#"for folder in /run /var/lib /var/log; do mount -t tmpfs none $folder || exit 125; done
mount --make-rshared / && GANTRY_CLUSTER_PLACE=yes exec "$0" "$@""#;

/// Set in a place whose folders are empty for a cluster: such a namespace, or a machine of its own.
pub const MARK: &str = "GANTRY_CLUSTER_PLACE";

/// On disk, since images and logs are large; where they appear.
const BOUND: [(&str, &str); 6] = [
    ("kubelet", "/var/lib/kubelet"),
    ("containerd", "/var/lib/containerd"),
    ("gantry", "/var/lib/gantry"),
    ("cni", "/var/lib/cni"),
    ("pods", "/var/log/pods"),
    ("containers", "/var/log/containers"),
];

/// The node's own resolver. The host's servers are out of reach, and a runtime that looks for the registry behind a mirror
/// would wait a minute for them: nobody answers there, and at once.
const RESOLVER: &str = "/etc/resolv.conf";

/// Which boot of the machine it is; another file is bound there for a node whose power was cut.
pub(super) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Kernel settings of the whole machine that an upstream kubelet changes, and the one that its suite does; not every kernel
/// has each.
const SYSCTLS: [&str; 7] = [
    "vm/nr_hugepages",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The bound folders; taken away by [`NodeIsolation::leave`], or on drop.
#[derive(Debug)]
pub(super) struct NodeIsolation {
    bound: Vec<PathBuf>,
    sysctls: Vec<(PathBuf, String)>,
}

/// That this is such a namespace.
pub(super) fn require() -> Result<()> {
    place::require_own_namespaces()?;
    if std::env::var_os(MARK).is_none() {
        bail!(
            "/run and /var/lib may be the host's: a cluster is made by `cargo xtask cluster up`, or in the tier cluster"
        );
    }
    Ok(())
}

impl NodeIsolation {
    /// Binds the folders, which are made below `folder`.
    pub(super) fn enter(folder: &Path) -> Result<Self> {
        require()?;
        for hidden in HIDDEN {
            if folder.starts_with(hidden) {
                bail!(
                    "{} is below {hidden}, which is empty for a cluster: choose another --dir",
                    folder.display()
                );
            }
        }
        let mut place = Self { bound: Vec::new(), sysctls: Vec::new() };
        for (name, target) in BOUND {
            let (source, target) = (folder.join("var").join(name), PathBuf::from(target));
            for path in [&source, &target] {
                std::fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))?;
            }
            mount_bind(&source, &target).with_context(|| format!("bind {}", target.display()))?;
            place.bound.push(target);
        }
        let resolver = folder.join("resolv.conf");
        std::fs::write(&resolver, "nameserver 127.0.0.1\n")
            .with_context(|| format!("write {}", resolver.display()))?;
        // Without one, as where it was a link into /run, the same server is asked.
        if Path::new(RESOLVER).exists() {
            mount_bind(&resolver, RESOLVER).context("bind /etc/resolv.conf")?;
            place.bound.push(RESOLVER.into());
        }
        // A pod of any user reads what is mounted below.
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
        for name in SYSCTLS {
            let path = Path::new("/proc/sys").join(name);
            if !path.exists() {
                continue;
            }
            let value = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            place.sysctls.push((path, value));
        }
        Ok(place)
    }

    /// Unmounts all of it and what is mounted below, and puts the kernel's settings back.
    pub(super) fn leave(&mut self) -> Result<()> {
        let mut errors = Vec::new();
        let below = |path: &Path| {
            let bound = BOUND.iter().map(|(_, target)| *target).chain([RESOLVER, BOOT_ID]);
            bound.into_iter().any(|target| path.starts_with(target))
        };
        let run = |path: &Path| path.starts_with("/run/") && path != Path::new("/run/");
        let mounted = mounts()?;
        for mount in mounted.iter().rev().filter(|mount| below(&mount.point) || run(&mount.point)) {
            if let Err(error) = unmount(&mount.point, UnmountFlags::DETACH) {
                errors.push(format!("unmount {}: {error}", mount.point.display()));
            }
        }
        self.bound.clear();
        for (path, value) in self.sysctls.drain(..) {
            if std::fs::read_to_string(&path).is_ok_and(|now| now == value) {
                continue;
            }
            if let Err(error) = std::fs::write(&path, value) {
                errors.push(format!("{}: {error}", path.display()));
            }
        }
        if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("; ")) }
    }
}

impl Drop for NodeIsolation {
    fn drop(&mut self) {
        if !self.bound.is_empty() {
            // What it could not undo shows in the leak check.
            let _ = self.leave();
        }
    }
}
