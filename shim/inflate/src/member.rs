//! Members of a gzip file one after another (RFC 1952). Owns header and trailer; never a block. Called by the crate's
//! one function.

use std::io::{self, Read, Write};

use crc32fast::Hasher;

use crate::block::Blocks;
use crate::input::{Input, corrupt};
use crate::output::InflateOutput;
use crate::run::Fast;

const FHCRC: u8 = 1 << 1;
const FEXTRA: u8 = 1 << 2;
const FNAME: u8 = 1 << 3;
const FCOMMENT: u8 = 1 << 4;
/// "must give an error indication if any reserved bit is non-zero"
const RESERVED: u8 = 0b1110_0000;
/// zlib bounds neither name nor comment, flate2 does by this; no builder of images writes either.
const LONGEST_FIELD: usize = 65535;

/// All members, to the end of `from`.
pub(crate) fn all(from: &mut dyn Read, to: &mut dyn Write, fast: Fast) -> io::Result<()> {
    let mut input = Input::new(from);
    let mut output = InflateOutput::new(to);
    let mut blocks = Blocks::new(fast);
    loop {
        if let Err(error) = one(&mut input, &mut output, &mut blocks) {
            // The fault is what counts, be it that of the writing before.
            let _ = output.write();
            return Err(error);
        }
        input.fill(1)?;
        if input.available() == 0 {
            return Ok(());
        }
    }
}

fn one(input: &mut Input<'_>, output: &mut InflateOutput<'_>, blocks: &mut Blocks) -> io::Result<()> {
    header(input)?;
    output.begin();
    blocks.inflate(input, output)?;
    input.align();
    let trailer = bytes::<8>(input)?;
    let (crc, size) = output.end()?;
    if trailer[..4] != crc.to_le_bytes() || trailer[4..] != size.to_le_bytes() {
        return Err(corrupt("CRC32 or ISIZE"));
    }
    Ok(())
}

fn header(input: &mut Input<'_>) -> io::Result<()> {
    let mut crc = Hasher::new();
    let fixed = bytes::<10>(input)?;
    let [0x1f, 0x8b, 8, flags, ..] = fixed else { return Err(corrupt("ID1, ID2 or CM")) };
    if flags & RESERVED != 0 {
        return Err(corrupt("reserved flags"));
    }
    crc.update(&fixed);
    if flags & FEXTRA != 0 {
        let length = bytes::<2>(input)?;
        crc.update(&length);
        for _ in 0..u16::from_le_bytes(length) {
            crc.update(&bytes::<1>(input)?);
        }
    }
    for field in [FNAME, FCOMMENT] {
        if flags & field != 0 {
            text(input, &mut crc)?;
        }
    }
    let [low, high, ..] = crc.finalize().to_le_bytes();
    if flags & FHCRC != 0 && bytes::<2>(input)? != [low, high] {
        return Err(corrupt("CRC16"));
    }
    Ok(())
}

/// A name or comment: of interest to nobody here.
fn text(input: &mut Input<'_>, crc: &mut Hasher) -> io::Result<()> {
    for _ in 0..=LONGEST_FIELD {
        let byte = bytes::<1>(input)?;
        crc.update(&byte);
        if byte == [0] {
            return Ok(());
        }
    }
    Err(corrupt("a name or comment without end"))
}

fn bytes<const N: usize>(input: &mut Input<'_>) -> io::Result<[u8; N]> {
    let mut found = [0; N];
    for byte in &mut found {
        *byte = input.byte()?;
    }
    Ok(found)
}
