//! A strict reader of tar streams. Owns framing, PAX and GNU extension records and their limits;
//! never touches the file system, never interprets whiteouts (that is `unpack`). The `tar` crate's
//! header type decodes single blocks; its archive reader is not used because it reads extension
//! records of any size into memory and cuts binary PAX values at line ends.

mod fields;
mod pax;

#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

use tar::{EntryType, Header};

use pax::Overrides;

const BLOCK: usize = 512;
/// The limit of Go's archive/tar for one extension record.
const MAX_EXTENSION: u64 = 1 << 20;
/// Of all records of one entry: they are kept until it comes, and a stream of nothing else compresses well.
const MAX_EXTENSIONS: u64 = 4 << 20;
/// off_t of a file system is signed.
const MAX_FILE: u64 = i64::MAX as u64;
/// PATH_MAX, see limits.h(0p).
const MAX_PATH: usize = 4096;

/// Why a stream is not a tar archive that can be unpacked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TarError {
    /// The stream below failed: inflater or network.
    #[error("reading the archive")]
    Read {
        #[source]
        source: std::sync::Arc<io::Error>,
    },
    /// The stream ends within an entry.
    #[error("archive ends in the middle of {path:?}")]
    Truncated { path: String },
    /// A header block that is none.
    #[error("bad header at byte {offset}: {detail}")]
    Header { offset: u64, detail: &'static str },
    /// An extension record over the limit or not of its form.
    #[error("bad extension record at byte {offset}: {detail}")]
    Extension { offset: u64, detail: &'static str },
    /// Something that tar knows and this reader does not.
    #[error("{path:?}: {what} is not supported: {remedy}")]
    Unsupported { path: String, what: &'static str, remedy: &'static str },
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Symlink(Vec<u8>),
    Hardlink(Vec<u8>),
    Char(u32, u32),
    Block(u32, u32),
    Fifo,
}

/// Owner, permissions, time and extended attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permission and set-id bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// As in the archive, not yet sorted out.
    pub xattrs: Vec<(String, Vec<u8>)>,
}

/// One entry; its data, if any, must be read or skipped before the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarEntry {
    /// As in the archive: bytes, maybe with `./`, `/` or worse in front.
    pub path: Vec<u8>,
    pub kind: EntryKind,
    pub size: u64,
    pub meta: Meta,
}

/// The reader.
#[derive(Debug)]
pub struct Tarball<R> {
    inner: R,
    offset: u64,
    /// Data and padding of the current entry that nobody has read yet.
    data: u64,
    padding: u64,
    path: String,
}

impl<R: BufRead> Tarball<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, offset: 0, data: 0, padding: 0, path: String::new() }
    }

    /// The next entry; None at the end mark or at the end of the stream between two entries.
    ///
    /// # Errors
    /// [`TarError`].
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>, TarError> {
        self.skip()?;
        let mut overrides = Overrides::default();
        let begun = self.offset;
        loop {
            if self.offset - begun > MAX_EXTENSIONS {
                let detail = "the records of one entry are longer than 4 MiB";
                return Err(TarError::Extension { offset: self.offset, detail });
            }
            let Some(block) = self.header()? else { return Ok(None) };
            let header = Header::from_byte_slice(&block);
            match header.entry_type() {
                EntryType::XHeader => overrides.apply_pax(&self.extension(header)?, self.offset)?,
                // Comments of `git archive`; upstreams ignore them too.
                EntryType::XGlobalHeader => drop(self.extension(header)?),
                EntryType::GNULongName => overrides.path = Some(trim_nul(self.extension(header)?)),
                EntryType::GNULongLink => overrides.link = Some(trim_nul(self.extension(header)?)),
                _ => return self.entry(header, overrides).map(Some),
            }
        }
    }

    /// Reads on in the current entry's data; 0 at its end.
    ///
    /// # Errors
    /// [`TarError::Read`], [`TarError::Truncated`].
    pub fn read_data<E>(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, TarError> {
        if self.data == 0 {
            return Ok(Ok(0));
        }
        let most = usize::try_from(self.data).unwrap_or(usize::MAX);
        let chunk = self.inner.fill_buf().map_err(read)?;
        if chunk.is_empty() {
            return Err(TarError::Truncated { path: self.path.clone() });
        }
        let taken = match take(&chunk[..chunk.len().min(most)]) {
            Ok(taken) => taken,
            Err(error) => return Ok(Err(error)),
        };
        self.inner.consume(taken);
        self.data -= taken as u64;
        self.offset += taken as u64;
        Ok(Ok(taken))
    }

    /// Bytes of the stream that were read; after [`Self::next_entry`], where the entry's data begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The stream below, to be drained: hashes want every byte.
    pub fn into_inner(self) -> R {
        self.inner
    }

    fn skip(&mut self) -> Result<(), TarError> {
        self.data += self.padding;
        self.padding = 0;
        while self.data > 0 {
            match self.read_data(|chunk| Ok::<_, TarError>(chunk.len())) {
                Ok(Ok(_)) => {}
                Ok(Err(error)) | Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A header block with a good checksum, or None at the end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut zeros = 0;
        loop {
            let filled = self.fill(&mut block)?;
            if filled == 0 {
                return Ok(None); // No end mark: accepted, as by all readers.
            }
            if filled < BLOCK {
                return Err(TarError::Truncated { path: self.path.clone() });
            }
            if block.iter().all(|byte| *byte == 0) {
                zeros += 1;
                if zeros == 2 {
                    return Ok(None);
                }
                continue;
            }
            let bad = |detail| TarError::Header { offset: self.offset - BLOCK as u64, detail };
            let header = Header::from_byte_slice(&block);
            let sum: u32 = block
                .iter()
                .enumerate()
                .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
                .sum();
            if header.cksum().ok() != Some(sum) {
                return Err(bad("checksum does not fit"));
            }
            if zeros > 0 {
                return Err(bad("an entry follows half an end mark"));
            }
            return Ok(Some(block));
        }
    }

    fn fill(&mut self, block: &mut [u8]) -> Result<usize, TarError> {
        let mut filled = 0;
        while filled < block.len() {
            match self.inner.read(&mut block[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read(error)),
            }
        }
        self.offset += filled as u64;
        Ok(filled)
    }

    fn extension(&mut self, header: &Header) -> Result<Vec<u8>, TarError> {
        let offset = self.offset;
        let bad = |detail| TarError::Extension { offset, detail };
        let size = fields::size(header).ok_or_else(|| bad("size is no number"))?;
        if size > MAX_EXTENSION {
            return Err(bad("longer than 1 MiB"));
        }
        let mut data = vec![0; usize::try_from(size).map_err(|_| bad("longer than 1 MiB"))?];
        if self.fill(&mut data)? < data.len() {
            return Err(bad("cut off"));
        }
        self.padding = pad(size);
        self.skip()?;
        Ok(data)
    }

    fn entry(&mut self, header: &Header, own: Overrides) -> Result<TarEntry, TarError> {
        let offset = self.offset - BLOCK as u64;
        let bad = |detail| TarError::Header { offset, detail };
        let path = own.path.clone().unwrap_or_else(|| header.path_bytes().into_owned());
        self.path = shown(&path);
        let unsupported = |what, remedy| TarError::Unsupported { path: shown(&path), what, remedy };
        if path.len() > MAX_PATH {
            return Err(bad("path is longer than 4096 bytes"));
        }
        if own.sparse || header.entry_type() == EntryType::GNUSparse {
            return Err(unsupported("a sparse file", "pack the layer without sparse files"));
        }
        let kind = fields::kind(header, &path, own.link.as_deref()).map_err(|wrong| match wrong {
            fields::FieldError::Number(detail) => bad(detail),
            fields::FieldError::Type => {
                unsupported("an entry of unknown type", "pack the layer with GNU tar or Go")
            }
        })?;
        // Only files have data; some writers leave a size on others, which Go's reader ignores too.
        let size = match kind {
            EntryKind::File => {
                own.size.or_else(|| fields::size(header)).ok_or_else(|| bad("size is no number"))?
            }
            _ => 0,
        };
        // No file is as long as that, and a length with its padding must be a number.
        if size > MAX_FILE {
            return Err(bad("size is over 2^63"));
        }
        self.data = size;
        self.padding = pad(size);
        let meta = fields::meta(header, own).map_err(bad)?;
        Ok(TarEntry { path, kind, size, meta })
    }
}

/// A path as it may stand in an error.
pub fn shown(path: &[u8]) -> String {
    clip(&String::from_utf8_lossy(path))
}

/// Foreign text as it may stand in an error: short, and without control characters.
#[must_use]
pub fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(160).collect()
}

fn read(source: io::Error) -> TarError {
    TarError::Read { source: std::sync::Arc::new(source) }
}

fn pad(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

fn trim_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}
