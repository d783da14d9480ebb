//! Inputs to begin with, of the targets whose bytes nobody could write by hand: archives with good checksums, packings,
//! reports. Owns them as code; `cargo xtask fuzz --seeds` puts them into files.

use gantry_shim_testing::archive::{Archive, gzip};
use gantry_shim_testing::corpus::{with_prefix, write_seeds};

use crate::{UnpackError, UnpackReport, UnpackVerdict};

type Seeds = Vec<Vec<u8>>;

#[test]
fn seeds_are_written_where_they_are_asked_for() {
    let archives: Seeds = archives().iter().map(|archive| with_prefix(0, &archive.tar())).collect();
    let unpack = archives.clone();
    write_seeds(&[
        ("layer", archives),
        ("unpack", unpack),
        ("inflate", packed_seeds()),
        ("messages", messages()),
    ]);
}

/// Every kind of entry, and the tricks of `unpack/tests.rs`.
fn archives() -> Vec<Archive> {
    let long = "long/".repeat(40);
    let raw = |kind: u8, data: &[u8]| Archive::new().entry(kind, "././@LongLink", "", 0, (0, 0), data);
    let attributes = [
        (&b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], "SCHILY.xattr.security.capability"),
        (b"y", "SCHILY.xattr.trusted.overlay.opaque"),
        (b"v", "SCHILY.xattr.user.a"),
    ];
    let attributes: Vec<(&str, &[u8])> = attributes.map(|(value, name)| (name, value)).to_vec();
    vec![
        Archive::new().directory("./", 0o755).directory("bin/", 0o755).mode_file("bin/sh", 0o4755, b"#!"),
        Archive::new().owner(12, 34).file("a/b/c", b"text").symlink("a/l", "b").file("a/l/x", b"through"),
        Archive::new().file("f", b"x").hardlink("g", "f").hardlink("f", "f").hardlink("h", "./a/../f"),
        Archive::new().file("d/.wh.gone", b"").file("d/.wh..wh..opq", b"").file(".wh..wh.aufs", b""),
        Archive::new().device("null", 1, 3).entry(b'4', "sda", "", 0o600, (8, 0), b""),
        Archive::new().entry(b'6', "fifo", "", 0o600, (0, 0), b"").entry(b'7', "c", "", 0o644, (0, 0), b"xy"),
        Archive::new().device("white", 0, 0),
        Archive::new().pax(&attributes).file("p", b"data").pax(&attributes).directory("q/", 0o700),
        Archive::new()
            .pax(&[
                ("path", b"a/pax/path"),
                ("linkpath", b"../t"),
                ("mtime", b"-1.25"),
                ("uid", b"7"),
                ("gid", b"8"),
            ])
            .symlink("x", "y"),
        Archive::new().pax(&[("size", b"3"), ("mtime", b"1234567890.123456789")]).file("s", b"abc"),
        Archive::new().pax(&[("GNU.sparse.major", b"1")]).file("sparse", b"abc"),
        raw(b'L', long.as_bytes()).file("short", b"1"),
        raw(b'K', b"a/long/target\0").symlink("s", "x"),
        raw(b'g', b"22 comment=a global one\n").file("f", b"1"),
        Archive::new().file("a", b"").file("a/b", b"").directory("a", 0o755).file("a/c", b""),
        Archive::new()
            .symlink("loop", "loop")
            .file("loop/x", b"")
            .symlink("up", "../../..")
            .file("up/etc/x", b""),
        Archive::new().directory("t", 0o755).file("t/1", b"1").symlink("t", "/abs").file("t", b"file"),
        Archive::new().file("../climbs", b"").file("/abs/olute", b""),
        Archive::new().entry(b'S', "gnu-sparse", "", 0o644, (0, 0), b"").entry(b'Z', "z", "", 0, (0, 0), b""),
        Archive::new().file("seven", &[7; 1500]).file("eight", &[8; 513]),
    ]
}

fn packed_seeds() -> Seeds {
    let text = b"one text, one text, one text";
    let two = [gzip(text), gzip(b"second member")].concat();
    let frame = zstd::encode_all(&text[..], 1).unwrap();
    vec![
        with_prefix(0, text),
        with_prefix(1, &gzip(text)),
        with_prefix(1, &two),
        with_prefix(2, &frame),
        with_prefix(2, &[frame.clone(), frame].concat()),
        with_prefix(4, text),
        with_prefix(5, text),
        with_prefix(6, text),
        with_prefix(5 | 16 << 3, &[0; 3000]),
        with_prefix(6 | 16 << 3, &[0; 3000]),
    ]
}

fn messages() -> Seeds {
    let report = UnpackReport {
        implied: vec![b"".to_vec(), b"a\xff%".to_vec()],
        opaque: vec![b"o".to_vec()],
        entries: 3,
        bytes: 7,
        opaque_root: true,
        replaced: true,
    };
    let refused = UnpackError::Climbs { path: "../x".into() };
    vec![
        serde_json::to_vec(&UnpackVerdict::from(Ok(report))).unwrap(),
        serde_json::to_vec(&UnpackVerdict::from(Err(refused))).unwrap(),
        b"%41%zz%".to_vec(),
    ]
}
