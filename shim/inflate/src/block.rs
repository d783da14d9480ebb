//! Blocks of a deflate stream (RFC 1951 section 3.2.3). Owns their headers and stored bytes; coded ones are for
//! `symbols`. Called by `member`.

use std::io;

use crate::code::{self, LENGTHS_INDEX, Tables};
use crate::input::{Input, corrupt};
use crate::output::{self, InflateOutput};
use crate::run::Fast;
use crate::symbols;

/// In which lengths of codes of code lengths come (section 3.2.7).
const ORDER: [u8; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
const END_OF_BLOCK: usize = 256;
const MOST_LITLEN: usize = 286;
const MOST_DIST: usize = 30;

/// What is kept from one block to the next.
pub(crate) struct Blocks {
    tables: Box<Tables>,
    /// The tables are those of fixed codes: small blocks of these come in rows.
    is_fixed: bool,
    fast: Fast,
}

impl Blocks {
    pub(crate) fn new(fast: Fast) -> Self {
        Self { tables: Tables::new(), is_fixed: false, fast }
    }

    /// All blocks of a member.
    pub(crate) fn inflate(
        &mut self,
        input: &mut Input<'_>,
        output: &mut InflateOutput<'_>,
    ) -> io::Result<()> {
        loop {
            let is_last = input.take(1)? == 1;
            match input.take(2)? {
                0 => copy_stored(input, output)?,
                1 => {
                    self.fix()?;
                    symbols::all(self.fast, &self.tables, input, output)?;
                }
                2 => {
                    self.read_codes(input)?;
                    symbols::all(self.fast, &self.tables, input, output)?;
                }
                _ => return Err(corrupt("BTYPE")),
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn fix(&mut self) -> io::Result<()> {
        if !self.is_fixed {
            self.tables.fix().map_err(|_| corrupt("fixed codes"))?;
            self.is_fixed = true;
        }
        Ok(())
    }

    fn read_codes(&mut self, input: &mut Input<'_>) -> io::Result<()> {
        self.is_fixed = false;
        let litlen = usize::from(input.take(5)?) + 257;
        let dist = usize::from(input.take(5)?) + 1;
        let count = usize::from(input.take(4)?) + 4;
        if litlen > MOST_LITLEN || dist > MOST_DIST {
            return Err(corrupt("HLIT or HDIST"));
        }
        let mut lengths = [0; 19];
        for symbol in ORDER.iter().take(count) {
            lengths[usize::from(*symbol)] = small(input.take(3)?);
        }
        let mut table = [0; 1 << LENGTHS_INDEX];
        code::of_lengths(&mut table, &lengths).map_err(|_| corrupt("code of code lengths"))?;
        let mut lengths = [0; MOST_LITLEN + MOST_DIST];
        let lengths = &mut lengths[..litlen + dist];
        read_lengths(input, &table, lengths)?;
        if lengths[END_OF_BLOCK] == 0 {
            return Err(corrupt("no code for the block's end"));
        }
        let (litlen, dist) = lengths.split_at(litlen);
        self.tables.make(litlen, dist).map_err(|_| corrupt("code of literals or distances"))
    }
}

/// Of a field of some bits.
fn small(value: u16) -> u8 {
    value.to_le_bytes()[0]
}

/// Both alphabets' code lengths in one row: a repetition may go from one into the other.
fn read_lengths(input: &mut Input<'_>, table: &[u32; 1 << LENGTHS_INDEX], into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        if input.bits.count < 14 {
            input.refill()?;
        }
        let index = input.bits.buffer.to_le_bytes()[0] & ((1 << LENGTHS_INDEX) - 1);
        let [bits, _, symbol, _] = table[usize::from(index)].to_le_bytes();
        input.skip(u32::from(bits))?;
        let (length, count) = match symbol {
            0..=15 => (symbol, 1),
            16 => {
                let count = 3 + input.take(2)?;
                let before = done.checked_sub(1).ok_or_else(|| corrupt("a repetition of nothing"))?;
                (into[before], count)
            }
            17 => (0, 3 + input.take(3)?),
            _ => (0, 11 + input.take(7)?),
        };
        let end = done + usize::from(count);
        into.get_mut(done..end).ok_or_else(|| corrupt("a repetition of too much"))?.fill(length);
        done = end;
    }
    Ok(())
}

/// Bytes as they are (section 3.2.4).
fn copy_stored(input: &mut Input<'_>, output: &mut InflateOutput<'_>) -> io::Result<()> {
    input.align();
    let length = u16::from_le_bytes([input.byte()?, input.byte()?]);
    let complement = u16::from_le_bytes([input.byte()?, input.byte()?]);
    if length != !complement {
        return Err(corrupt("LEN and NLEN"));
    }
    let mut left = usize::from(length);
    while left > 0 {
        input.fill(1)?;
        output.make_room()?;
        let (from, to) = (input.bits.at, output.at);
        let count = left.min(input.available()).min(output::FULL - to);
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        output.bytes[to..to + count].copy_from_slice(&input.bytes[from..from + count]);
        input.bits.at += count;
        output.at += count;
        left -= count;
    }
    Ok(())
}
