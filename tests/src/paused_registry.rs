//! A paused registry on loopback: it holds one image and sends the second half of its last layer only when
//! told to: what happens in the middle of a pull can be looked at. Owns its threads. Called by the
//! kernel and the peer tier; the real registry is `registry`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};

use crate::image::Built;

/// Ends with its last connection when dropped.
#[derive(Debug)]
pub struct PausedRegistry {
    addr: SocketAddr,
    shared: Arc<RegistryShared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct RegistryShared {
    /// Ending of the path → type and bytes.
    content: HashMap<String, (&'static str, Vec<u8>)>,
    held: String,
    gate: Mutex<BlobGate>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct BlobGate {
    open: bool,
    ended: bool,
}

impl PausedRegistry {
    /// Serves `image` under every repository as tag `v1`.
    ///
    /// # Errors
    /// When loopback is down.
    pub fn serve(image: &Built) -> Result<Self> {
        let mut content = HashMap::new();
        let manifest = (image.media_type(), image.manifest.bytes.clone());
        content.insert("/manifests/v1".to_owned(), manifest.clone());
        content.insert(format!("/manifests/{}", image.manifest.digest), manifest);
        for blob in image.layers.iter().chain([&image.config]) {
            let key = format!("/blobs/{}", blob.digest);
            content.insert(key, ("application/octet-stream", blob.bytes.clone()));
        }
        let last = image.layers.last().context("an image without layers")?;
        let shared = Arc::new(RegistryShared {
            content,
            held: format!("/blobs/{}", last.digest),
            gate: Mutex::default(),
            moved: Condvar::new(),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind 127.0.0.1")?;
        let addr = listener.local_addr()?;
        let own = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if own.gate().ended {
                    return;
                }
                let shared = Arc::clone(&own);
                std::thread::spawn(move || {
                    // A client that goes away is none of the server's business.
                    let _ = shared.answer(&stream);
                });
            }
        });
        Ok(Self { addr, shared, acceptor: Some(acceptor) })
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        self.addr.to_string()
    }

    /// Reference of the image.
    #[must_use]
    pub fn reference(&self) -> String {
        format!("{}/held/image:v1", self.addr)
    }

    /// Sends the rest, now and in future.
    pub fn release(&self) {
        self.shared.gate().open = true;
        self.shared.moved.notify_all();
    }
}

impl RegistryShared {
    fn gate(&self) -> std::sync::MutexGuard<'_, BlobGate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, stream: &TcpStream) -> Result<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let mut words = line.split_whitespace().map(str::to_owned);
            let head = words.next().as_deref() == Some("HEAD");
            let path = words.next().unwrap_or_default();
            while reader.read_line(&mut line)? > 2 {
                line.clear();
            }
            let mut out = stream;
            let Some((key, (kind, bytes))) = self.content.iter().find(|(key, _)| path.ends_with(*key)) else {
                out.write_all(b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n")?;
                continue;
            };
            let length = bytes.len();
            write!(out, "HTTP/1.1 200 X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n")?;
            if head {
                continue;
            }
            let now = if *key == self.held { length / 2 } else { length };
            out.write_all(&bytes[..now])?;
            if now < length {
                let gate = self.gate();
                drop(self.moved.wait_while(gate, |gate| !gate.open && !gate.ended));
                out.write_all(&bytes[now..])?;
            }
        }
    }
}

impl Drop for PausedRegistry {
    fn drop(&mut self) {
        self.shared.gate().ended = true;
        self.shared.moved.notify_all();
        // Wakes the acceptor, which then sees that it is over.
        drop(TcpStream::connect(self.addr));
        if let Some(acceptor) = self.acceptor.take() {
            // It can only have panicked, and the test has its result already.
            let _ = acceptor.join();
        }
    }
}
