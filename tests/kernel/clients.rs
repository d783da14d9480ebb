//! Clients of the socket that are no kubelet: what their gRPC libraries send and ours never would.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Result, bail};
use gantry_tests::poll::bound;

use crate::images::ready;

/// Kinds of frames, and flags of one that ends its headers or its stream (RFC 9113 §6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A header that goes into no table, its name and value as they are (RFC 7541 §6.2.2).
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap_or(0)], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// Calls Version with this `:authority`; the kind of the first frame on its stream that comes back.
fn version(socket: &std::path::Path, authority: Option<&str>) -> Result<u8> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(bound(Duration::from_secs(30))))?;
    let fields = [
        (":method", Some("POST")),
        (":scheme", Some("http")),
        (":path", Some("/runtime.v1.RuntimeService/Version")),
        (":authority", authority),
        ("content-type", Some("application/grpc")),
        ("te", Some("trailers")),
    ];
    let block: Vec<u8> =
        fields.iter().filter_map(|(name, value)| Some(header(name, (*value)?))).flatten().collect();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, &block))?;
    // An empty message: not compressed, of no bytes.
    stream.write_all(&frame(DATA, END_STREAM, 1, &[0; 5]))?;
    loop {
        let mut head = [0u8; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length)?];
        stream.read_exact(&mut payload)?;
        match (head[3], head[8]) {
            (kind @ (HEADERS | RST_STREAM), 1) => return Ok(kind),
            (7, _) => bail!("the runtime says goodbye: {}", String::from_utf8_lossy(&payload)),
            _ => {}
        }
    }
}

#[test]
fn odd_authorities_are_served() -> Result<()> {
    let ready = ready()?;
    let socket = ready.node.socket();
    for authority in
        [Some("localhost"), None, Some("%2Frun%2Fgantry%2Fcri.sock"), Some("/run/gantry/cri.sock"), Some("")]
    {
        assert_eq!(version(&socket, authority)?, HEADERS, "{authority:?}");
    }
    ready.node.assert_clean(&ready.before)
}
