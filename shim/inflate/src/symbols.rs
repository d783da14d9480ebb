//! Symbols of a block with codes (RFC 1951 section 3.2.3), up to its end. Owns the choice between the loop for the bulk
//! (`fast`) and the one that can stop at any bit; both say the same of the same bits. Called by `block`.

use std::io;

use crate::code::{DIST_INDEX, END, LITERAL, LITLEN_INDEX, SPECIAL, SUBTABLE, Tables, low, second, value};
use crate::fast::{Cursor, MARGIN, Stop};
use crate::input::{Input, corrupt};
use crate::output::InflateOutput;
use crate::run::{Fast, FastLoop};

/// All symbols of a block.
pub(crate) fn all(
    fast: Fast,
    tables: &Tables,
    input: &mut Input<'_>,
    output: &mut InflateOutput<'_>,
) -> io::Result<()> {
    loop {
        output.make_room()?;
        input.bits.give_back();
        input.fill(4 * MARGIN)?;
        // Fewer than wanted are the stream's last ones.
        if input.available() < 2 * MARGIN {
            if one(tables, input, output)? {
                return Ok(());
            }
            continue;
        }
        let mut place =
            Cursor { bits: input.bits, end: input.end - MARGIN, at: output.at, oldest: output.oldest };
        let run = FastLoop { tables, from: &input.bytes, to: &mut output.bytes, place: &mut place };
        let stop = fast(run);
        input.bits = place.bits;
        output.at = place.at;
        match stop {
            Stop::Edge => {}
            Stop::End => return Ok(()),
            Stop::Corrupt => return Err(corrupt("a symbol")),
        }
    }
}

/// One symbol, with all care; whether it was the last one.
fn one(tables: &Tables, input: &mut Input<'_>, output: &mut InflateOutput<'_>) -> io::Result<bool> {
    let (entry, bits) = look(&tables.litlen, LITLEN_INDEX, input)?;
    if entry & LITERAL != 0 {
        output.bytes[output.at] = entry.to_le_bytes()[1];
        output.at += 1;
        return Ok(false);
    }
    if entry & SPECIAL != 0 {
        return if entry & END != 0 { Ok(true) } else { Err(corrupt("a length")) };
    }
    let length = value(entry, bits);
    let (entry, bits) = look(&tables.dist, DIST_INDEX, input)?;
    if entry & SPECIAL != 0 {
        return Err(corrupt("a distance's code"));
    }
    let distance = value(entry, bits);
    if distance > output.at - output.oldest {
        return Err(corrupt("a distance from before the beginning"));
    }
    for to in output.at..output.at + length {
        output.bytes[to] = output.bytes[to - distance];
    }
    output.at += length;
    Ok(false)
}

/// The next symbol's entry and the bits that it and its extra bits are in, which are taken.
fn look<const N: usize>(table: &[u32; N], index: u32, input: &mut Input<'_>) -> io::Result<(u32, u64)> {
    input.refill()?;
    let bits = input.bits.buffer;
    let mut entry = table[low(bits) & ((1 << index) - 1)];
    if entry & (LITERAL | SUBTABLE) == SUBTABLE {
        entry = second(table, entry, bits, index);
    }
    input.skip(entry & 0x3f)?;
    Ok((entry, bits))
}
