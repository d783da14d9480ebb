//! Prefix codes as tables (RFC 1951 sections 3.2.2 and 3.2.5): the next bits are an index, and the entry there says all
//! about the symbol. Owns the entries' form and which codes are none; never reads a bit. Called by `block` and `symbols`.
//! Pure.
//!
//! ```text
//!   bit       31       30..16                 15       14        13   12..8          7..0
//!   literal   LITERAL  -                      the byte, 15..8                       bits of the code
//!   length    -        least length           -        -         -    of its code   bits of code and extra bits
//!   distance  least distance, 31..16          -        -         -    of its code   bits of code and extra bits
//!   end       -        -                      SPECIAL  -         END  -             bits of the code
//!   longer    -        where they start       SPECIAL  SUBTABLE  -    of the index  bits of the first part's index
//!   none      -        -                      SPECIAL  -         -    -             bits that are no code
//! ```

/// A byte as it is.
pub(crate) const LITERAL: u32 = 1 << 31;
/// Neither length nor distance, if it is no literal.
pub(crate) const SPECIAL: u32 = 1 << 15;
/// The code is longer than the first part's index.
pub(crate) const SUBTABLE: u32 = 1 << 14;
/// The block's end.
pub(crate) const END: u32 = 1 << 13;
/// Told as soon as one bit of it is there, as zlib does.
const NONE: u32 = SPECIAL | 1;

/// Longer codes need a second look. With 10 it is as fast, with 12 the table takes more of the first cache.
pub(crate) const LITLEN_INDEX: u32 = 11;
pub(crate) const DIST_INDEX: u32 = 9;
const LITLEN_ROOM: usize = 1 << 12;
const DIST_ROOM: usize = 1 << 10;
/// Longest code of code lengths.
pub(crate) const LENGTHS_INDEX: u32 = 7;
const LONGEST: usize = 15;
const LONGEST_CODE: u32 = 15;
/// RFC 1951 section 3.2.6, with the two that are never used.
const SYMBOLS: usize = 288;

/// A table, both parts. The most that any code takes is 2342 entries for 288 symbols and 11 bits, 594 for 32 and 9 (the
/// program `enough` of zlib); a power of two, so that a mask keeps any index inside.
pub(crate) type LitLen = [u32; LITLEN_ROOM];
pub(crate) type Dist = [u32; DIST_ROOM];

/// A block's codes.
pub(crate) struct Tables {
    pub(crate) litlen: LitLen,
    pub(crate) dist: Dist,
}

/// Symbols' entries before their codes are known: in the low bits is how many extra bits they have.
static LITLEN: [u32; SYMBOLS] = litlen();
static DIST: [u32; 32] = dist();
static LENGTHS: [u32; 19] = lengths();

const fn litlen() -> [u32; SYMBOLS] {
    let mut entries = [SPECIAL; SYMBOLS];
    let mut symbol = 0;
    while symbol < 256 {
        entries[symbol as usize] = LITERAL | symbol << 8;
        symbol += 1;
    }
    entries[256] = SPECIAL | END;
    let (mut length, mut above) = (3, 0);
    while above < 28 {
        let extra = if above < 8 { 0 } else { above / 4 - 1 };
        entries[257 + above as usize] = length << 16 | extra;
        length += 1 << extra;
        above += 1;
    }
    entries[285] = 258 << 16;
    entries
}

const fn dist() -> [u32; 32] {
    let mut entries = [SPECIAL; 32];
    let (mut distance, mut symbol) = (1, 0);
    while symbol < 30 {
        let extra = if symbol < 4 { 0 } else { symbol / 2 - 1 };
        entries[symbol as usize] = distance << 16 | extra;
        distance += 1 << extra;
        symbol += 1;
    }
    entries
}

const fn lengths() -> [u32; 19] {
    let mut entries = [0; 19];
    let mut symbol = 0;
    while symbol < 19 {
        entries[symbol as usize] = symbol << 16;
        symbol += 1;
    }
    entries
}

/// There is no such code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoCode;

impl Tables {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self { litlen: [NONE; _], dist: [NONE; _] })
    }

    /// The codes of a block with fixed ones (RFC 1951 section 3.2.6).
    pub(crate) fn fix(&mut self) -> Result<(), NoCode> {
        let mut litlen = [8; SYMBOLS];
        litlen[144..256].fill(9);
        litlen[256..280].fill(7);
        self.make(&litlen, &[5; 32])
    }

    /// The codes of symbols whose lengths are these.
    pub(crate) fn make(&mut self, litlen: &[u8], dist: &[u8]) -> Result<(), NoCode> {
        fill(&mut self.litlen, LITLEN_INDEX, litlen, &LITLEN, true)?;
        fill(&mut self.dist, DIST_INDEX, dist, &DIST, true)
    }
}

/// The code of code lengths. One without any symbol reads as length 0 for each bit: zlib's way, by which the block
/// then has no end.
pub(crate) fn of_lengths(table: &mut [u32; 1 << LENGTHS_INDEX], lengths: &[u8; 19]) -> Result<(), NoCode> {
    if lengths.iter().all(|length| *length == 0) {
        table.fill(1);
        return Ok(());
    }
    fill(table, LENGTHS_INDEX, lengths, &LENGTHS, false)
}

/// zlib's rules: no more codes than there are bits for, and no fewer, but that a code of literals or distances may have
/// one symbol of one bit (its other bit is none), and distances none at all.
fn fill<const N: usize>(
    table: &mut [u32; N],
    index: u32,
    lengths: &[u8],
    symbols: &[u32],
    may_be_lone: bool,
) -> Result<(), NoCode> {
    let mut counts = [0_u16; LONGEST + 1];
    for length in lengths {
        counts[usize::from(*length) & LONGEST] += 1;
    }
    counts[0] = 0;
    let Some(longest) = counts.iter().rposition(|count| *count > 0) else {
        table[..1 << index].fill(NONE);
        return Ok(());
    };
    let mut free = 1_u32;
    for count in &counts[1..] {
        free = (free << 1).checked_sub(u32::from(*count)).ok_or(NoCode)?;
    }
    let sorted = symbols_by_code(&counts, lengths);
    if free > 0 {
        if !may_be_lone || longest != 1 {
            return Err(NoCode);
        }
        let lone = entry(symbols[usize::from(sorted[0])], 1);
        for pair in table[..1 << index].chunks_exact_mut(2) {
            pair.copy_from_slice(&[lone, NONE]);
        }
        return Ok(());
    }
    let (next, code) = first_part(table, index, &counts, &sorted, symbols);
    second_part(table, index, longest, &counts, sorted.get(next..).unwrap_or_default(), symbols, code)
}

/// Symbols that have a code, in the order of their codes.
fn symbols_by_code(counts: &[u16; LONGEST + 1], lengths: &[u8]) -> [u16; SYMBOLS] {
    let mut starts = [0_u16; LONGEST + 2];
    for length in 1..=LONGEST {
        starts[length + 1] = starts[length] + counts[length];
    }
    let mut sorted = [0; SYMBOLS];
    for (symbol, length) in (0_u16..).zip(lengths) {
        if *length != 0 {
            let place = &mut starts[usize::from(*length) & LONGEST];
            sorted[usize::from(*place)] = symbol;
            *place += 1;
        }
    }
    sorted
}

/// Codes that an index holds whole; says how many they are and which code is next. A table for codes up to one length
/// is the one for all shorter ones twice, and theirs.
fn first_part<const N: usize>(
    table: &mut [u32; N],
    index: u32,
    counts: &[u16; LONGEST + 1],
    sorted: &[u16],
    symbols: &[u32],
) -> (usize, u32) {
    let (mut next, mut code) = (0, 0);
    for length in 1..=index {
        let size = 1_usize << (length - 1);
        table.copy_within(..size, size);
        for _ in 0..counts[length as usize] {
            table[code as usize & (N - 1)] = entry(symbols[usize::from(sorted[next])], length);
            next += 1;
            code = following(code, length);
        }
    }
    (next, code)
}

/// Longer codes: those with the same first bits have a table behind, as large as the longest of them wants it.
fn second_part<const N: usize>(
    table: &mut [u32; N],
    index: u32,
    longest: usize,
    counts: &[u16; LONGEST + 1],
    sorted: &[u16],
    symbols: &[u32],
    mut code: u32,
) -> Result<(), NoCode> {
    let mut sorted = sorted.iter();
    let (mut prefix, mut start, mut end) = (u32::MAX, 0_u32, 1_u32 << index);
    for length in index + 1..=LONGEST_CODE {
        for left in (1..=counts[length as usize]).rev() {
            let first = code & ((1 << index) - 1);
            if first != prefix {
                let bits = width(length, index, left, counts.get(..=longest).unwrap_or_default());
                (prefix, start, end) = (first, end, end + (1 << bits));
                if end as usize > N {
                    return Err(NoCode);
                }
                table[first as usize & (N - 1)] = start << 16 | SPECIAL | SUBTABLE | bits << 8 | index;
            }
            let Some(symbol) = sorted.next() else { return Ok(()) };
            let entry = entry(symbols[usize::from(*symbol)], length);
            let part = &mut table[start as usize..end as usize];
            for place in part.iter_mut().skip((code >> index) as usize).step_by(1 << (length - index)) {
                *place = entry;
            }
            code = following(code, length);
        }
    }
    Ok(())
}

/// How many bits behind the first part's index the codes have that begin as the next one does, of which `left` have its
/// length: zlib's and everybody's way to find the least that holds them.
fn width(length: u32, index: u32, left: u16, counts: &[u16]) -> u32 {
    let mut bits = length - index;
    let mut free = (1_u32 << bits).saturating_sub(u32::from(left));
    for count in counts.iter().skip(length as usize + 1) {
        if free == 0 {
            break;
        }
        bits += 1;
        free = (free << 1).saturating_sub(u32::from(*count));
    }
    bits
}

/// A symbol's entry with its code's length.
fn entry(symbol: u32, length: u32) -> u32 {
    if symbol & (LITERAL | SPECIAL) == 0 { symbol + (length << 8) + length } else { symbol + length }
}

/// The code after this one of as many bits. Codes count upwards with their first bit as the highest, here it is the
/// lowest. After the last one comes 0, for nobody.
fn following(code: u32, length: u32) -> u32 {
    let zeros = !code & ((1 << length) - 1);
    let Some(highest) = zeros.checked_ilog2() else { return 0 };
    let bit = 1 << highest;
    code & (bit - 1) | bit
}

/// The entry in the second part that one of the first says to look at.
#[inline(always)]
pub(crate) fn second<const N: usize>(table: &[u32; N], entry: u32, bits: u64, index: u32) -> u32 {
    let below = low(bits >> index) & ((1 << (entry >> 8 & 0xf)) - 1);
    table[((entry >> 16) as usize + below) & (N - 1)]
}

/// A length or distance: the least one of its symbol and the extra bits, which stand behind the code.
#[inline(always)]
pub(crate) fn value(entry: u32, bits: u64) -> usize {
    let all = bits & ((1 << (entry & 0x3f)) - 1);
    (entry >> 16) as usize + low(all >> (entry >> 8 & 0xf))
}

/// What an index or a length is made of.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low bits are what is wanted, on any processor")]
pub(crate) fn low(bits: u64) -> usize {
    bits as usize
}
