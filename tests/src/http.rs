//! A very small HTTP/1.1 client for loopback registries and pods' pages. One request for each
//! connection; never follows redirects, never speaks TLS. Called by `registry` and the tests.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::poll::bound;

const PATIENCE: Duration = Duration::from_secs(20);

/// An answer, read to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of that name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// GET of `target`.
///
/// # Errors
/// As [`request`].
pub fn get(addr: SocketAddr, target: &str) -> Result<Response> {
    request(addr, "GET", target, &[], &[])
}

/// One request, its answer read to the end.
///
/// # Errors
/// When nobody listens, the peer stalls for 20 s, or the answer is not HTTP/1.x with a plain body.
pub fn request(
    addr: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<Response> {
    send(addr, method, target, headers, body, body.len() as u64, PATIENCE)
}

/// PUT of a file of any size; the answer may take as long as hashing it takes.
///
/// # Errors
/// As [`request`], after five minutes.
pub fn put_file(addr: SocketAddr, target: &str, file: &Path) -> Result<Response> {
    let opened = File::open(file).with_context(|| file.display().to_string())?;
    let length = opened.metadata()?.len();
    let headers = [("Content-Type", "application/octet-stream")];
    send(addr, "PUT", target, &headers, opened, length, PATIENCE * 15)
}

fn send(
    addr: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    mut body: impl Read,
    length: u64,
    patience: Duration,
) -> Result<Response> {
    let at = || format!("{method} http://{addr}{target}");
    let mut stream = TcpStream::connect_timeout(&addr, bound(PATIENCE)).with_context(at)?;
    stream.set_read_timeout(Some(bound(patience))).with_context(at)?;
    stream.set_write_timeout(Some(bound(patience))).with_context(at)?;
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {length}\r\n\r\n"));
    stream.write_all(head.as_bytes()).with_context(at)?;
    std::io::copy(&mut body, &mut stream).with_context(at)?;
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw).with_context(at)?;
    parse(&raw).with_context(at)
}

fn parse(raw: &[u8]) -> Result<Response> {
    let Some(end) = raw.windows(4).position(|four| four == b"\r\n\r\n") else {
        bail!("the answer ends within its head, after {} bytes", raw.len());
    };
    let head = std::str::from_utf8(&raw[..end]).context("the answer's head is not text")?;
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .with_context(|| format!("not an HTTP/1.x status line: {status_line:?}"))?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    let mut response = Response { status, headers, body: raw[end + 4..].to_vec() };
    if response.header("transfer-encoding").is_some() {
        bail!("the answer is chunked, which this client does not read");
    }
    if let Some(length) = response.header("content-length").and_then(|text| text.parse::<usize>().ok()) {
        if response.body.len() < length {
            bail!("the body ends after {} of {length} bytes", response.body.len());
        }
        response.body.truncate(length);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_head_and_body() {
        let raw = b"HTTP/1.1 201 Created\r\nLocation: /x\r\nContent-Length: 2\r\n\r\nok, and more";
        let response = parse(raw).unwrap();
        assert_eq!((response.status, response.header("location")), (201, Some("/x")));
        assert_eq!(response.text(), "ok");
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        for (raw, words) in [
            ("HTTP/1.1 200 OK\r\n", "within its head"),
            ("SSH-2.0-x\r\n\r\n", "status line"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "chunked"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "after 3 of 5"),
        ] {
            let error = parse(raw.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{raw:?}: {error}");
        }
    }
}
