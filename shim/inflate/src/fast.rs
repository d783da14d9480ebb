//! The loop that nearly all bytes come through. Owns its margins: while so many packed bytes are there and so much room,
//! it asks for neither. Never reads or writes a stream. Called by `symbols` by way of `run`, which has it compiled for
//! more than one kind of processor: hence all in it is inlined. Pure.
//!
//! One turn takes up to three literals, or up to two and a match. Bits, of which a refill leaves 56 at least:
//!
//! | | at most | left |
//! |---|---|---|
//! | two literals | 2 * 11 | 34 |
//! | a length's code and extra bits | 15 + 5 | 14, if fewer than 28 refilled |
//! | a distance's | 15 + 13 | 0, refilled |
//!
//! or, after two literals, a third one: 34 - 11 are enough for the look at the next entry.

use crate::code::{DIST_INDEX, END, LITERAL, LITLEN_INDEX, SPECIAL, SUBTABLE, Tables, low, second, value};
use crate::input::{self, Bits};
use crate::output;

/// Packed bytes that must be there when a turn begins: it refills three times at most, each time by 7 bytes of the 8
/// that it looks at.
pub(crate) const MARGIN: usize = 32;
/// Of a distance's code and extra bits.
const LONGEST_DISTANCE: u32 = 28;

/// Where the loop is.
pub(crate) struct Cursor {
    pub(crate) bits: Bits,
    /// No turn begins behind it: [`MARGIN`] before the end of the bytes that arrived.
    pub(crate) end: usize,
    /// Where the next byte goes.
    pub(crate) at: usize,
    /// No match looks before it.
    pub(crate) oldest: usize,
}

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Packed bytes or room are short.
    Edge,
    /// The block's.
    End,
    /// No such code, or a distance from before the beginning.
    Corrupt,
}

/// [`Bits`] of which the count may hold more than it says above its lowest six bits, and the buffer bits of the next
/// byte above as many: what a refill brings there is the same.
struct BitFeed<'a> {
    from: &'a input::Bytes,
    buffer: u64,
    count: u32,
    at: usize,
}

impl BitFeed<'_> {
    /// 56 bits or more.
    #[inline(always)]
    fn refill(&mut self) {
        let at = self.at & (input::ROOM - 1);
        let mut next = [0; 8];
        next.copy_from_slice(&self.from[at..at + 8]);
        self.buffer |= u64::from_le_bytes(next) << (self.count & 63);
        self.at += ((63 - (self.count & 63)) >> 3) as usize;
        self.count |= 56;
    }

    /// As many bits as the entry says. Its other bits go into the count's upper ones, which saves a mask.
    #[inline(always)]
    fn skip(&mut self, entry: u32) {
        self.buffer >>= entry & 63;
        self.count = self.count.wrapping_sub(entry);
    }

    #[inline(always)]
    fn look<const N: usize>(&self, table: &[u32; N], index: u32) -> u32 {
        table[low(self.buffer) & ((1 << index) - 1)]
    }

    fn bits(&self) -> Bits {
        let mut bits = Bits { buffer: self.buffer, count: self.count & 63, at: self.at };
        bits.give_back();
        bits
    }
}

/// Symbols until `place` is at an edge or the block's end.
#[inline(always)]
pub(crate) fn symbols(
    tables: &Tables,
    from: &input::Bytes,
    to: &mut output::Bytes,
    place: &mut Cursor,
) -> Stop {
    let mut feed = BitFeed { from, buffer: place.bits.buffer, count: place.bits.count, at: place.bits.at };
    let mut at = place.at;
    feed.refill();
    let mut entry = feed.look(&tables.litlen, LITLEN_INDEX);
    let stop = loop {
        if feed.at > place.end || at >= output::FULL {
            break Stop::Edge;
        }
        if entry & LITERAL != 0 {
            at = literal(to, at, &mut feed, entry);
            entry = feed.look(&tables.litlen, LITLEN_INDEX);
            if entry & LITERAL != 0 {
                at = literal(to, at, &mut feed, entry);
                entry = feed.look(&tables.litlen, LITLEN_INDEX);
                if entry & LITERAL != 0 {
                    at = literal(to, at, &mut feed, entry);
                    entry = feed.look(&tables.litlen, LITLEN_INDEX);
                    feed.refill();
                    continue;
                }
            }
        }
        if entry & SPECIAL != 0 {
            if entry & SUBTABLE != 0 {
                entry = second(&tables.litlen, entry, feed.buffer, LITLEN_INDEX);
                if entry & LITERAL != 0 {
                    at = literal(to, at, &mut feed, entry);
                    feed.refill();
                    entry = feed.look(&tables.litlen, LITLEN_INDEX);
                    continue;
                }
            }
            if entry & SPECIAL != 0 {
                feed.skip(entry & 63);
                break if entry & END != 0 { Stop::End } else { Stop::Corrupt };
            }
        }
        let length = value(entry, feed.buffer);
        feed.skip(entry);
        let Some(distance) = distance(tables, &mut feed) else { break Stop::Corrupt };
        // The next symbol's entry comes from memory while this one's bytes are copied.
        feed.refill();
        entry = feed.look(&tables.litlen, LITLEN_INDEX);
        if distance > at - place.oldest {
            break Stop::Corrupt;
        }
        repeat(to, at, distance, length);
        at += length;
    };
    (place.bits, place.at) = (feed.bits(), at);
    stop
}

#[inline(always)]
fn literal(to: &mut output::Bytes, at: usize, feed: &mut BitFeed<'_>, entry: u32) -> usize {
    to[at & (output::ROOM - 1)] = entry.to_le_bytes()[1];
    feed.skip(entry);
    at + 1
}

#[inline(always)]
fn distance(tables: &Tables, feed: &mut BitFeed<'_>) -> Option<usize> {
    if feed.count & 63 < LONGEST_DISTANCE {
        feed.refill();
    }
    let mut entry = feed.look(&tables.dist, DIST_INDEX);
    if entry & SPECIAL != 0 {
        if entry & SUBTABLE != 0 {
            entry = second(&tables.dist, entry, feed.buffer, DIST_INDEX);
        }
        if entry & SPECIAL != 0 {
            return None;
        }
    }
    let distance = value(entry, feed.buffer);
    feed.skip(entry);
    Some(distance)
}

/// The `length` bytes from `distance` before `at`, to `at`; up to 31 bytes behind them become anything.
#[inline(always)]
fn repeat(to: &mut output::Bytes, at: usize, distance: usize, length: usize) {
    let (mut at, mut from, end) = (at, at - distance, at + length);
    if distance >= 16 {
        // Most matches are done with this.
        copy::<16>(to, from, at);
        copy::<16>(to, from + 16, at + 16);
        if length > 32 {
            (at, from) = (at + 32, from + 32);
            while at < end {
                copy::<16>(to, from, at);
                copy::<16>(to, from + 16, at + 16);
                (at, from) = (at + 32, from + 32);
            }
        }
    } else if distance == 1 {
        let same = [to[from & (output::ROOM - 1)]; 32];
        while at < end {
            let place = at & (output::ROOM - 1);
            to[place..place + 32].copy_from_slice(&same);
            at += 32;
        }
    } else if distance >= 8 {
        while at < end {
            copy::<8>(to, from, at);
            (at, from) = (at + 8, from + 8);
        }
    } else {
        // Of eight bytes only as many as the distance are right: the next copy mends the rest.
        while at < end {
            copy::<8>(to, from, at);
            (at, from) = (at + distance, from + distance);
        }
    }
}

/// The masks change nothing, but the compiler sees that all is inside.
#[inline(always)]
fn copy<const N: usize>(to: &mut output::Bytes, from: usize, at: usize) {
    let (from, at) = (from & (output::ROOM - 1), at & (output::ROOM - 1));
    let mut bytes = [0; N];
    bytes.copy_from_slice(&to[from..from + N]);
    to[at..at + N].copy_from_slice(&bytes);
}
