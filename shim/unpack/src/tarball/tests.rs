//! The tar reader against broken and unusual streams.

use super::*;
use gantry_shim_testing::archive::Archive;

fn entries(bytes: &[u8]) -> Result<Vec<(TarEntry, Vec<u8>)>, TarError> {
    let mut tar = Tarball::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = tar.next_entry()? {
        let mut data = Vec::new();
        while tar.read_data(|chunk| {
            data.extend_from_slice(chunk);
            Ok::<_, TarError>(chunk.len())
        })?? > 0
        {}
        all.push((entry, data));
    }
    Ok(all)
}

#[test]
fn data_read_or_not_the_next_entry_is_found() {
    let archive = Archive::new().file("a", &[b'a'; 700]).file("b", b"bb").directory("d/", 0o755);
    let all = entries(&archive.tar()).unwrap();
    assert_eq!(
        all.iter().map(|(entry, _)| entry.path.as_slice()).collect::<Vec<_>>(),
        [&b"a"[..], b"b", b"d/"]
    );
    assert_eq!((all[0].1.len(), all[1].1.as_slice()), (700, &b"bb"[..]));
    let bytes = archive.tar();
    let mut tar = Tarball::new(bytes.as_slice());
    let names: Vec<Vec<u8>> =
        std::iter::from_fn(|| tar.next_entry().unwrap()).map(|entry| entry.path).collect();
    assert_eq!(names.len(), 3);
}

#[test]
fn pax_and_gnu_names_override_the_header() {
    let long = "l".repeat(300);
    let archive = Archive::new()
        .pax(&[("path", long.as_bytes()), ("uid", b"3000000000"), ("mtime", b"5.5")])
        .file("short", b"x")
        .entry(b'L', "././@LongLink", "", 0, (0, 0), format!("{long}2\0").as_bytes())
        .entry(b'K', "././@LongLink", "", 0, (0, 0), format!("{long}3\0").as_bytes())
        .symlink("s", "t");
    let all = entries(&archive.tar()).unwrap();
    assert_eq!(all[0].0.path, long.as_bytes());
    assert_eq!((all[0].0.meta.uid, all[0].0.meta.mtime), (3_000_000_000, (5, 500_000_000)));
    assert_eq!(all[1].0.path, format!("{long}2").as_bytes());
    assert_eq!(all[1].0.kind, EntryKind::Symlink(format!("{long}3").into_bytes()));
}

#[test]
fn rustsec_2026_0068_the_pax_size_counts() {
    // A header that says 0 and a PAX record that says 600 hide an entry from readers that differ.
    let inner = Archive::new().file("hidden", b"x").tar();
    let mut bytes = Archive::new().pax(&[("size", b"1024")]).file("outer", b"").tar();
    bytes.truncate(bytes.len() - 1024);
    bytes.extend_from_slice(&inner[..1024]);
    bytes.extend_from_slice(&[0; 1024]);
    let all = entries(&bytes).unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].1, inner[..1024]);
}

#[test]
fn broken_streams_are_refused() {
    let whole = Archive::new().file("a", &[b'a'; 700]).tar();
    let is_cut = |bytes: &[u8]| matches!(entries(bytes), Err(TarError::Truncated { .. }));
    assert!(is_cut(&whole[..100]) && is_cut(&whole[..600]) && is_cut(&whole[..1300]));
    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    assert!(matches!(entries(&flipped), Err(TarError::Header { detail: "checksum does not fit", .. })));
    assert!(matches!(entries(&[b'x'; 512]), Err(TarError::Header { .. })));
}

#[test]
fn giant_headers_are_refused_by_their_length_whatever_kind_they_are() {
    // PAX of an entry and of all, GNU's long name and long link.
    for kind in [b'x', b'g', b'L', b'K'] {
        let mut huge = Archive::new().entry(kind, "p", "", 0, (0, 0), b"").tar();
        let mut header = Header::from_byte_slice(&huge[..512]).clone();
        for size in [(1 << 20) + 1, 1 << 62] {
            header.set_size(size);
            header.set_cksum();
            huge[..512].copy_from_slice(header.as_bytes());
            let refused = entries(&huge).unwrap_err();
            assert!(matches!(refused, TarError::Extension { detail: "longer than 1 MiB", .. }), "{refused}");
        }
    }
}

#[test]
fn the_end_may_be_marked_or_not() {
    let whole = Archive::new().file("a", b"x").tar();
    assert_eq!(entries(&whole[..1024]).unwrap().len(), 1);
    assert_eq!(entries(&whole[..1536]).unwrap().len(), 1);
    assert_eq!(entries(&[0; 10240]).unwrap().len(), 0);
    assert_eq!(entries(b"").unwrap().len(), 0);
}

#[test]
fn blank_numbers_are_zero_and_bad_ones_refused() {
    let header = |field: &[u8; 8]| {
        let mut bytes = Archive::new().owner(7, 7).file("f", b"").tar();
        let mut header = Header::from_byte_slice(&bytes[..512]).clone();
        header.as_mut_bytes()[108..116].copy_from_slice(field);
        header.set_cksum();
        bytes[..512].copy_from_slice(header.as_bytes());
        entries(&bytes).map(|all| all[0].0.meta.uid)
    };
    assert_eq!(header(b"0000012\0").unwrap(), 10);
    assert_eq!(header(&[0; 8]).unwrap(), 0);
    assert_eq!(header(b"        ").unwrap(), 0);
    for bad in [b"xyz    \0", b"\x80\0\0\0\xff\xff\xff\xff", b"\x80\0\0\x01\0\0\0\0"] {
        assert!(matches!(header(bad), Err(TarError::Header { .. })), "{bad:?}");
    }
}

#[test]
fn old_directories_and_sparse_files() {
    let all = entries(&Archive::new().entry(0, "d/", "", 0o755, (0, 0), b"").tar()).unwrap();
    assert_eq!(all[0].0.kind, EntryKind::Directory);
    let sparse = Archive::new().pax(&[("GNU.sparse.major", b"1")]).file("s", b"");
    assert!(entries(&sparse.tar()).unwrap_err().to_string().contains("sparse"));
}

#[test]
fn a_length_that_is_no_number_with_its_padding_is_refused() {
    for size in [&b"18446744073709551615"[..], b"9223372036854775808"] {
        let bytes = Archive::new().pax(&[("size", size)]).file("a", b"").tar();
        // Not read: the reader has to find its way past it.
        let mut tar = Tarball::new(bytes.as_slice());
        let refused = tar.next_entry().unwrap_err();
        assert!(matches!(refused, TarError::Header { detail: "size is over 2^63", .. }), "{refused}");
    }
}

#[test]
fn records_without_end_are_refused_before_they_fill_the_memory() {
    let value = vec![b'v'; 1 << 19];
    let many = (0..9).fold(Archive::new(), |archive, _| archive.pax(&[("SCHILY.xattr.user.a", &value)]));
    let refused = entries(&many.file("a", b"").tar()).unwrap_err();
    assert!(matches!(refused, TarError::Extension { .. }), "{refused}");
    let few = Archive::new().pax(&[("SCHILY.xattr.user.a", &value)]).file("a", b"").tar();
    assert_eq!(entries(&few).unwrap().len(), 1);
}
