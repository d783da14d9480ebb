//! A WebSocket client by hand, for the protocols that client-go does not speak. Owns its socket; frames
//! with a mask of zeros, which leaves the bytes as they are. Called by the kernel tier.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::poll::bound;

const PATIENCE: Duration = Duration::from_secs(30);

/// An upgraded connection.
#[derive(Debug)]
pub struct WebSocket {
    reader: BufReader<TcpStream>,
    /// What the server chose; empty for none.
    pub protocol: String,
}

impl WebSocket {
    /// Upgrades a connection to `url`, asking for `protocol` unless it is empty.
    ///
    /// # Errors
    /// When the answer is not 101; the message has its first line.
    pub fn connect(url: &str, protocol: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://").context("not an http URL")?;
        let (host, path) = rest.split_once('/').context("no path")?;
        let mut stream = TcpStream::connect(host)?;
        stream.set_read_timeout(Some(bound(PATIENCE)))?;
        stream.set_write_timeout(Some(bound(PATIENCE)))?;
        let mut request = format!(
            "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        );
        if !protocol.is_empty() {
            request.push_str(&format!("Sec-WebSocket-Protocol: {protocol}\r\n"));
        }
        stream.write_all(format!("{request}\r\n").as_bytes())?;
        let mut reader = BufReader::new(stream);
        let (mut first, mut chosen) = (String::new(), String::new());
        reader.read_line(&mut first)?;
        ensure!(first.starts_with("HTTP/1.1 101"), "{}", first.trim_end());
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("sec-websocket-protocol") {
                value.trim().clone_into(&mut chosen);
            }
        }
        Ok(Self { reader, protocol: chosen })
    }

    /// Sends a message of at most 125 bytes; as text when `text` says so.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn send(&mut self, text: bool, payload: &[u8]) -> Result<()> {
        let length = u8::try_from(payload.len()).ok().filter(|length| *length <= 125).context("too long")?;
        let head = [0x80 | if text { 1 } else { 2 }, 0x80 | length, 0, 0, 0, 0];
        Ok(self.reader.get_mut().write_all(&[&head, payload].concat())?)
    }

    /// The next message; None at the server's goodbye.
    ///
    /// # Errors
    /// When the connection is gone without one.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>> {
        let mut head = [0u8; 2];
        self.reader.read_exact(&mut head)?;
        let length = match head[1] {
            126 => {
                let mut bytes = [0u8; 2];
                self.reader.read_exact(&mut bytes)?;
                u64::from(u16::from_be_bytes(bytes))
            }
            127 => {
                let mut bytes = [0u8; 8];
                self.reader.read_exact(&mut bytes)?;
                u64::from_be_bytes(bytes)
            }
            length => u64::from(length),
        };
        let mut payload = vec![0u8; usize::try_from(length)?];
        self.reader.read_exact(&mut payload)?;
        match head[0] {
            0x81 | 0x82 => Ok(Some(payload)),
            0x88 => Ok(None),
            other => bail!("a frame of type {other:#x}"),
        }
    }

    /// Everything until the goodbye.
    ///
    /// # Errors
    /// When the connection is gone without one.
    pub fn rest(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut messages = Vec::new();
        while let Some(message) = self.receive()? {
            messages.push(message);
        }
        Ok(messages)
    }
}
