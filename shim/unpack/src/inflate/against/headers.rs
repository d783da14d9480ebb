//! Headers, trailers and members (RFC 1952), and what may stand between and behind them.

use super::*;

fn with(flags: u8, fields: &[u8]) -> Vec<u8> {
    let mut header = HEADER;
    header[3] = flags;
    [&header, fields].concat()
}

/// The rest of a member of the one byte `a`.
fn rest() -> Vec<u8> {
    pack(b"a", 6)[10..].to_vec()
}

#[test]
fn every_field_of_a_header_is_passed_by() {
    let crc = |header: &[u8]| crc32fast::hash(header).to_le_bytes()[..2].to_vec();
    for (flags, fields) in [
        (0b0_0001, &b""[..]),
        (0b0_0100, b"\x03\x00abc"),
        (0b0_0100, b"\x00\x00"),
        (0b0_1000, b"name\0"),
        (0b1_0000, b"\0"),
        (0b1_1101, b"\x01\x00\0name\0comment\0"),
    ] {
        let header = with(flags, fields);
        assert_eq!(whole(&[&header[..], &rest()].concat()), b"a", "{flags:b}");
        let header = with(flags | 2, fields);
        assert_eq!(whole(&[&header, &crc(&header)[..], &rest()].concat()), b"a", "{flags:b}");
        assert_eq!(fault(&[&header, &[0, 0][..], &rest()].concat()), Verdict::Corrupt, "{flags:b}");
        for length in 0..header.len() {
            assert_eq!(fault(&header[..length]), Verdict::Early, "{flags:b} {length}");
        }
    }
    for flag in [0x20, 0x40, 0x80] {
        assert_eq!(fault(&[with(flag, b""), rest()].concat()), Verdict::Corrupt);
    }
}

#[test]
fn what_is_no_header_is_told() {
    assert_eq!(fault(b""), Verdict::Early);
    assert_eq!(fault(b"no gzip"), Verdict::Early);
    assert_eq!(fault(b"this is no gzip"), Verdict::Corrupt);
    for place in 0..3 {
        let mut bytes = pack(b"a", 6);
        bytes[place] ^= 1;
        assert_eq!(fault(&bytes), Verdict::Corrupt);
    }
    for (length, expected) in [(65535, Verdict::Whole), (65536, Verdict::Corrupt)] {
        let fields = [vec![b'n'; length], vec![0]].concat();
        assert_eq!(fault(&[with(8, &fields), rest()].concat()), expected);
        assert_eq!(fault(&[with(16, &fields), rest()].concat()), expected);
    }
}

#[test]
fn sums_are_checked_and_members_follow_each_other() {
    let one = pack(b"one", 6);
    for place in 1..=8 {
        let mut bytes = one.clone();
        let at = bytes.len() - place;
        bytes[at] ^= 0x10;
        assert_eq!(fault(&bytes), Verdict::Corrupt);
        assert_eq!(fault(&one[..at]), Verdict::Early);
    }
    let many: Vec<u8> = [&one[..], &pack(b"", 6), &pack(&[7; 300_000], 9), &pack(b"end", 0)].concat();
    let bytes = [&b"one"[..], &[7; 300_000], b"end"].concat();
    assert_eq!(whole(&many), bytes);
    for (behind, expected) in [
        (&[0; 3][..], Verdict::Early),
        (&[0; 512], Verdict::Corrupt),
        (b"anything at all", Verdict::Corrupt),
        (&one[..one.len() - 1], Verdict::Early),
    ] {
        assert_eq!(assert_agreement(&[&many, behind].concat()).0, expected);
    }
}

#[test]
fn an_output_that_is_closed_is_told_as_such() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for plain in [&b"a"[..], &[0; 1 << 20]] {
        let error = gzip(&mut pack(plain, 6).as_slice(), &mut Closed, best()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

#[test]
fn an_input_that_fails_is_told_as_it_is() {
    struct Failing<'a>(&'a [u8]);
    impl Read for Failing<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { Err(io::ErrorKind::ConnectionReset.into()) } else { self.0.read(into) }
        }
    }
    let bytes = pack(b"abc", 6);
    for length in 0..=bytes.len() {
        let error = gzip(&mut Failing(&bytes[..length]), &mut Vec::new(), best()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
