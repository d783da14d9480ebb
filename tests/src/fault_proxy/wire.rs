//! Heads and bodies of HTTP/1.1 as the fault proxy passes them on. Owns no state. Called by `fault_proxy`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};

use super::{AfterAnswer, ProxyFault};

const LONGEST_HEAD: usize = 64 << 10;
/// Bytes that are passed on together: a fault comes at its byte, whatever the size.
const CHUNK: usize = 16 << 10;

/// The lines before a body.
#[derive(Debug)]
pub(super) struct MessageHead {
    lines: Vec<String>,
}

impl MessageHead {
    /// None: the other side has closed instead.
    pub(super) fn read(from: &mut TcpStream) -> Result<Option<Self>> {
        let mut bytes = Vec::new();
        let mut byte = [0; 1];
        while !bytes.ends_with(b"\r\n\r\n") {
            if from.read(&mut byte)? == 0 {
                return Ok(None);
            }
            bytes.extend_from_slice(&byte);
            ensure!(bytes.len() < LONGEST_HEAD, "a head without an end");
        }
        let text = String::from_utf8(bytes).context("a head that is not text")?;
        Ok(Some(Self { lines: text.trim_end().split("\r\n").map(str::to_owned).collect() }))
    }

    /// Method and target.
    pub(super) fn request(&self) -> Result<(&str, &str)> {
        let first = self.lines.first().context("an empty head")?;
        let mut words = first.split(' ');
        Ok((words.next().context("no method")?, words.next().context("no target")?))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let pairs = self.lines.iter().skip(1).filter_map(|line| line.split_once(':'));
        let mut named = pairs.filter(|(own, _)| own.eq_ignore_ascii_case(name));
        named.next().map(|(_, value)| value.trim())
    }

    /// With other values, or without those that have none.
    fn with(&self, changed: &[(&str, Option<String>)]) -> Vec<u8> {
        let is_changed = |line: &&String| {
            let name = line.split(':').next().unwrap_or_default();
            changed.iter().any(|(own, _)| own.eq_ignore_ascii_case(name))
        };
        let mut text = String::new();
        for line in self.lines.iter().filter(|line| !is_changed(line)) {
            text.push_str(line);
            text.push_str("\r\n");
        }
        for (name, value) in changed {
            if let Some(value) = value {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        text.push_str("\r\n");
        text.into_bytes()
    }
}

/// An answer of our own.
pub(super) fn plain(client: &mut TcpStream, status: u16, lines: &str, body: &[u8]) -> Result<()> {
    let head = format!("HTTP/1.1 {status} -\r\n{lines}Content-Length: {}\r\n\r\n", body.len());
    client.write_all(head.as_bytes())?;
    client.write_all(body)?;
    Ok(())
}

/// Asks the registry, and passes on what it answers, spoiled.
pub(super) fn forward(
    registry: SocketAddr,
    asked: &MessageHead,
    client: &mut TcpStream,
    fault: Option<&ProxyFault>,
) -> Result<AfterAnswer> {
    let mut server = TcpStream::connect(registry)?;
    let own = [("Connection", Some("close".to_owned())), ("Authorization", None)];
    server.write_all(&asked.with(&own))?;
    let answer = MessageHead::read(&mut server)?.context("the registry closed")?;
    let length: u64 = answer.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let said = match fault {
        Some(ProxyFault::Length(more)) => length.saturating_add_signed(*more),
        _ => length,
    };
    client.write_all(&answer.with(&[("Connection", None), ("Content-Length", Some(said.to_string()))]))?;
    if asked.request()?.0 == "HEAD" {
        return Ok(AfterAnswer::Next);
    }
    let most = match fault {
        Some(ProxyFault::Cut(bytes) | ProxyFault::Stall(bytes)) => *bytes,
        _ => said,
    };
    pass(server, client, length.min(most), fault)?;
    match fault {
        Some(ProxyFault::Stall(_)) => {
            // Until the other side has had enough of it.
            let _ = client.read(&mut [0; 1])?;
            Ok(AfterAnswer::Close)
        }
        Some(ProxyFault::Cut(_) | ProxyFault::Length(_)) => {
            client.shutdown(Shutdown::Both)?;
            Ok(AfterAnswer::Close)
        }
        _ => Ok(AfterAnswer::Next),
    }
}

/// So many bytes of the body.
fn pass(server: TcpStream, client: &mut TcpStream, bytes: u64, fault: Option<&ProxyFault>) -> Result<()> {
    let (mut body, mut buffer, mut at) = (server.take(bytes), vec![0; CHUNK], 0);
    loop {
        let count = body.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        if let Some(ProxyFault::Flip(place)) = fault {
            let inside = place.checked_sub(at).and_then(|inside| usize::try_from(inside).ok());
            if let Some(byte) = inside.and_then(|inside| buffer[..count].get_mut(inside)) {
                *byte ^= 0x10;
            }
        }
        client.write_all(&buffer[..count])?;
        at += count as u64;
    }
}
