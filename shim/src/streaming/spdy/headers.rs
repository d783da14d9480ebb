//! SPDY header blocks: names and values through one zlib stream for each direction of a connection
//! (draft-mbelshe-httpbis-spdy-00 §2.6.10). Owns the compression's state; bounds what a block may swell
//! to. Used by `spdy::frame`.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary::DICTIONARY;
use super::frame::Error;

/// Bytes of one block when inflated.
const MAX_BLOCK: usize = 64 << 10;
/// Headers of one block.
const MAX_COUNT: usize = 100;

/// Names (lower case) and values, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of a header, by its lower-case name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl FromIterator<(String, String)> for Headers {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(pairs: T) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect())
    }
}

#[derive(Debug)]
pub(super) struct Inflater {
    stream: Decompress,
}

impl Inflater {
    pub(super) fn new() -> Self {
        Self { stream: Decompress::new(true) }
    }

    pub(super) fn block(&mut self, compressed: &[u8]) -> Result<Headers, Error> {
        parse(&self.inflate(compressed)?)
    }

    fn inflate(&mut self, mut rest: &[u8]) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        let mut chunk = [0u8; 4096];
        loop {
            let (read, written) = (self.stream.total_in(), self.stream.total_out());
            let result = self.stream.decompress(rest, &mut chunk, FlushDecompress::Sync);
            let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            let (read, written) =
                (count(self.stream.total_in(), read), count(self.stream.total_out(), written));
            rest = rest.get(read..).unwrap_or_default();
            out.extend_from_slice(chunk.get(..written).unwrap_or_default());
            match result {
                _ if out.len() > MAX_BLOCK => return Err(Error::Headers("too long")),
                Err(error) if error.needs_dictionary().is_some() => {
                    self.stream
                        .set_dictionary(DICTIONARY)
                        .map_err(|_| Error::Headers("made with another dictionary"))?;
                }
                Err(_) => return Err(Error::Headers("does not inflate")),
                Ok(Status::StreamEnd) => return Err(Error::Headers("the compression has ended")),
                Ok(_) if rest.is_empty() && written < chunk.len() => return Ok(out),
                Ok(_) if read == 0 && written == 0 => return Err(Error::Headers("does not inflate")),
                Ok(_) => {}
            }
        }
    }
}

fn parse(block: &[u8]) -> Result<Headers, Error> {
    let short = Error::Headers("cut short");
    let mut rest = block;
    let word = |rest: &mut &[u8]| -> Result<usize, Error> {
        let (bytes, after) = rest.split_first_chunk::<4>().ok_or(Error::Headers("cut short"))?;
        *rest = after;
        Ok(u32::from_be_bytes(*bytes) as usize)
    };
    let count = word(&mut rest)?;
    if count > MAX_COUNT {
        return Err(Error::Headers("too many"));
    }
    let text = |rest: &mut &[u8]| -> Result<String, Error> {
        let length = word(rest)?;
        let (bytes, after) = rest.split_at_checked(length).ok_or(Error::Headers("cut short"))?;
        *rest = after;
        String::from_utf8(bytes.to_vec()).map_err(|_| Error::Headers("not UTF-8"))
    };
    let pairs: Vec<(String, String)> =
        (0..count).map(|_| Ok::<_, Error>((text(&mut rest)?, text(&mut rest)?))).collect::<Result<_, _>>()?;
    if rest.is_empty() { Ok(pairs.into_iter().collect()) } else { Err(short) }
}

#[derive(Debug)]
pub(super) struct Deflater {
    stream: Compress,
}

impl Deflater {
    pub(super) fn new() -> Result<Self, Error> {
        let mut stream = Compress::new(Compression::fast(), true);
        stream.set_dictionary(DICTIONARY).map_err(|_| Error::Headers("no dictionary"))?;
        Ok(Self { stream })
    }

    pub(super) fn block(&mut self, headers: &Headers) -> Result<Vec<u8>, Error> {
        let word = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
        let mut plain = word(headers.0.len()).to_vec();
        for (name, value) in &headers.0 {
            for text in [name, value] {
                plain.extend(word(text.len()));
                plain.extend(text.as_bytes());
            }
        }
        let mut out = Vec::with_capacity(plain.len() + 64);
        let mut rest = plain.as_slice();
        loop {
            let before = self.stream.total_in();
            self.stream
                .compress_vec(rest, &mut out, FlushCompress::Sync)
                .map_err(|_| Error::Headers("does not compress"))?;
            let read = usize::try_from(self.stream.total_in() - before).unwrap_or(usize::MAX);
            rest = rest.get(read..).unwrap_or_default();
            // Room left over means that everything was flushed into it.
            if rest.is_empty() && out.len() < out.capacity() {
                return Ok(out);
            }
            out.reserve(256);
        }
    }
}
