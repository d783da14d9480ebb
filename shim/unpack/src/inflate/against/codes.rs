//! Blocks and codes written bit by bit (RFC 1951): what no compressor writes, and each match once.

use super::*;

/// Bits in a deflate stream's order.
#[derive(Debug, Clone, Default)]
struct Bits {
    bytes: Vec<u8>,
    used: usize,
}

impl Bits {
    /// The lowest bit first, as all but codes are.
    fn number(mut self, value: usize, count: usize) -> Self {
        for bit in 0..count {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            *self.bytes.last_mut().unwrap() |= u8::from(value >> bit & 1 == 1) << (self.used % 8);
            self.used += 1;
        }
        self
    }

    fn zeros(self, count: usize) -> Self {
        (0..count).fold(self, |bits, _| bits.number(0, 1))
    }

    /// The highest bit first.
    fn code(self, value: usize, count: usize) -> Self {
        (0..count).rev().fold(self, |bits, bit| bits.number(value >> bit, 1))
    }

    /// A symbol of the fixed code of literals and lengths.
    fn encode_fixed(self, symbol: usize) -> Self {
        match symbol {
            0..144 => self.code(0x30 + symbol, 8),
            144..256 => self.code(0x190 + symbol - 144, 9),
            256..280 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }

    /// A match by the fixed codes.
    fn fixed_match(self, distance: usize, length: usize) -> Self {
        let (symbol, extra, least) = (0..29)
            .map(|above| {
                let extra = if above < 8 || above == 28 { 0 } else { above / 4 - 1 };
                let least = match above {
                    0..8 => 3 + above,
                    28 => 258,
                    _ => 3 + ((4 + above % 4) << extra),
                };
                (257 + above, extra, least)
            })
            .rfind(|(_, _, least)| *least <= length)
            .unwrap();
        let bits = self.encode_fixed(symbol).number(length - least, extra);
        let (symbol, extra, least) = (0..30)
            .map(|symbol: usize| {
                let extra = if symbol < 4 { 0 } else { symbol / 2 - 1 };
                (symbol, extra, if symbol < 4 { 1 + symbol } else { 1 + ((2 + symbol % 2) << extra) })
            })
            .rfind(|(_, _, least)| *least <= distance)
            .unwrap();
        bits.code(symbol, 5).number(distance - least, extra)
    }

    /// The header of a block whose codes of code lengths have these lengths, by symbol.
    fn dynamic(litlen: usize, dist: usize, lengths: [usize; 19]) -> Self {
        let bits = Self::default().number(0b101, 3).number(litlen - 257, 5).number(dist - 1, 5).number(15, 4);
        [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]
            .iter()
            .fold(bits, |bits, symbol| bits.number(lengths[*symbol], 3))
    }

    /// Alone in a member, with so many bytes behind it: one loop or the other takes them.
    #[track_caller]
    fn fault(&self) -> Verdict {
        let near = fault(&member(&self.bytes, b""));
        let far = fault(&[&member(&self.bytes, b"")[..], &[0; 4096]].concat());
        assert_eq!(near, far);
        near
    }
}

/// Code lengths 0, 1 and 18 in two bits each, and 2 in two: `00`, `01`, `10` (2), `11` (18).
const SMALL: [usize; 19] = {
    let mut lengths = [0; 19];
    (lengths[0], lengths[1], lengths[2], lengths[18]) = (2, 2, 2, 2);
    lengths
};

/// Of [`SMALL`], so many symbols without a code.
fn none(bits: Bits, count: usize) -> Bits {
    match count {
        0..11 => (0..count).fold(bits, |bits, _| bits.code(0b00, 2)),
        _ => {
            let now = count.min(138);
            none(bits.code(0b11, 2).number(now - 11, 7), count - now)
        }
    }
}

fn one(bits: Bits) -> Bits {
    bits.code(0b01, 2)
}

#[test]
fn a_block_of_no_type_is_corrupt() {
    assert_eq!(Bits::default().number(0b111, 3).fault(), Verdict::Corrupt);
}

#[test]
fn stored_blocks_hold_what_their_length_says() {
    let block = |last: u8, plain: &[u8]| {
        let length = u16::try_from(plain.len()).unwrap();
        [&[last][..], &length.to_le_bytes(), &(!length).to_le_bytes(), plain].concat()
    };
    let long: Vec<u8> = (0..65535_u32).map(|n| n.to_le_bytes()[0]).collect();
    let blocks =
        [block(0, b""), block(0, &long), block(0, &long), block(0, &long), block(0, &long), block(1, b"end")];
    let plain = [&long[..], &long, &long, &long, b"end"].concat();
    let packed = member(&blocks.concat(), &plain);
    assert_eq!(whole(&packed), plain);
    assert_eq!(fault(&packed[..packed.len() - 9]), Verdict::Early);
    for bit in 0..16 {
        let mut bad = block(1, b"abc");
        bad[3 + bit / 8] ^= 1 << (bit % 8);
        assert_eq!(fault(&member(&bad, b"abc")), Verdict::Corrupt);
    }
}

#[test]
fn symbols_that_mean_nothing_are_corrupt() {
    let literals = |count| (0..count).fold(Bits::default().number(0b011, 3), |bits, _| bits.encode_fixed(65));
    for before in [1, 100] {
        assert_eq!(literals(before).encode_fixed(286).encode_fixed(256).fault(), Verdict::Corrupt);
        assert_eq!(literals(before).encode_fixed(287).encode_fixed(256).fault(), Verdict::Corrupt);
        assert_eq!(
            literals(before).encode_fixed(257).code(30, 5).encode_fixed(256).fault(),
            Verdict::Corrupt
        );
        assert_eq!(
            literals(before).encode_fixed(257).code(31, 5).encode_fixed(256).fault(),
            Verdict::Corrupt
        );
        assert_eq!(literals(before).fixed_match(before + 1, 3).encode_fixed(256).fault(), Verdict::Corrupt);
        let good = literals(before).fixed_match(before, 3).encode_fixed(256);
        assert_eq!(whole(&member(&good.bytes, &vec![65; before + 3])), vec![65; before + 3]);
    }
}

#[test]
fn a_member_does_not_look_into_the_one_before() {
    for length in [1, 40_000, 600_000] {
        let first = pack(&vec![9; length], 6);
        let second = Bits::default().number(0b011, 3).encode_fixed(65).fixed_match(2, 3).encode_fixed(256);
        for behind in [0, 4096] {
            let bytes = [&first[..], &member(&second.bytes, b""), &vec![0; behind]].concat();
            assert_eq!(assert_agreement(&bytes), (Verdict::Corrupt, [vec![9; length], vec![65]].concat()));
        }
    }
}

/// The beginning of a member moves with the window.
#[test]
fn a_member_that_began_in_the_window_does_not_either() {
    let first = pack(&vec![9; 240_000], 6);
    let literals = (0..23_000).fold(Bits::default().number(0b011, 3), |bits, _| bits.encode_fixed(65));
    let inside = literals.clone().fixed_match(23_000, 3).encode_fixed(256);
    let plain = [vec![9; 240_000], vec![65; 23_003]].concat();
    assert!(whole(&[&first[..], &member(&inside.bytes, &[65; 23_003])].concat()) == plain);
    let outside = literals.fixed_match(23_001, 3).encode_fixed(256);
    let (verdict, bytes) = assert_agreement(&[&first[..], &member(&outside.bytes, b"")].concat());
    assert_eq!((verdict, bytes.len()), (Verdict::Corrupt, 263_000));
}

/// Literals of 11 bits, then a length and a distance with as many bits as any has: the fast loop's worst turn.
#[test]
fn the_longest_codes_are_read_whole() {
    let mut random = Random(5);
    let chain = |symbols: &[(usize, usize)], count: usize| {
        let mut lengths = vec![0; count];
        symbols.iter().for_each(|(symbol, length)| lengths[*symbol] = *length);
        lengths
    };
    let fillers = (1..=10).chain([12, 13, 14]).map(|length| (length, length));
    let litlen: Vec<_> = fillers.chain([(65, 11), (256, 15), (284, 15)]).collect();
    let dist: Vec<_> = (0..14).map(|symbol| (symbol, symbol + 1)).chain([(28, 15), (29, 15)]).collect();
    // Lengths of 0 to 15 in five bits each, and 18, which is not used, in one.
    let mut of_lengths = [5; 19];
    (of_lengths[16], of_lengths[17], of_lengths[18]) = (0, 0, 1);
    let lengths = [chain(&litlen, 285), chain(&dist, 30)].concat();
    let bits = Bits::dynamic(285, 30, of_lengths);
    let mut bits = lengths.iter().fold(bits, |bits, length| bits.code(16 + length, 5));
    // In a chain each code is ones and a zero, but the last, which is ones.
    let literal = |bits: Bits, byte: u8| bits.code((1 << byte) - 2, usize::from(byte));
    let mut plain = Vec::new();
    for _ in 0..32_768 {
        let byte = 1 + random.byte() % 8;
        bits = literal(bits, byte);
        plain.push(byte);
    }
    for _ in 0..2000 {
        let (length, distance) = (227 + random.below(31), 24_577 + random.below(8192));
        bits = bits.code(0x7fe, 11).code(0x7fe, 11).code(0x7fff, 15).number(length - 227, 5);
        bits = bits.code(0x7fff, 15).number(distance - 24_577, 13);
        plain.extend([65, 65]);
        for _ in 0..length {
            plain.push(plain[plain.len() - distance]);
        }
    }
    assert!(whole(&member(&bits.code(0x7ffe, 15).bytes, &plain)) == plain);
}

#[test]
fn every_match_is_what_it_says() {
    let mut random = Random(7);
    let mut plain: Vec<u8> = (0..300).map(|_| random.byte()).collect();
    let mut bits = plain
        .iter()
        .fold(Bits::default().number(0b011, 3), |bits, byte| bits.encode_fixed(usize::from(*byte)));
    let distances = (1..=70).chain([127, 128, 255, 256, 257, 4095, 4097, 24576, 32767, 32768]);
    for distance in distances {
        let lengths = (3..=70).chain([127, 128, 129, 255, 256, 257, 258]);
        assert!(distance <= plain.len());
        for length in lengths {
            bits = bits.fixed_match(distance, length);
            for _ in 0..length {
                plain.push(plain[plain.len() - distance]);
            }
            let byte = random.byte();
            bits = bits.encode_fixed(usize::from(byte));
            plain.push(byte);
        }
    }
    bits = bits.encode_fixed(256);
    assert!(plain.len() > 1 << 18, "{}", plain.len());
    assert!(whole(&member(&bits.bytes, &plain)) == plain);
}

#[test]
fn codes_are_refused_as_zlib_refuses_them() {
    let dynamic = |litlen, dist| Bits::dynamic(litlen, dist, SMALL);
    assert_eq!(dynamic(287, 1).fault(), Verdict::Corrupt);
    assert_eq!(dynamic(257, 31).fault(), Verdict::Corrupt);
    let lengths = |pairs: &[(usize, usize)]| {
        let mut lengths = [0; 19];
        pairs.iter().for_each(|(symbol, length)| lengths[*symbol] = *length);
        Bits::dynamic(257, 1, lengths)
    };
    // Code lengths: one alone, too few, too many, none at all.
    assert_eq!(lengths(&[(1, 1)]).zeros(300).fault(), Verdict::Corrupt);
    // At once, not where they are used.
    assert_eq!(fault(&[&HEADER[..], &lengths(&[(1, 1)]).bytes].concat()), Verdict::Corrupt);
    assert_eq!(lengths(&[(0, 2), (1, 2), (2, 2)]).fault(), Verdict::Corrupt);
    assert_eq!(lengths(&[(0, 1), (1, 1), (2, 1)]).fault(), Verdict::Corrupt);
    assert_eq!(lengths(&[]).zeros(600).fault(), Verdict::Corrupt);
    assert_eq!(fault(&[&HEADER[..], &lengths(&[]).zeros(100).bytes].concat()), Verdict::Early);
    // A repetition of nothing, and one of too much.
    assert_eq!(lengths(&[(16, 1), (0, 1)]).code(1, 1).zeros(20).fault(), Verdict::Corrupt);
    let long = none(dynamic(257, 1), 130).code(0b11, 2).number(127, 7);
    assert_eq!(long.zeros(20).fault(), Verdict::Corrupt);
    // No code for the block's end; one for it alone, of which the other bit is none.
    assert_eq!(one(none(one(none(dynamic(257, 1), 255)), 1)).fault(), Verdict::Corrupt);
    let end = one(one(none(dynamic(257, 1), 256)));
    assert_eq!(whole(&member(&end.clone().number(0, 1).bytes, b"")), b"");
    assert_eq!(end.number(1, 1).fault(), Verdict::Corrupt);
    // The end alone in two bits is too little, three in one bit too much.
    assert_eq!(one(none(dynamic(257, 1), 256).code(0b10, 2)).fault(), Verdict::Corrupt);
    assert_eq!(one(one(none(one(one(dynamic(257, 1))), 254))).fault(), Verdict::Corrupt);
}

/// A literal `A`, a match of three bytes and the end, with this code of distances behind.
fn with_distances(dist: usize, lengths: impl Fn(Bits) -> Bits) -> Bits {
    // 65 in one bit; 256 and 257 in two.
    let bits = none(one(none(Bits::dynamic(258, dist, SMALL), 65)), 190);
    lengths(bits.code(0b10, 2).code(0b10, 2))
}

#[test]
fn distances_may_have_one_code_or_none() {
    let lone = with_distances(1, one);
    let used = lone.clone().code(0, 1).code(0b11, 2).code(0, 1).code(0b10, 2);
    assert_eq!(whole(&member(&used.bytes, b"AAAA")), b"AAAA");
    let wrong = lone.clone().code(0, 1).code(0b11, 2).code(1, 1).code(0b10, 2);
    assert_eq!(wrong.fault(), Verdict::Corrupt);
    // In the fast loop, too.
    let many = (0..2000).fold(lone, |bits, _| bits.code(0, 1).code(0b11, 2).code(0, 1));
    assert_eq!(whole(&member(&many.clone().code(0b10, 2).bytes, &[65; 8000])), [65; 8000]);
    assert_eq!(many.code(0b11, 2).code(1, 1).fault(), Verdict::Corrupt);
    let none_at_all = with_distances(1, |bits| none(bits, 1));
    assert_eq!(whole(&member(&none_at_all.clone().code(0, 1).code(0b10, 2).bytes, b"A")), b"A");
    assert_eq!(none_at_all.code(0, 1).code(0b11, 2).zeros(30).fault(), Verdict::Corrupt);
    // One of two bits is too little, three of one bit too much.
    assert_eq!(with_distances(1, |bits| bits.code(0b10, 2)).zeros(30).fault(), Verdict::Corrupt);
    assert_eq!(with_distances(3, |bits| one(one(one(bits)))).zeros(30).fault(), Verdict::Corrupt);
}
