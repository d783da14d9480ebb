//! The archive for systems without Debian's packages: the programs side by side, links, units, the
//! default configuration, manual pages and completions. Owns its contents; the same files make the same bytes. Called by `dist`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

/// Files of the checkout, and where they are in the archive.
const FILES: [(&str, &str); 10] = [
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE", "LICENSE"),
    ("contrib/dbus/gantry-kubelet.conf", "dbus/gantry-kubelet.conf"),
    ("contrib/runtime.toml", "runtime.toml"),
    ("contrib/systemd/gantry.service", "systemd/gantry.service"),
    ("contrib/systemd/kubelet.service", "systemd/kubelet.service"),
    ("contrib/systemd/kubelet.service.d/10-kubeadm.conf", "systemd/kubelet.service.d/10-kubeadm.conf"),
    ("contrib/systemd/kubelet.service.d/20-gantry.conf", "systemd/kubelet.service.d/20-gantry.conf"),
    ("docs/install.md", "install.md"),
    ("docs/join.md", "join.md"),
];

/// By its name gantry is each of these.
const LINKS: [(&str, &str); 6] = [
    ("cni/bridge", "../gantry"),
    ("cni/host-local", "../gantry"),
    ("cni/loopback", "../gantry"),
    ("cni/portmap", "../gantry"),
    ("cni/ptp", "../gantry"),
    ("kubelet", "gantry"),
];

/// What an entry is, and its mode.
#[derive(Debug)]
enum TarballEntry {
    File(Vec<u8>, u32),
    Link(&'static str),
}

/// The archive, all in the folder `top`, root's and of one time. `share` is what belongs below `/usr/share`.
pub(super) fn of(
    programs: &Path,
    share: &[(String, Vec<u8>)],
    checkout: &Path,
    top: &str,
    epoch: u64,
) -> Result<Vec<u8>> {
    let entries = entries(programs, share, checkout)?;
    let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for (name, kind) in entries {
        let name = format!("{top}/{name}");
        let mut header = Header::new_gnu();
        header.set_mtime(epoch);
        header.set_uid(0);
        header.set_gid(0);
        match kind {
            TarballEntry::File(bytes, mode) => {
                header.set_mode(mode);
                header.set_size(u64::try_from(bytes.len())?);
                archive.append_data(&mut header, &name, bytes.as_slice())
            }
            TarballEntry::Link(to) => {
                header.set_mode(0o777);
                header.set_size(0);
                header.set_entry_type(EntryType::Symlink);
                archive.append_link(&mut header, &name, to)
            }
        }
        .with_context(|| format!("add {name}"))?;
    }
    archive.into_inner()?.finish().context("end the archive")
}

/// By name.
fn entries(
    programs: &Path,
    share: &[(String, Vec<u8>)],
    checkout: &Path,
) -> Result<BTreeMap<String, TarballEntry>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("read {}", path.display()));
    let mut entries = BTreeMap::new();
    for name in crate::build::SHIPPED {
        entries.insert(name.to_owned(), TarballEntry::File(read(&programs.join(name))?, 0o755));
    }
    entries.insert(
        "gantry.cdx.json".to_owned(),
        TarballEntry::File(read(&programs.join("gantry.cdx.json"))?, 0o644),
    );
    for (from, to) in FILES {
        entries.insert(to.to_owned(), TarballEntry::File(read(&checkout.join(from))?, 0o644));
    }
    for (path, bytes) in share {
        entries.insert(format!("share/{path}"), TarballEntry::File(bytes.clone(), 0o644));
    }
    entries.extend(LINKS.map(|(name, to)| (name.to_owned(), TarballEntry::Link(to))));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let from_checkout = FILES.map(|(from, _)| from);
        for name in crate::build::SHIPPED.into_iter().chain(["gantry.cdx.json"]).chain(from_checkout) {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        folder
    }

    #[test]
    fn the_same_files_make_the_same_bytes_whenever_and_wherever_they_are() {
        let (one, other) = (folder(), folder());
        let early = fs::File::options().write(true).open(other.path().join("gantry")).unwrap();
        early.set_modified(std::time::UNIX_EPOCH).unwrap();
        let share = [("man/man8/gantry.8.gz".to_owned(), b"page".to_vec())];
        let made = of(one.path(), &share, one.path(), "gantry-1", 7).unwrap();
        assert!(made == of(other.path(), &share, other.path(), "gantry-1", 7).unwrap());

        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(made.as_slice()));
        let mut names = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 7));
            names.push(entry.path().unwrap().to_string_lossy().into_owned());
        }
        assert!(names.is_sorted() && names.iter().all(|name| name.starts_with("gantry-1/")), "{names:?}");
        for name in ["gantry-1/kubelet", "gantry-1/share/man/man8/gantry.8.gz"] {
            assert!(names.contains(&name.to_owned()), "{names:?}");
        }
    }
}
