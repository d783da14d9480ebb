//! A mount of a CDI file as the monitor is told of it. Pure. Owns what the options of mount(8) mean here
//! (runc's table); what would be passed over in silence is refused.

use gantry_proto::monitor::{self, Propagation, Tmpfs};

use super::file::Mount;

/// A mount that can't be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Another file system.
    #[error("mount of {path:?}: type {kind:?} is not supported: bind a path of the node, or use tmpfs")]
    Kind {
        /// In the container.
        path: String,
        /// By the file.
        kind: String,
    },
    /// An option that means nothing here.
    #[error("mount of {path:?}: option {option:?} is unknown")]
    Option {
        /// In the container.
        path: String,
        /// By the file.
        option: String,
    },
}

/// Attributes by option, with their `MOUNT_ATTR_*` bits: set, or cleared by the others.
const SET: [(&str, u64); 8] = [
    ("ro", 0x01),
    ("nosuid", 0x02),
    ("nodev", 0x04),
    ("noexec", 0x08),
    ("noatime", 0x10),
    ("strictatime", 0x20),
    ("nodiratime", 0x80),
    ("nosymfollow", 0x0020_0000),
];
const CLEAR: [(&str, u64); 8] = [
    ("rw", 0x01),
    ("suid", 0x02),
    ("dev", 0x04),
    ("exec", 0x08),
    ("atime", 0x10),
    ("relatime", 0x70),
    ("diratime", 0x80),
    ("symfollow", 0x0020_0000),
];
const READ_ONLY: u64 = 0x01;

fn bits(table: &[(&str, u64)], option: &str) -> Option<u64> {
    table.iter().find(|(name, _)| *name == option).map(|(_, bits)| *bits)
}

/// As the monitor is told.
pub(super) fn to_monitor_mount(mount: &Mount) -> Result<monitor::Mount, Error> {
    let tmpfs = mount.kind == "tmpfs";
    let is_bind = mount.options.iter().any(|option| option == "bind" || option == "rbind");
    // The type of a bind mount means nothing (runc's words); without one it can be nothing else.
    if !(tmpfs || is_bind || matches!(mount.kind.as_str(), "" | "none" | "bind")) {
        return Err(Error::Kind { path: mount.container_path.clone(), kind: mount.kind.clone() });
    }
    let mut made = monitor::Mount {
        destination: mount.container_path.clone(),
        propagation: Propagation::Private.into(),
        ..monitor::Mount::default()
    };
    let mut data = Vec::new();
    for option in &mount.options {
        if !of_mount(option, &mut made) {
            if !tmpfs || is_bind {
                return Err(Error::Option { path: mount.container_path.clone(), option: option.clone() });
            }
            data.push(option.clone());
        }
    }
    made.readonly = made.attributes & READ_ONLY != 0;
    made.recursive_readonly = made.recursive_attributes & READ_ONLY != 0;
    made.attributes &= !READ_ONLY;
    made.recursive_attributes &= !READ_ONLY;
    if tmpfs && !is_bind {
        made.tmpfs = Some(Tmpfs { options: data });
    } else {
        made.source.clone_from(&mount.host_path);
    }
    Ok(made)
}

/// Whether the option is one of the mount, not of its file system.
fn of_mount(option: &str, made: &mut monitor::Mount) -> bool {
    match option {
        "bind" => made.single = true,
        "rbind" => made.single = false,
        "defaults" => {}
        "private" | "rprivate" => made.propagation = Propagation::Private.into(),
        "slave" | "rslave" => made.propagation = Propagation::Slave.into(),
        "shared" | "rshared" => made.propagation = Propagation::Shared.into(),
        _ => {
            let recursive = option.strip_prefix('r').unwrap_or_default();
            if let Some(bits) = bits(&SET, option) {
                made.attributes |= bits;
            } else if let Some(bits) = bits(&CLEAR, option) {
                made.attributes &= !bits;
            } else if let Some(bits) = bits(&SET, recursive) {
                made.recursive_attributes |= bits;
            } else if let Some(bits) = bits(&CLEAR, recursive) {
                made.recursive_attributes &= !bits;
            } else {
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: &str, options: &[&str]) -> Result<monitor::Mount, Error> {
        to_monitor_mount(&Mount {
            host_path: "/host".into(),
            container_path: "/there".into(),
            kind: kind.into(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        })
    }

    fn bind() -> monitor::Mount {
        monitor::Mount { source: "/host".into(), destination: "/there".into(), ..monitor::Mount::default() }
    }

    #[test]
    fn options_mean_what_they_do_in_runc() {
        let usual = of("", &["ro", "nosuid", "nodev", "bind"]).unwrap();
        assert_eq!(usual, monitor::Mount { readonly: true, attributes: 6, single: true, ..bind() });
        assert_eq!(of("bind", &[]).unwrap(), bind());
        let last = of("none", &["rbind", "ro", "rw", "rslave"]).unwrap();
        assert_eq!(last, monitor::Mount { propagation: Propagation::Slave.into(), ..bind() });
        let all = of("", &["rbind", "rro", "rnosuid", "shared"]).unwrap();
        let shared = Propagation::Shared.into();
        assert_eq!(
            all,
            monitor::Mount {
                recursive_readonly: true,
                recursive_attributes: 2,
                propagation: shared,
                ..bind()
            }
        );
    }

    #[test]
    fn a_tmpfs_has_options_of_its_own_and_a_bind_mount_none() {
        let tmpfs = of("tmpfs", &["size=1m", "mode=0700", "noexec", "ro"]).unwrap();
        let options = vec!["size=1m".to_owned(), "mode=0700".to_owned()];
        assert_eq!(
            tmpfs,
            monitor::Mount {
                source: String::new(),
                readonly: true,
                attributes: 8,
                tmpfs: Some(Tmpfs { options }),
                ..bind()
            }
        );
        assert!(
            matches!(of("", &["bind", "size=1m"]), Err(Error::Option { option, .. }) if option == "size=1m")
        );
        assert!(matches!(of("proc", &["ro"]), Err(Error::Kind { .. })));
        assert_eq!(of("ext4", &["bind"]).unwrap(), monitor::Mount { single: true, ..bind() });
    }
}
