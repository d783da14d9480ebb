//! A registry on loopback that answers as scripted. Owns its threads and ends them when dropped.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use super::archive::{PushedLayer, image_config, image_manifest};
use crate::image::digest::Digest;

/// What a client sent.
#[derive(Debug, Clone)]
pub(crate) struct RegistryRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

/// What it gets.
#[derive(Clone)]
pub(crate) struct TestAnswer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Send only so many bytes of the body, then close or, with a gate, wait.
    pub(crate) cut: Option<usize>,
    /// Wait, after `cut`, until the gate opens.
    pub(crate) gate: Option<Gate>,
}

/// Holds answers back until the test opens it; dropping it opens it too.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Mutex<mpsc::Receiver<()>>>);

type Script = Arc<dyn Fn(&RegistryRequest) -> Option<TestAnswer> + Send + Sync>;

pub(crate) struct Registry {
    pub(crate) address: SocketAddr,
    shared: Arc<RegistryState>,
    acceptor: Option<JoinHandle<()>>,
}

struct RegistryState {
    stop: AtomicBool,
    /// Path → body and content type.
    content: Mutex<HashMap<String, (Vec<u8>, String)>>,
    /// Asked first; None leaves the request to `content`.
    script: Mutex<Option<Script>>,
    log: Mutex<Vec<RegistryRequest>>,
    /// Connections and their threads, ended with the server.
    open: Mutex<Vec<(TcpStream, JoinHandle<()>)>>,
}

impl Gate {
    pub(crate) fn new() -> (mpsc::Sender<()>, Self) {
        let (open, wait) = mpsc::channel();
        (open, Self(Arc::new(Mutex::new(wait))))
    }
}

impl TestAnswer {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), cut: None, gate: None }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn cut(mut self, cut: usize, gate: Option<&Gate>) -> Self {
        self.cut = Some(cut);
        self.gate = gate.cloned();
        self
    }
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self::on("127.0.0.1:0")
    }

    pub(crate) fn on(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(RegistryState {
            stop: AtomicBool::new(false),
            content: Mutex::default(),
            script: Mutex::default(),
            log: Mutex::default(),
            open: Mutex::default(),
        });
        let own = Arc::clone(&shared);
        let acceptor = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if own.stop.load(Ordering::SeqCst) {
                    return;
                }
                let (held, shared) = (stream.try_clone().unwrap(), Arc::clone(&own));
                let thread = thread::spawn(move || shared.serve(&stream));
                own.open.lock().unwrap().push((held, thread));
            }
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// `127.0.0.1:PORT/name`.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    pub(crate) fn script(
        &self,
        script: impl Fn(&RegistryRequest) -> Option<TestAnswer> + Send + Sync + 'static,
    ) {
        *self.shared.script.lock().unwrap() = Some(Arc::new(script));
    }

    pub(crate) fn log(&self) -> Vec<RegistryRequest> {
        self.shared.log.lock().unwrap().clone()
    }

    /// Requests whose path holds `part`.
    pub(crate) fn hits(&self, part: &str) -> usize {
        self.log().iter().filter(|request| request.path.contains(part)).count()
    }

    pub(crate) fn blob(&self, repository: &str, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        self.put(format!("/v2/{repository}/blobs/{digest}"), bytes, "application/octet-stream");
        digest
    }

    pub(crate) fn manifest(&self, repository: &str, tag: &str, bytes: &[u8], media: &str) -> Digest {
        let digest = Digest::of(bytes);
        self.put(format!("/v2/{repository}/manifests/{digest}"), bytes, media);
        self.put(format!("/v2/{repository}/manifests/{tag}"), bytes, media);
        digest
    }

    /// Pushes an image; returns the digests of its manifest and its config.
    pub(crate) fn image(
        &self,
        repository: &str,
        tag: &str,
        layers: &[PushedLayer],
        env: &str,
    ) -> (Digest, Digest) {
        let config = image_config(layers, env);
        for layer in layers {
            self.blob(repository, &layer.blob);
        }
        let config_digest = self.blob(repository, &config);
        let manifest = image_manifest(&config, layers);
        let media = "application/vnd.oci.image.manifest.v1+json";
        (self.manifest(repository, tag, &manifest, media), config_digest)
    }

    fn put(&self, path: String, bytes: &[u8], media: &str) {
        self.shared.content.lock().unwrap().insert(path, (bytes.to_vec(), media.to_owned()));
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().unwrap();
        }
        *self.shared.script.lock().unwrap() = None;
        for (stream, thread) in self.shared.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            thread.join().unwrap();
        }
    }
}

impl RegistryState {
    /// Requests of one connection, one after the other.
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader) {
            self.log.lock().unwrap().push(request.clone());
            let script = self.script.lock().unwrap().clone();
            let answer = script
                .and_then(|script| script(&request))
                .unwrap_or_else(|| self.answer_from_store(&request));
            if !write(stream, &answer) {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }

    fn answer_from_store(&self, request: &RegistryRequest) -> TestAnswer {
        // What a mirror is told beside the path says whose images are meant.
        let path = request.path.split('?').next().unwrap();
        match self.content.lock().unwrap().get(path) {
            Some((body, _)) if request.headers.contains_key("range") => part(request, body),
            Some((body, media)) => TestAnswer::new(200).header("content-type", media).body(body.clone()),
            None => TestAnswer::new(404)
                .body(br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#),
        }
    }
}

/// `Range: bytes=FROM-LAST`.
fn part(request: &RegistryRequest, body: &[u8]) -> TestAnswer {
    let (from, last) = request.headers["range"].strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let (from, last): (usize, usize) = (from.parse().unwrap(), last.parse().unwrap());
    let range = format!("bytes {from}-{last}/{}", body.len());
    TestAnswer::new(206).header("content-range", range).body(&body[from..=last])
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<RegistryRequest> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    std::io::Read::read_exact(reader, &mut body).ok()?;
    Some(RegistryRequest { method, path, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

/// False: the connection is to be closed.
fn write(mut stream: &TcpStream, answer: &TestAnswer) -> bool {
    let mut head = format!("HTTP/1.1 {} X\r\n", answer.status);
    if !answer.headers.iter().any(|(name, _)| name == "content-length" || name == "transfer-encoding") {
        head.push_str(&format!("content-length: {}\r\n", answer.body.len()));
    }
    for (name, value) in answer.headers.iter().filter(|(_, value)| !value.is_empty()) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let cut = answer.cut.unwrap_or(answer.body.len());
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&answer.body[..cut]));
    if let Some(Gate(gate)) = &answer.gate {
        let _ = gate.lock().unwrap().recv();
        return sent.and_then(|()| stream.write_all(&answer.body[cut..])).is_ok();
    }
    sent.is_ok() && answer.cut.is_none()
}
