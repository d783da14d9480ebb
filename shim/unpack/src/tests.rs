//! The tricks of archives, one row each, against real folders. Needs root.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use std::io;
use std::sync::Arc;

use super::*;
use gantry_shim_testing::archive::Archive;
use gantry_shim_testing::require_root;

struct Unpacked {
    folder: tempfile::TempDir,
    report: UnpackReport,
}

fn run(archive: &Archive) -> Result<Unpacked, UnpackError> {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("layer")).unwrap();
    let bytes = archive.tar();
    let mut tar = Tarball::new(bytes.as_slice());
    let report = unpack(&mut tar, Tree::open(&folder.path().join("layer"))?, 1000)?;
    mark_opaque(&folder.path().join("layer"), &report.opaque).unwrap();
    Ok(Unpacked { folder, report })
}

impl Unpacked {
    fn path(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("layer").join(path)
    }

    fn stat(&self, path: &str) -> fs::Metadata {
        fs::symlink_metadata(self.path(path)).unwrap()
    }

    fn is_whiteout(&self, path: &str) -> bool {
        let stat = self.stat(path);
        stat.file_type().is_char_device() && stat.rdev() == 0
    }

    fn is_opaque(&self, path: &str) -> bool {
        xattr(&self.path(path), "trusted.overlay.opaque").is_some_and(|value| value == b"y")
    }
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1024];
    let length = rustix::fs::lgetxattr(path, name, &mut *value).ok()?;
    value.truncate(length);
    Some(value)
}

#[test]
fn metadata_arrives_with_set_id_bits_owners_and_times() {
    let archive = Archive::new()
        .owner(12, 34)
        .directory("d/", 0o2750)
        .mode_file("d/suid", 0o4755, b"x")
        .symlink("d/link", "/etc/passwd")
        .device("null", 1, 3)
        .entry(b'6', "fifo", "", 0o600, (0, 0), b"");
    let done = run(&archive).unwrap();
    let check = |path: &str, mode: u32| {
        let stat = done.stat(path);
        assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (mode, 12, 34), "{path}");
        assert_eq!(stat.mtime(), 1_000_000_000, "{path}");
    };
    check("d", 0o2750);
    check("d/suid", 0o4755);
    check("d/link", 0o777);
    check("null", 0o666);
    check("fifo", 0o600);
    assert_eq!(done.stat("null").rdev(), rustix::fs::makedev(1, 3));
    assert!(done.stat("fifo").file_type().is_fifo());
    assert_eq!(fs::read_link(done.path("d/link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!((done.report.entries, done.report.bytes, done.report.replaced), (5, 1, false));
}

#[test]
fn rt_1_1_implied_directories_are_reported() {
    let done = run(&Archive::new().file("a/b/c", b"").directory("a/", 0o700)).unwrap();
    assert_eq!(done.report.implied, [b"".to_vec(), b"a/b".to_vec()]);
    assert_eq!(done.stat("a").mode() & 0o7777, 0o700);
    assert_eq!(done.stat("a/b").mode() & 0o7777, 0o755);
    let done = run(&Archive::new().directory("./", 0o555)).unwrap();
    assert!(done.report.implied.is_empty());
    assert_eq!(done.stat("").mode() & 0o7777, 0o555);
}

#[test]
fn rt_1_5_only_harmless_xattrs_are_set() {
    let capability = b"\x01\x00\x00\x02\x00\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let archive = Archive::new()
        .pax(&[
            ("SCHILY.xattr.user.note", b"a\nb"),
            ("SCHILY.xattr.security.capability", capability),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.overlay.whiteout", b"y"),
            ("SCHILY.xattr.security.selinux", b"label"),
        ])
        .owner(5, 5)
        .file("f", b"x");
    let done = run(&archive).unwrap();
    assert_eq!(xattr(&done.path("f"), "user.note").unwrap(), b"a\nb");
    assert_eq!(xattr(&done.path("f"), "security.capability").unwrap(), capability);
    for refused in ["trusted.overlay.opaque", "user.overlay.whiteout", "security.selinux"] {
        assert_eq!(xattr(&done.path("f"), refused), None, "{refused}");
    }
}

/// 65 directories with a megabyte of attributes each are a layer of 100 KB on the wire.
#[test]
fn attributes_of_directories_are_bounded_and_those_that_are_not_set_are_not_kept() {
    let large = vec![b'x'; 1 << 20];
    let archive = |name: &str| {
        (0..65).fold(Archive::new(), |archive, number| {
            archive.pax(&[(name, &large[..1_048_000])]).directory(&format!("d{number}/"), 0o755)
        })
    };
    run(&archive("SCHILY.xattr.trusted.note")).unwrap();
    let error = run(&archive("SCHILY.xattr.user.note")).err().unwrap();
    assert!(error.to_string().contains("names and extended attributes"), "{error}");
}

#[test]
fn rt_1_6_whiteouts_and_the_same_layers_entries_in_either_order() {
    let done = run(&Archive::new().file("d/.wh.gone", b"")).unwrap();
    assert!(done.is_whiteout("d/gone"));
    let orders = [
        Archive::new().file(".wh.d", b"").directory("d/", 0o755).file("d/x", b""),
        Archive::new().directory("d/", 0o755).file("d/x", b"").file(".wh.d", b""),
        Archive::new().file(".wh.d", b"").file("d/x", b""), // the directory only implied
    ];
    for archive in &orders {
        let done = run(archive).unwrap();
        assert!(done.stat("d").is_dir() && done.is_opaque("d"));
        assert!(done.path("d/x").exists());
    }
    for archive in [
        Archive::new().file(".wh.f", b"").file("f", b"new"),
        Archive::new().file("f", b"new").file(".wh.f", b""),
    ] {
        assert_eq!(fs::read(run(&archive).unwrap().path("f")).unwrap(), b"new");
    }
    for archive in [
        Archive::new().file("d/x", b"").file("d/.wh..wh..opq", b""),
        Archive::new().file("d/.wh..wh..opq", b"").file("d/x", b""),
    ] {
        let done = run(&archive).unwrap();
        assert!(done.is_opaque("d") && done.path("d/x").exists() && !done.report.opaque_root);
    }
    assert!(run(&Archive::new().file(".wh..wh..opq", b"")).unwrap().report.opaque_root);
}

#[test]
fn rt_1_6_the_last_of_duplicate_entries_wins() {
    let done = run(&Archive::new().file("f", b"one").file("f", b"two")).unwrap();
    assert_eq!(fs::read(done.path("f")).unwrap(), b"two");

    let archive = Archive::new().directory("d/", 0o700).file("d/x/y", b"").symlink("d", "elsewhere");
    let done = run(&archive).unwrap();
    assert!(done.stat("d").is_symlink());
    assert_eq!(done.report.implied, [b"".to_vec()], "the tree is gone from the books too");

    let done = run(&Archive::new().file("d", b"").directory("d/", 0o755)).unwrap();
    assert!(done.stat("d").is_dir() && done.is_opaque("d"), "what the file hid stays hidden");

    let done = run(&Archive::new().directory("d/", 0o755).file("d/x", b"").directory("d/", 0o700)).unwrap();
    assert!(done.path("d/x").exists() && !done.is_opaque("d"));
    assert_eq!(done.stat("d").mode() & 0o7777, 0o700);
}

#[test]
fn rt_1_7_hard_links_stay_within_the_layer() {
    let done = run(&Archive::new().file("a/f", b"x").hardlink("b/g", "/a/f").hardlink("a/f", "a/f")).unwrap();
    assert_eq!(done.stat("a/f").ino(), done.stat("b/g").ino());
    for archive in [
        Archive::new().hardlink("x", "etc/passwd"),
        Archive::new().hardlink("x", "/etc/passwd"),
        Archive::new().file(".wh.f", b"").hardlink("x", "f"),
        Archive::new().directory("d/", 0o755).hardlink("x", "d"),
        Archive::new().symlink("s", "/").hardlink("x", "s/etc/passwd"),
        Archive::new().file("d/f", b"").hardlink("d", "d/f"),
    ] {
        assert!(matches!(run(&archive).map(|done| done.report), Err(UnpackError::LinkTarget { .. })));
    }
}

#[test]
fn nothing_is_written_outside_the_layer() {
    require_root();
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap();
    let climb = format!("{}{target}", "../".repeat(12));
    for link in [target, climb.as_str(), "/proc/self/root/tmp", "/", "..", "/proc/self/cwd"] {
        // Followed as if the layer were the root: made inside, or refused, never outside.
        for entry in ["s/evil", "s/.wh.evil"] {
            match run(&Archive::new().symlink("s", link).file(entry, b"x")) {
                Ok(done) => assert!(done.stat("evil").mode() > 0, "{link}: the root of the layer"),
                Err(error) => assert!(matches!(error, UnpackError::Parent { .. }), "{link}: {error}"),
            }
        }
        let done = run(&Archive::new().symlink("f", &format!("{link}/evil")).file("f", b"x")).unwrap();
        assert!(done.stat("f").is_file(), "a file replaces a link and does not follow it");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert!(!Path::new("/tmp/evil").exists() && !Path::new("/evil").exists());
}

#[test]
fn links_to_directories_of_the_layer_are_followed() {
    let archive = Archive::new().directory("usr/lib/", 0o755).symlink("lib", "usr/lib").file("lib/x/y", b"1");
    let done = run(&archive).unwrap();
    assert_eq!(fs::read(done.path("usr/lib/x/y")).unwrap(), b"1");
    assert!(done.stat("lib").is_symlink());
    assert!(done.report.implied.contains(&b"usr/lib/x".to_vec()), "{:?}", done.report.implied);
    // A link that was replaced, even through itself, leads nowhere any more.
    let archive = Archive::new().symlink("s", ".").file("s/s", b"").file("s/x", b"");
    let error = run(&archive).map(|done| done.report).unwrap_err();
    assert!(matches!(error, UnpackError::Parent { found: "a file", .. }), "{error}");
    let error = run(&Archive::new().file("f", b"").file("f/x", b"")).map(|done| done.report).unwrap_err();
    assert!(matches!(error, UnpackError::Parent { found: "a file", .. }), "{error}");
}

#[test]
fn hostile_entries_are_refused() {
    type Want = fn(&UnpackError) -> bool;
    let rows: [(Archive, Want); 6] = [
        (Archive::new().file("../x", b""), |e| matches!(e, UnpackError::Climbs { .. })),
        (Archive::new().file("a/../../x", b""), |e| matches!(e, UnpackError::Climbs { .. })),
        (Archive::new().device("x", 0, 0), |e| matches!(e, UnpackError::WhiteoutDevice { .. })),
        (Archive::new().file(".wh...", b""), |e| matches!(e, UnpackError::Name { .. })),
        (Archive::new().entry(b'S', "x", "", 0o644, (0, 0), b""), |e| matches!(e, UnpackError::Tar { .. })),
        (Archive::new().entry(b'V', "x", "", 0o644, (0, 0), b""), |e| matches!(e, UnpackError::Tar { .. })),
    ];
    for (archive, want) in rows {
        let error = run(&archive).map(|done| done.report).unwrap_err();
        assert!(want(&error), "{error}");
        assert_ne!(error.kind(), UnpackErrorKind::Node);
    }
    let deep =
        |levels| run(&Archive::new().pax(&[("path", "d/".repeat(levels).as_bytes())]).directory("d", 0o755));
    assert!(deep(256).is_ok());
    assert!(matches!(deep(257).map(|done| done.report), Err(UnpackError::Name { .. })));
    let many = (0..1001).fold(Archive::new(), |archive, n| archive.file(&n.to_string(), b""));
    assert!(matches!(run(&many).map(|done| done.report), Err(UnpackError::Entries { limit: 1000 })));
}

#[test]
fn absolute_names_mean_the_layers_root() {
    let done = run(&Archive::new().file("/ko-app/app", b"x")).unwrap();
    assert_eq!(fs::read(done.path("ko-app/app")).unwrap(), b"x");
}

/// Between two looks at the disk another may have filled it.
#[test]
fn a_disk_that_is_full_is_told_from_one_that_is_broken() {
    let failed = |errno| UnpackError::Io {
        operation: "write",
        path: "x".to_owned(),
        source: Arc::new(io::Error::from_raw_os_error(errno)),
    };
    assert_eq!([failed(libc::ENOSPC).kind(), failed(libc::EDQUOT).kind()], [UnpackErrorKind::Full; 2]);
    assert_eq!(failed(libc::EIO).kind(), UnpackErrorKind::Node);
}

#[test]
fn an_entry_that_takes_the_place_of_another_is_told() {
    let twice = Archive::new().file("d/x", b"four").file("d/x", b"no");
    let folder_gone = Archive::new().file("d/x", b"four").file("d", b"no");
    for archive in [twice, folder_gone] {
        let done = run(&archive).unwrap();
        assert_eq!((done.report.bytes, done.report.replaced), (6, true));
    }
}
