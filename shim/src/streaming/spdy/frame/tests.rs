//! Frames by their bytes, whole and cut, and garbage.

use super::*;

fn pairs(names: &[(&str, &str)]) -> Headers {
    names.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn decode_all(bytes: &[u8]) -> Result<Vec<Frame>, Error> {
    let (mut decoder, mut buffer, mut frames) = (Decoder::new(), BytesMut::from(bytes), Vec::new());
    while let Some(frame) = decoder.take(&mut buffer)? {
        frames.push(frame);
    }
    Ok(frames)
}

/// What moby/spdystream v0.5.1 writes for SYN_STREAM 1 with `streamtype: error`, then SYN_STREAM 3 with
/// `streamtype: stdin`, on one connection: the second block depends on the first.
const FROM_GO: &[u8] = &[
    0x80, 0x03, 0x00, 0x01, 0x00, 0x00, 0x00, 0x29, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0x62, 0x60, 0x60, 0x60, 0x04, 0xa7, 0xb3, 0x92, 0xa2, 0xd4,
    0xc4, 0x5c, 0x68, 0x51, 0xc2, 0x9a, 0x0a, 0x0a, 0x68, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0x80, 0x03,
    0x00, 0x01, 0x00, 0x00, 0x00, 0x17, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc2,
    0x2e, 0x55, 0x5c, 0x92, 0x92, 0x99, 0x07, 0x00, 0x00, 0x00, 0xff, 0xff,
];

#[test]
fn frames_of_the_go_implementation_are_read() {
    let frames = decode_all(FROM_GO).unwrap();
    assert_eq!(
        frames,
        [
            Frame::SynStream { stream: 1, fin: false, headers: pairs(&[("streamtype", "error")]) },
            Frame::SynStream { stream: 3, fin: false, headers: pairs(&[("streamtype", "stdin")]) },
        ]
    );
}

#[test]
fn every_frame_comes_back_as_sent_however_the_bytes_are_cut() {
    let frames = [
        Frame::SynStream { stream: 1, fin: true, headers: pairs(&[("port", "80"), ("streamtype", "data")]) },
        Frame::SynReply { stream: 1, fin: false, headers: Headers::default() },
        Frame::Ping(7),
        Frame::Reset { stream: 9, status: CANCEL },
        Frame::GoAway { last: 5, status: 0 },
        Frame::Data { stream: 3, fin: true, bytes: Bytes::new() },
        Frame::SynStream { stream: 3, fin: false, headers: pairs(&[("port", "80")]) },
    ];
    let mut encoder = Encoder::new().unwrap();
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| encoder.encode(frame).unwrap()).collect();
    let (mut decoder, mut buffer, mut got) = (Decoder::new(), BytesMut::new(), Vec::new());
    for byte in bytes {
        buffer.extend_from_slice(&[byte]);
        while let Some(frame) = decoder.take(&mut buffer).unwrap() {
            got.push(frame);
        }
    }
    assert_eq!(got, frames);
}

#[test]
fn a_long_data_frame_is_handed_on_as_it_arrives_and_ends_once() {
    let head = [0, 0, 0, 1, FLAG_FIN, 0, 0, 4];
    let (mut decoder, mut buffer) = (Decoder::new(), BytesMut::from(&head[..]));
    assert_eq!(decoder.take(&mut buffer).unwrap(), None);
    for (bytes, last) in [(&b"ab"[..], false), (b"cd", true)] {
        buffer.extend_from_slice(bytes);
        let frame = Frame::Data { stream: 1, fin: last, bytes: Bytes::from_static(bytes) };
        assert_eq!(decoder.take(&mut buffer).unwrap(), Some(frame));
    }
    assert_eq!(decoder.take(&mut buffer).unwrap(), None);
}

#[test]
fn what_is_not_spdy_is_refused_by_name() {
    for (bytes, error) in [
        (&[0x80, 2, 0, 1, 0, 0, 0, 0][..], Error::Version(2)),
        (&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff], Error::TooLong(0x00ff_ffff)),
        (&[0x80, 3, 0, 1, 0, 0, 0, 3, 1, 1, 1], Error::Short(SYN_STREAM)),
        (&[0x80, 3, 0, 99, 0, 0, 0, 0], Error::Unknown(99)),
        (&[0, 0, 0, 0, 0, 0, 0, 0], Error::StreamZero),
        (&[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1], Error::StreamZero),
    ] {
        assert_eq!(decode_all(bytes).unwrap_err(), error);
    }
}

#[test]
fn a_header_block_that_swells_is_refused() {
    let huge = "x".repeat(1 << 20);
    let bytes = Encoder::new()
        .unwrap()
        .encode(&Frame::SynStream { stream: 1, fin: false, headers: pairs(&[("a", &huge)]) })
        .unwrap();
    assert!(bytes.len() < MAX_CONTROL, "not a test of the limit: {}", bytes.len());
    assert!(matches!(decode_all(&bytes).unwrap_err(), Error::Headers(_)));
}

/// A stream of pseudo-random bytes (xorshift), the same at every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn damaged_bytes_never_do_worse_than_an_error() {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut errors = 0;
    for _ in 0..20_000 {
        let mut bytes = FROM_GO.to_vec();
        for _ in 0..=noise.next() % 4 {
            let at = usize::try_from(noise.next()).unwrap() % bytes.len();
            bytes[at] = noise.next().to_le_bytes()[0];
        }
        bytes.truncate(usize::try_from(noise.next()).unwrap() % (bytes.len() + 1));
        errors += usize::from(decode_all(&bytes).is_err());
    }
    assert!(errors > 1000, "only {errors} of 20000 were noticed");
}
