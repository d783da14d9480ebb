//! Fields of a header block, overridden by its extension records. Pure. Called by `tarball` only.

use std::io;
use std::ops::Range;

use tar::{EntryType, Header};

use super::pax::Overrides;
use super::{EntryKind, Meta};

// Offsets of ustar's fields, pax(1p) "ustar Interchange Format".
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MAJOR: Range<usize> = 329..337;
const MINOR: Range<usize> = 337..345;

/// What is wrong with an entry's type.
pub(super) enum FieldError {
    Number(&'static str),
    Type,
}

/// The length of the data behind the header.
pub(super) fn size(header: &Header) -> Option<u64> {
    number(header, SIZE, header.entry_size())
}

pub(super) fn kind(header: &Header, path: &[u8], link: Option<&[u8]>) -> Result<EntryKind, FieldError> {
    let link = || match link {
        Some(link) => link.to_vec(),
        None => header.link_name_bytes().map(|link| link.into_owned()).unwrap_or_default(),
    };
    let device = || {
        let part = |range, value: io::Result<Option<u32>>| {
            number(header, range, value.map(|value| u64::from(value.unwrap_or(0))))
                .and_then(|value| u32::try_from(value).ok())
                .ok_or(FieldError::Number("device number is no number"))
        };
        Ok((part(MAJOR, header.device_major())?, part(MINOR, header.device_minor())?))
    };
    Ok(match header.entry_type() {
        // Archives older than ustar mark directories by a slash only.
        EntryType::Regular if path.ends_with(b"/") => EntryKind::Directory,
        EntryType::Regular | EntryType::Continuous => EntryKind::File,
        EntryType::Directory => EntryKind::Directory,
        EntryType::Symlink => EntryKind::Symlink(link()),
        EntryType::Link => EntryKind::Hardlink(link()),
        EntryType::Char => device().map(|(major, minor)| EntryKind::Char(major, minor))?,
        EntryType::Block => device().map(|(major, minor)| EntryKind::Block(major, minor))?,
        EntryType::Fifo => EntryKind::Fifo,
        _ => return Err(FieldError::Type),
    })
}

pub(super) fn meta(header: &Header, own: Overrides) -> Result<Meta, &'static str> {
    let id = |pax: Option<u64>, range, field| {
        // chown(2) takes the highest id for "leave as it is".
        let id = pax.or_else(|| number(header, range, field)).and_then(|id| u32::try_from(id).ok());
        id.filter(|id| *id != u32::MAX)
    };
    let mode = number(header, MODE, header.mode().map(u64::from)).ok_or("mode is no number")?;
    let seconds = || header.mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
    Ok(Meta {
        mode: u32::try_from(mode & 0o7777).unwrap_or(0),
        uid: id(own.uid, UID, header.uid()).ok_or("uid is no 32-bit number")?,
        gid: id(own.gid, GID, header.gid()).ok_or("gid is no 32-bit number")?,
        mtime: own.mtime.unwrap_or_else(|| (seconds(), 0)),
        xattrs: own.xattrs,
    })
}

/// Blank fields are zero, as in Go's reader; the crate's refuses them.
fn number(header: &Header, range: Range<usize>, value: io::Result<u64>) -> Option<u64> {
    let blank = header.as_bytes()[range].iter().all(|byte| matches!(byte, 0 | b' '));
    if blank { Some(0) } else { value.ok() }
}
