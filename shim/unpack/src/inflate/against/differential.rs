//! Streams as compressors write them, whole, cut off and damaged.

use super::*;

/// Contents of several kinds: text, noise, runs, programs' mixture, and one whose codes grow as long as codes can.
fn contents(size: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut random = Random(42);
    let words: Vec<Vec<u8>> =
        (0..300).map(|_| (0..1 + random.below(9)).map(|_| b'a' + random.byte() % 26).collect()).collect();
    let mut text = Vec::new();
    while text.len() < size {
        let nth = random.below(300).min(random.below(300));
        text.extend_from_slice(&words[nth]);
        text.push(b' ');
    }
    let noise: Vec<u8> = (0..size).map(|_| random.byte()).collect();
    let mut runs = Vec::new();
    while runs.len() < size {
        let (byte, count) = (random.byte(), 1 + random.below(600));
        runs.extend(std::iter::repeat_n(byte, count));
    }
    let mut mixture = Vec::new();
    while mixture.len() < size {
        let count = 1 + random.below(40);
        if random.below(3) == 0 || mixture.is_empty() {
            mixture.extend((0..count).map(|_| random.byte() & random.byte()));
        } else {
            let distance = 1 + random.below(mixture.len().min(32768));
            for _ in 0..count {
                mixture.push(mixture[mixture.len() - distance]);
            }
        }
    }
    // Each byte half as often as the one before: codes of 15 bits.
    let long = (0..size).map(|_| u8::try_from(random.next().trailing_ones()).unwrap()).collect();
    // No matches, so that only codes are long: a byte is seldom the same as 258 before.
    let skewed = (0..size).map(|_| random.byte().min(random.byte()).min(random.byte())).collect();
    vec![
        ("text", text),
        ("noise", noise),
        ("runs", runs),
        ("mixture", mixture),
        ("long", long),
        ("skewed", skewed),
    ]
}

#[test]
fn what_was_packed_at_any_level_comes_out() {
    for size in [0, 1, 300, 70_000, 700_000] {
        for (name, plain) in contents(size) {
            for level in if size > 100_000 { 6..=9 } else { 0..=9 } {
                assert!(whole(&pack(&plain, level)) == plain, "{name}, {size} bytes, level {level}");
            }
        }
    }
}

/// Long enough for the buffer of packed bytes to be moved many times, also between the bits of a block's header.
#[test]
fn streams_of_short_blocks_come_out_however_they_arrive() {
    for (name, plain) in contents(1_000_000) {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        for piece in plain.chunks(300) {
            encoder.write_all(piece).unwrap();
            // Ends the block, and adds an empty one.
            encoder.flush().unwrap();
        }
        let packed = encoder.finish().unwrap();
        for read in [1, 2, 3, 5, 31, 64, 100, 127, 129, 1000] {
            for fast in [best(), gantry_inflate::plain] {
                let (verdict, bytes) = ours(&packed, fast, read, usize::MAX);
                assert_eq!(verdict, Verdict::Whole, "{name}, read by {read}");
                assert!(bytes == plain, "{name}, read by {read}");
            }
        }
    }
}

#[test]
fn a_stream_that_is_cut_off_anywhere_ends_early() {
    for (name, plain) in contents(900) {
        for level in [0, 1, 9] {
            let packed = pack(&plain, level);
            for length in 0..packed.len() {
                let (verdict, bytes) = assert_agreement(&packed[..length]);
                assert_eq!(verdict, Verdict::Early, "{name}, level {level}, {length} bytes");
                assert!(plain.starts_with(&bytes), "{name}, level {level}, {length} bytes");
            }
        }
    }
}

#[test]
fn each_bit_that_is_turned_gives_the_same_verdict() {
    for (name, plain) in contents(700) {
        for level in [1, 9] {
            let good = pack(&plain, level);
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                // Time and padding say nothing, and there may be two ways to say the same; the sums are over bytes.
                let (verdict, bytes) = assert_agreement(&bad);
                assert!(verdict != Verdict::Whole || bytes == plain, "{name}, level {level}, bit {bit}");
            }
        }
    }
}

#[test]
fn damage_far_inside_gives_the_same_verdict() {
    let mut random = Random(3);
    for (_, plain) in contents(60_000) {
        let good = pack(&plain, 6);
        for _ in 0..60 {
            let mut bad = good.clone();
            let at = 10 + random.below(bad.len() - 10);
            bad[at] ^= 1 << random.below(8);
            assert_agreement(&bad);
            bad.truncate(at + random.below(bad.len() - at));
            assert_agreement(&bad);
        }
    }
}
