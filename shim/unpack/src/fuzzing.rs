//! What must hold for any archive, packing and verdict: the bodies of the fuzz targets `layer`, `unpack`,
//! `inflate` and `messages`. Owns the checks; never the bytes. Called by the targets in `fuzz/`, and by the
//! tests here with the corpus that is kept.

#![expect(clippy::disallowed_methods, reason = "what a fuzzer is fed with")]

#[cfg(test)]
mod seeds;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use tar::{EntryType, Header};

use crate::plan::{Action, PlannedNode, plan};
use crate::tarball::{TarEntry, Tarball};
use crate::{
    Packing, TarError, Tree, UnpackError, UnpackVerdict, escape, inflate as inflate_all, mark_opaque, shown,
    unescape, unpack as unpack_all,
};
use gantry_shim_testing::place::ScratchFolder;

const BLOCK: usize = 512;
/// More than any input here may swell to: 64 KiB of zstd can stand for gigabytes.
const MOST: usize = 16 << 20;
const BUFFER: usize = 128 << 10;

/// The first byte says how: bit 0 leaves checksums as they are, bit 1 leaves half of a file's data unread.
pub fn layer(data: &[u8]) {
    let Some((how, archive)) = data.split_first() else { return };
    let archive = if how & 1 == 0 { repair_checksums(archive) } else { archive.to_vec() };
    let lazy = how & 2 != 0;
    let whole = list_entries(archive.as_slice(), archive.len(), lazy);
    // A hundred small files as well as one network's trickle: where the bytes are cut changes nothing.
    let cut = list_entries(BufReader::with_capacity(7, archive.as_slice()), archive.len(), lazy);
    assert_eq!(whole, cut);
}

/// Unpacks into a folder beside one that nothing may touch. As `layer` for the first byte.
pub fn unpack(data: &[u8]) {
    let Some((how, archive)) = data.split_first() else { return };
    let archive = if how & 1 == 0 { repair_checksums(archive) } else { archive.to_vec() };
    let place = ScratchFolder::new("unpack");
    let (layer, canary) = (place.join("layer"), place.join("canary"));
    // Left over by an input that was one finding too many.
    let _ = fs::remove_dir_all(&layer);
    let prepared = fs::create_dir_all(&canary)
        .and_then(|()| fs::create_dir(&layer))
        .and_then(|()| fs::write(canary.join("file"), "untouched"));
    assert!(prepared.is_ok(), "{prepared:?}");
    let mut tar = Tarball::new(archive.as_slice());
    let result = Tree::open(&layer).and_then(|tree| unpack_all(&mut tar, tree, 1000));
    assert_eq!(fs::read(canary.join("file")).ok().as_deref(), Some(&b"untouched"[..]));
    assert_eq!((names(&place), names(&canary)), (vec!["canary".into(), "layer".into()], vec!["file".into()]));
    if let Ok(report) = &result {
        assert!(report.entries <= 1000);
        assert!(held(&layer) <= report.bytes, "more in files than was reported");
        for path in report.implied.iter().chain(&report.opaque) {
            inside(path, true);
        }
        let marked = mark_opaque(&layer, &report.opaque);
        assert!(marked.is_ok(), "{marked:?}");
    }
    let verdict = UnpackVerdict::from(result);
    let again = serde_json::to_vec(&verdict).and_then(|text| serde_json::from_slice::<UnpackVerdict>(&text));
    assert_eq!(again.ok(), Some(verdict));
    let removed = fs::remove_dir_all(&layer);
    assert!(removed.is_ok(), "a layer that can't be removed: {removed:?}");
}

/// The first byte says which packing, and with bit 2 that the rest is to be packed first; without that, bit 3 puts a
/// gzip header before it, which chance seldom writes.
pub fn inflate(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    let packing = match how & 3 {
        0 | 3 => Packing::Plain,
        1 => Packing::Gzip,
        _ => Packing::Zstd,
    };
    assert_eq!(Packing::from_name(packing.name()), Some(packing));
    if how & 4 != 0 {
        let Some(packed) = pack(packing, rest) else { return };
        assert_eq!(inflate_to_vec(packing, packed.as_slice()), Ok(rest.to_vec()));
        // Cut off anywhere, it is an error or at least no other bytes.
        let cut = inflate_to_vec(
            packing,
            packed.get(..packed.len() * usize::from(how >> 3) / 32).unwrap_or_default(),
        );
        assert!(cut.is_err() || cut.is_ok_and(|bytes| rest.starts_with(&bytes)));
        return;
    }
    if packing == Packing::Gzip {
        let header: &[u8] = if how & 8 == 0 { b"" } else { &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0] };
        against_flate2(&[header, rest].concat());
    }
    let whole = inflate_to_vec(packing, rest);
    let trickled = inflate_to_vec(packing, Trickle(rest));
    // Of a stream with several faults (broken, cut off, too long) the one that is met first is told, and who reads
    // ahead meets another one first. libzstd looks harder at a frame that it has whole: an empty compressed block is
    // refused there, and passed over in a stream; and the window that it says counts in a stream alone.
    // Digests are of what came out, either way.
    let one_fails = whole.is_err() || trickled.is_err();
    let both_fail = whole.is_err() && trickled.is_err();
    let may_differ = both_fail || (one_fails && packing == Packing::Zstd);
    assert!(may_differ || whole == trickled, "{:?}, trickled {:?}", whole.err(), trickled.err());
    if packing == Packing::Plain {
        assert_eq!(whole.as_deref(), Ok(rest));
    }
}

/// The same verdict, the same bytes of what is whole or cut off; of what is damaged flate2 keeps back what came out last.
fn against_flate2(packed: &[u8]) {
    let (mut ours, mut theirs) = (Bounded::default(), Bounded::default());
    let our_end = inflate_all(Packing::Gzip, packed, &mut ours).map_err(|error| error.kind());
    let mut decoder = flate2::bufread::MultiGzDecoder::new(BufReader::with_capacity(BUFFER, packed));
    let their_end = io::copy(&mut decoder, &mut theirs).map(drop).map_err(|error| error.kind());
    // Which fault is met first where there are two hangs on how much is written at once.
    if our_end == Err(io::ErrorKind::BrokenPipe) {
        return;
    }
    assert_eq!(our_end, their_end);
    assert!(ours.0.starts_with(&theirs.0), "other bytes than flate2's");
    assert!(our_end == Err(io::ErrorKind::InvalidInput) || ours.0.len() == theirs.0.len(), "more bytes");
}

/// What processes of ours say that an image's bytes or a container may have taken over.
pub fn messages(data: &[u8]) {
    assert_eq!(unescape(&escape(data)), data);
    if let Ok(verdict) = serde_json::from_slice::<UnpackVerdict>(data) {
        let text = serde_json::to_vec(&verdict);
        assert_eq!(text.and_then(|text| serde_json::from_slice(&text)).ok(), Some(verdict));
    }
    // What a hostile name becomes in words.
    let path = shown(data);
    let refused = UnpackVerdict::from(Err(UnpackError::Tar { source: TarError::Truncated { path } }));
    let again = serde_json::to_vec(&refused).and_then(|text| serde_json::from_slice::<UnpackVerdict>(&text));
    assert_eq!(again.ok(), Some(refused));
}

/// Entries up to the first error, and that error's words.
fn list_entries(from: impl io::BufRead, length: usize, lazy: bool) -> (Vec<TarEntry>, Option<String>) {
    let (mut tar, mut entries) = (Tarball::new(from), Vec::new());
    loop {
        // Each has a header of its own.
        assert!(entries.len() <= length / BLOCK, "more entries than blocks");
        let entry = match tar.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => return (entries, None),
            Err(error) => return (entries, Some(error.to_string())),
        };
        fits(&entry, length);
        let wanted = if lazy { entry.size / 2 } else { entry.size };
        entries.push(entry);
        let mut read = 0;
        while read < wanted {
            match tar.read_data(|chunk| Ok::<_, TarballEnd>(chunk.len().min(clamp_size(wanted - read)))) {
                Ok(Ok(0)) => assert_eq!(read, wanted, "an end before the end"),
                Ok(Ok(count)) => read += count as u64,
                Ok(Err(TarballEnd)) => return (entries, None),
                Err(error) => return (entries, Some(error.to_string())),
            }
        }
    }
}

/// Nobody stops reading here.
#[derive(Debug)]
struct TarballEnd;

fn clamp_size(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn fits(entry: &TarEntry, length: usize) {
    assert!(entry.path.len() <= 4096);
    let meta = &entry.meta;
    assert!(
        meta.mode <= 0o7777 && meta.uid != u32::MAX && meta.gid != u32::MAX && meta.mtime.1 < 1_000_000_000
    );
    let xattrs: usize = meta.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(xattrs <= length, "attributes out of nothing");
    match plan(entry) {
        Err(error) => assert!(error.to_string().len() < 2000),
        Ok(Action::Skip) => {}
        Ok(Action::Opaque { directory: path }) => inside(&path, true),
        Ok(Action::Whiteout { path }) => inside(&path, false),
        Ok(Action::Directory { path }) => own(&path, true),
        Ok(Action::File { path }) => own(&path, false),
        Ok(Action::Symlink { path, target }) => {
            own(&path, false);
            assert!(!target.is_empty() && !target.contains(&0));
        }
        Ok(Action::Hardlink { path, target }) => {
            own(&path, false);
            inside(&target, false);
        }
        Ok(Action::Node { path, node }) => {
            own(&path, false);
            assert_ne!(node, PlannedNode::Char(0, 0), "overlayfs would take it for a whiteout");
        }
    }
}

/// Of a file of the layer's own: nothing in it is called as a whiteout.
fn own(path: &[u8], may_be_root: bool) {
    inside(path, may_be_root);
    assert!(!path.split(|byte| *byte == b'/').any(|part| part.starts_with(b".wh.")), "{path:?}");
}

/// Below the layer's root, in the one form that a path has.
fn inside(path: &[u8], may_be_root: bool) {
    assert!(may_be_root || !path.is_empty());
    for part in path.split(|byte| *byte == b'/').filter(|_| !path.is_empty()) {
        assert!(!matches!(part, b"" | b"." | b"..") && !part.contains(&0) && part.len() <= 255, "{path:?}");
    }
}

/// The archive with good checksums: by chance there would never be one. Follows the reader's rule of
/// which entries have data.
fn repair_checksums(archive: &[u8]) -> Vec<u8> {
    let mut archive = archive.to_vec();
    let mut at = 0_usize;
    while let Some(block) = archive.get_mut(at..at.saturating_add(BLOCK)) {
        at += BLOCK;
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        if let Some(field) = block.get_mut(148..156) {
            field.fill(b' ');
        }
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        if let Some(field) = block.get_mut(148..156) {
            field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let header = Header::from_byte_slice(block);
        let has_data = matches!(
            header.entry_type(),
            EntryType::Regular
                | EntryType::Continuous
                | EntryType::XHeader
                | EntryType::XGlobalHeader
                | EntryType::GNULongName
                | EntryType::GNULongLink
        );
        let size = header.entry_size().unwrap_or(0);
        let blocks = clamp_size(size).checked_next_multiple_of(BLOCK).filter(|_| has_data).unwrap_or(0);
        at = at.saturating_add(blocks);
    }
    archive
}

/// One byte at a time.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(((first, rest), to)) = self.0.split_first().zip(into.first_mut()) else { return Ok(0) };
        *to = *first;
        self.0 = rest;
        Ok(1)
    }
}

/// Takes so much and hangs up.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MOST {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn inflate_to_vec(packing: Packing, from: impl Read) -> Result<Vec<u8>, io::ErrorKind> {
    let mut to = Bounded::default();
    inflate_all(packing, from, &mut to).map(|()| to.0).map_err(|error| error.kind())
}

fn pack(packing: Packing, bytes: &[u8]) -> Option<Vec<u8>> {
    match packing {
        Packing::Plain => Some(bytes.to_vec()),
        Packing::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level(bytes));
            encoder.write_all(bytes).and_then(|()| encoder.finish()).ok()
        }
        Packing::Zstd => zstd::encode_all(bytes, 1).ok(),
    }
}

/// Any: stored, fixed and dynamic blocks all come of one level or another.
fn level(bytes: &[u8]) -> flate2::Compression {
    flate2::Compression::new(bytes.first().map_or(6, |byte| u32::from(*byte) % 10))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Bytes in files below, each inode once; what is no file of an image must not be there.
fn held(folder: &Path) -> u64 {
    let (mut folders, mut seen, mut bytes) = (vec![folder.to_owned()], std::collections::HashSet::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            let kind = found.file_type();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && seen.insert(found.ino()) {
                bytes += found.len();
            }
            assert!(!kind.is_socket());
        }
    }
    bytes
}
