//! Whether a mount source can do what its propagation promises: only a shared mount of the node passes
//! mounts on. Owns the rule (containerd's); reads the mount table. Called by `container::create`.

use std::path::Path;

use gantry_base::mountinfo::{self, MountInfo};
use gantry_proto::monitor::{Mount, Propagation};

use crate::error::Error;
use crate::spec;

/// Refuses a mount whose propagation would be a promise unkept.
///
/// # Errors
/// The mount, and where its source is mounted.
pub(super) fn check(mounts: &[Mount]) -> Result<(), Error> {
    if mounts.iter().all(|mount| mount.propagation() == Propagation::Private) {
        return Ok(());
    }
    let table = mountinfo::own().map_err(|source| Error::Files {
        what: "read",
        path: "/proc/self/mountinfo".into(),
        source,
    })?;
    mounts.iter().try_for_each(|mount| carries(&table, mount)).map_err(Error::from)
}

/// In the words of containerd, which tests look for.
fn carries(table: &[MountInfo], mount: &Mount) -> Result<(), spec::Error> {
    let Some(over) = mount_of(table, &mount.source) else { return Ok(()) };
    let has = |kind: &str| over.tags.iter().any(|tag| tag.starts_with(kind));
    let lacks = match mount.propagation() {
        Propagation::Private => return Ok(()),
        Propagation::Shared if has("shared:") => return Ok(()),
        Propagation::Slave if has("shared:") || has("master:") => return Ok(()),
        Propagation::Shared => "shared",
        Propagation::Slave => "shared or slave",
    };
    let point = over.point.to_string_lossy().into_owned();
    Err(spec::Error::Propagation { path: mount.source.clone(), point, lacks })
}

/// The mount that holds `path`. The last one mounted on a point hides those before.
fn mount_of<'a>(table: &'a [MountInfo], path: &str) -> Option<&'a MountInfo> {
    let over = table.iter().filter(|mount| Path::new(path).starts_with(&mount.point));
    over.max_by_key(|mount| mount.point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"30 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                         31 30 0:9 / /private rw - tmpfs tmpfs rw\n\
                         32 30 0:9 / /slave rw master:1 - tmpfs tmpfs rw\n\
                         33 31 0:9 / /private/my\\040shared rw shared:7 - tmpfs tmpfs rw\n";

    fn mount(source: &str, propagation: Propagation) -> Mount {
        Mount { source: source.into(), propagation: propagation.into(), ..Mount::default() }
    }

    #[test]
    fn only_a_shared_mount_passes_mounts_on() {
        for (source, shared, slave) in [
            ("/var/lib", true, true),
            ("/private/a", false, false),
            ("/privateer", true, true),
            ("/slave", false, true),
            ("/private/my shared/x", true, true),
        ] {
            let carries =
                |propagation| carries(&mountinfo::parse(TABLE), &mount(source, propagation)).is_ok();
            assert_eq!(carries(Propagation::Shared), shared, "{source}");
            assert_eq!(carries(Propagation::Slave), slave, "{source}");
            assert!(carries(Propagation::Private));
        }
    }

    #[test]
    fn the_refusal_is_worded_as_containerds() {
        let error = carries(&mountinfo::parse(TABLE), &mount("/private/a", Propagation::Shared)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "path \"/private/a\" is mounted on \"/private\" but it is not a shared mount"
        );
    }
}
