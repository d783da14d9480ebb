//! Whether a mount source can do what its propagation promises: only a shared mount of the node passes
//! mounts on. Owns the rule (containerd's); reads the mount table. Called by `container::create`.

use std::fs;
use std::path::Path;

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
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(table).map_err(|source| Error::Files {
        what: "read",
        path: table.to_owned(),
        source,
    })?;
    mounts.iter().try_for_each(|mount| carries(&text, mount)).map_err(Error::from)
}

/// In the words of containerd, which tests look for.
fn carries(table: &str, mount: &Mount) -> Result<(), spec::Error> {
    let Some((point, tags)) = mount_of(table, &mount.source) else { return Ok(()) };
    let has = |kind: &str| tags.iter().any(|tag| tag.starts_with(kind));
    let lacks = match mount.propagation() {
        Propagation::Private => return Ok(()),
        Propagation::Shared if has("shared:") => return Ok(()),
        Propagation::Slave if has("shared:") || has("master:") => return Ok(()),
        Propagation::Shared => "shared",
        Propagation::Slave => "shared or slave",
    };
    Err(spec::Error::Propagation { path: mount.source.clone(), point, lacks })
}

/// The mount that holds `path`: its point and its optional fields. The last one mounted on a point hides
/// those before.
fn mount_of(table: &str, path: &str) -> Option<(String, Vec<String>)> {
    let path = Path::new(path);
    let lines = table.lines().filter_map(|line| {
        let mut fields = line.split_once(" - ")?.0.split(' ');
        let point = unescape(fields.nth(4)?);
        // Mount options come next, then the optional fields.
        let tags: Vec<String> = fields.skip(1).map(str::to_owned).collect();
        path.starts_with(&point).then_some((point, tags))
    });
    lines.max_by_key(|(point, _)| Path::new(point).components().count())
}

/// mountinfo writes blanks and the like as `\040`.
fn unescape(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "30 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
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
            let carries = |propagation| carries(TABLE, &mount(source, propagation)).is_ok();
            assert_eq!(carries(Propagation::Shared), shared, "{source}");
            assert_eq!(carries(Propagation::Slave), slave, "{source}");
            assert!(carries(Propagation::Private));
        }
    }

    #[test]
    fn the_refusal_is_worded_as_containerds() {
        let error = carries(TABLE, &mount("/private/a", Propagation::Shared)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "path \"/private/a\" is mounted on \"/private\" but it is not a shared mount"
        );
    }
}
