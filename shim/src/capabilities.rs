//! Capability names and the sets a container gets. Pure. The default set is containerd's
//! (pkg/oci defaultUnixCaps), which users' images were made against.

use gantry_proto::cri;
use gantry_proto::monitor::Capabilities;

/// A name that is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("capability {0:?} is unknown: use a name of capabilities(7) or ALL")]
pub struct Unknown(String);

/// By number, as in linux/capability.h.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Names of a set's bits, as OCI's configuration has them.
#[must_use]
pub(crate) fn names(set: u64) -> Vec<String> {
    let held = NAMES.iter().enumerate().filter(|(number, _)| set & (1 << number) != 0);
    held.map(|(_, name)| format!("CAP_{name}")).collect()
}

const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// Every capability that has a name here.
const ALL: u64 = (1 << NAMES.len()) - 1;

pub(crate) fn bit(name: &str) -> Result<u64, Unknown> {
    let upper = name.to_ascii_uppercase();
    let plain = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if plain == "ALL" {
        return Ok(ALL);
    }
    NAMES
        .iter()
        .position(|known| *known == plain)
        .map(|number| 1 << number)
        .ok_or_else(|| Unknown(name.to_owned()))
}

fn bits(names: &[String]) -> Result<u64, Unknown> {
    names.iter().try_fold(0, |set, name| Ok(set | bit(name)?))
}

/// The sets for a request: default + added − dropped, where ALL comes before single names, so that
/// "drop ALL, add X" leaves X and "add ALL, drop X" leaves all but X. A privileged container has all of them,
/// whatever is dropped, as under containerd.
///
/// # Errors
/// An unknown name.
pub(crate) fn sets(request: Option<&cri::Capability>, privileged: bool) -> Result<Capabilities, Unknown> {
    let empty = cri::Capability::default();
    let request = request.unwrap_or(&empty);
    let is_all = |names: &[String]| {
        names.iter().any(|name| name.eq_ignore_ascii_case("ALL") || name.eq_ignore_ascii_case("CAP_ALL"))
    };
    let single = |names: &[String]| -> Result<u64, Unknown> {
        names
            .iter()
            .map(|name| bit(name))
            .filter(|set| *set != Ok(ALL))
            .try_fold(0, |all, set| Ok(all | set?))
    };
    let mut set = bits(&DEFAULT.map(str::to_owned))?;
    if is_all(&request.add_capabilities) {
        set = ALL;
    }
    if is_all(&request.drop_capabilities) {
        set = 0;
    }
    set |= single(&request.add_capabilities)?;
    set &= !single(&request.drop_capabilities)?;
    if privileged {
        set = ALL;
    }
    let ambient = bits(&request.add_ambient_capabilities)?;
    set |= ambient;
    // Inheritable only as far as ambient needs it (CVE-2022-24769).
    Ok(Capabilities { effective: set, permitted: set, bounding: set, inheritable: ambient, ambient })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(add: &[&str], drop: &[&str]) -> cri::Capability {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        cri::Capability {
            add_capabilities: own(add),
            drop_capabilities: own(drop),
            ..cri::Capability::default()
        }
    }

    #[test]
    fn the_default_set_is_containerds() {
        let caps = sets(None, false).unwrap();
        assert_eq!((caps.effective, caps.inheritable, caps.ambient), (0xa804_25fb, 0, 0));
    }

    #[test]
    fn a_privileged_container_has_them_all_whatever_is_dropped() {
        for drop in [&["ALL"][..], &["NET_RAW"], &[]] {
            assert_eq!(sets(Some(&request(&[], drop)), true).unwrap().bounding, ALL);
        }
        assert_eq!(sets(Some(&request(&[], &["FLY"])), true), Err(Unknown("FLY".into())));
    }

    #[test]
    fn all_gives_way_to_names_on_both_sides() {
        assert_eq!(sets(Some(&request(&["NET_ADMIN"], &["ALL"])), false).unwrap().bounding, 1 << 12);
        assert_eq!(
            sets(Some(&request(&["ALL"], &["CAP_SYS_ADMIN"])), false).unwrap().bounding,
            ALL & !(1 << 21)
        );
        assert_eq!(sets(Some(&request(&["FLY"], &[])), false), Err(Unknown("FLY".into())));
    }
}
