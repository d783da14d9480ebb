//! A real registry on loopback for one test: Debian's `docker-registry`, its storage in a
//! temporary folder, ended by pid on drop. Owns pushing and damaging blobs; never pulls (that is
//! what is tested). Called by tests and the demo.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tempfile::TempDir;

use crate::http::{self, Response};
use crate::image::{Blob, Built, sha256};
use crate::poll::poll;

/// A second server over the same storage that speaks https only; stops when dropped.
#[derive(Debug)]
pub struct Secured {
    child: Child,
    addr: SocketAddr,
    /// PEM of the authority that signed its certificate.
    pub authority: String,
    _folder: TempDir,
}

/// A second server over the same storage that asks for [`Guarded::USER`] and [`Guarded::PASSWORD`]; stops
/// when dropped.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
    addr: SocketAddr,
    _folder: TempDir,
}

/// A running registry; stops when dropped.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    addr: SocketAddr,
    folder: TempDir,
    store: PathBuf,
}

impl Registry {
    /// Starts one on a free loopback port and waits until it answers.
    ///
    /// # Errors
    /// When `docker-registry` is missing or does not come up in 20 s.
    pub fn start() -> Result<Self> {
        Self::start_at(free_port()?)
    }

    /// Starts one where it is told to and waits until it answers.
    ///
    /// # Errors
    /// As [`Registry::start`], or when something listens there.
    pub fn start_at(addr: SocketAddr) -> Result<Self> {
        Self::start_over(addr, None)
    }

    /// Starts one over images that outlive it.
    ///
    /// # Errors
    /// As [`Registry::start_at`].
    pub fn start_on(addr: SocketAddr, store: &Path) -> Result<Self> {
        Self::start_over(addr, Some(store))
    }

    fn start_over(addr: SocketAddr, store: Option<&Path>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("gantry-registry-").tempdir()?;
        let store = store.map_or_else(|| folder.path().join("store"), Path::to_owned);
        let child = serve(&folder, &store, addr, "")?;
        let mut registry = Registry { child, addr, folder, store };
        registry.await_ready()?;
        Ok(registry)
    }

    fn await_ready(&mut self) -> Result<()> {
        let addr = self.addr;
        let child = &mut self.child;
        let log = self.folder.path().join("log");
        let answered = poll("the registry to answer", Duration::from_secs(20), || {
            if let Ok(Some(status)) = child.try_wait() {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Ok(Err(anyhow!("docker-registry ended with {status}: {said}")));
            }
            match http::get(addr, "/v2/") {
                Ok(answer) if answer.status == 200 => Ok(Ok(())),
                Ok(answer) => Err(format!("status {}", answer.status)),
                Err(error) => Err(format!("{error:#}")),
            }
        });
        answered.flatten()
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        self.addr.to_string()
    }

    /// The same images over https, with a certificate that nobody trusts yet.
    ///
    /// # Errors
    /// When no certificate can be made or the server does not come up in 20 s.
    pub fn serve_tls(&self) -> Result<Secured> {
        let folder = tempfile::Builder::new().prefix("gantry-registry-").tempdir()?;
        let signing = rcgen::KeyPair::generate()?;
        let mut params = rcgen::CertificateParams::new(vec![])?;
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "an authority of one test");
        let root = params.self_signed(&signing)?;
        let issuer = rcgen::Issuer::new(params, signing);
        let key = rcgen::KeyPair::generate()?;
        let own = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("own.pem"), own.pem())?;
        std::fs::write(at("own.key"), key.serialize_pem())?;
        let addr = free_port()?;
        let tls = format!(
            "  tls:\n    certificate: {}\n    key: {}\n",
            at("own.pem").display(),
            at("own.key").display()
        );
        let child = serve(&folder, &self.store, addr, &tls)?;
        let mut secured = Secured { child, addr, authority: root.pem(), _folder: folder };
        let answered = poll("the https registry to listen", Duration::from_secs(20), || {
            if let Ok(Some(status)) = secured.child.try_wait() {
                return Ok(Err(anyhow!("docker-registry ended with {status}")));
            }
            std::net::TcpStream::connect(addr).map(|_| Ok(())).map_err(|error| error.to_string())
        });
        answered.flatten()?;
        Ok(secured)
    }

    /// The same images behind a password, in plain HTTP.
    ///
    /// # Errors
    /// When the server does not come up in 20 s.
    pub fn serve_with_password(&self) -> Result<Guarded> {
        let folder = tempfile::Builder::new().prefix("gantry-registry-").tempdir()?;
        let passwords = folder.path().join("htpasswd");
        std::fs::write(&passwords, HTPASSWD)?;
        let addr = free_port()?;
        let auth = format!("auth:\n  htpasswd:\n    realm: guarded\n    path: {}\n", passwords.display());
        let child = serve(&folder, &self.store, addr, &auth)?;
        let mut guarded = Guarded { child, addr, _folder: folder };
        let answered = poll("the guarded registry to refuse", Duration::from_secs(20), || {
            if let Ok(Some(status)) = guarded.child.try_wait() {
                return Ok(Err(anyhow!("docker-registry ended with {status}")));
            }
            match http::get(addr, "/v2/") {
                Ok(answer) if answer.status == 401 => Ok(Ok(())),
                Ok(answer) => Err(format!("status {}", answer.status)),
                Err(error) => Err(format!("{error:#}")),
            }
        });
        answered.flatten()?;
        Ok(guarded)
    }

    /// Pushes an image and returns the reference to pull it by.
    ///
    /// # Errors
    /// When the registry refuses a blob or the manifest.
    pub fn push(&self, repository: &str, tag: &str, image: &Built) -> Result<String> {
        for layer in &image.layers {
            self.push_blob(repository, layer)?;
        }
        self.push_blob(repository, &image.config)?;
        self.push_manifest(repository, tag, image.media_type(), &image.manifest.bytes)?;
        Ok(format!("{}/{repository}:{tag}", self.addr))
    }

    /// Pushes a manifest whose blobs are there.
    ///
    /// # Errors
    /// When the registry refuses it.
    pub fn push_manifest(&self, repository: &str, tag: &str, media_type: &str, bytes: &[u8]) -> Result<()> {
        let target = format!("/v2/{repository}/manifests/{tag}");
        let answer = http::request(self.addr, "PUT", &target, &[("Content-Type", media_type)], bytes)?;
        expect(&answer, 201, "manifest")
    }

    /// Pushes some bytes and returns their digest.
    ///
    /// # Errors
    /// When the registry refuses them.
    pub fn push_bytes(&self, repository: &str, bytes: Vec<u8>) -> Result<String> {
        let digest = sha256(&bytes);
        self.push_blob(repository, &Blob { digest: digest.clone(), bytes })?;
        Ok(digest)
    }

    /// Pushes a file of any size.
    ///
    /// # Errors
    /// When it can't be read, or the registry refuses it.
    pub fn push_file(&self, repository: &str, digest: &str, file: &Path) -> Result<()> {
        let target = self.begin_upload(repository, digest)?;
        expect(&http::put_file(self.addr, &target, file)?, 201, "blob")
    }

    fn push_blob(&self, repository: &str, blob: &Blob) -> Result<()> {
        let target = self.begin_upload(repository, &blob.digest)?;
        let headers = [("Content-Type", "application/octet-stream")];
        let done = http::request(self.addr, "PUT", &target, &headers, &blob.bytes)?;
        expect(&done, 201, "blob")
    }

    /// Where a blob is to be put.
    fn begin_upload(&self, repository: &str, digest: &str) -> Result<String> {
        let begun = http::request(self.addr, "POST", &format!("/v2/{repository}/blobs/uploads/"), &[], &[])?;
        expect(&begun, 202, "upload")?;
        let location = begun.header("location").context("an upload without a Location")?;
        let target = location.strip_prefix(&format!("http://{}", self.addr)).unwrap_or(location);
        let joint = if target.contains('?') { '&' } else { '?' };
        Ok(format!("{target}{joint}digest={digest}"))
    }

    /// Flips a bit in the middle of a stored blob: what it serves no longer has its digest.
    ///
    /// # Errors
    /// When the registry holds no such blob.
    pub fn corrupt(&self, digest: &str) -> Result<()> {
        let path = self.blob_path(digest)?;
        let mut bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let middle = bytes.len() / 2;
        let byte = bytes.get_mut(middle).with_context(|| format!("{} is empty", path.display()))?;
        *byte ^= 0x10;
        std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Reads all blobs of an image, so that they are in memory as a busy registry has them.
    ///
    /// # Errors
    /// When there is no such manifest, or one of its blobs is missing.
    pub fn warm(&self, repository: &str, tag: &str) -> Result<()> {
        let target = format!("/v2/{repository}/manifests/{tag}");
        let accept = [("Accept", "application/vnd.oci.image.manifest.v1+json")];
        let answer = http::request(self.addr, "GET", &target, &accept, &[])?;
        expect(&answer, 200, "manifest")?;
        let manifest: serde_json::Value = serde_json::from_slice(&answer.body).context("the manifest")?;
        for layer in manifest["layers"].as_array().context("a manifest without layers")? {
            let path = self.blob_path(layer["digest"].as_str().context("a layer without a digest")?)?;
            let mut file = File::open(&path).with_context(|| path.display().to_string())?;
            std::io::copy(&mut file, &mut std::io::sink())?;
        }
        Ok(())
    }

    fn blob_path(&self, digest: &str) -> Result<PathBuf> {
        let hex = digest.strip_prefix("sha256:").with_context(|| format!("not a sha256 digest: {digest}"))?;
        ensure!(hex.len() == 64, "not a sha256 digest: {digest}");
        let blobs = self.store.join("docker/registry/v2/blobs/sha256");
        Ok(blobs.join(&hex[..2]).join(hex).join("data"))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(folder: &TempDir, store: &Path, addr: SocketAddr, more: &str) -> Result<Child> {
    let config = folder.path().join("config.yml");
    std::fs::write(
        &config,
        format!(
            "version: 0.1\nlog:\n  level: warn\n  accesslog:\n    disabled: true\n\
             storage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {addr}\n{more}",
            store.display()
        ),
    )?;
    let log = File::create(folder.path().join("log"))?;
    Command::new("docker-registry")
        .arg("serve")
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| gantry_needs::remedy("docker-registry"))
}

/// `htpasswd -nbB` of the two below.
const HTPASSWD: &str = "web:$2y$05$L8QNVSqvg6sabchTN/zGIOB7QQhxbWyCFvf8iLpftx1865is3YJ6W\n";

impl Guarded {
    /// Who may pull.
    pub const USER: &str = "web";
    /// That user's password.
    pub const PASSWORD: &str = "s3cret";

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        self.addr.to_string()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Secured {
    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        self.addr.to_string()
    }
}

impl Drop for Secured {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address where nobody listens (at the time of asking).
///
/// # Errors
/// When loopback is down.
pub fn free_port() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind 127.0.0.1: is lo up?")?;
    Ok(listener.local_addr()?)
}

fn expect(answer: &Response, status: u16, what: &str) -> Result<()> {
    if answer.status != status {
        bail!("the registry answers {} to a {what}: {}", answer.status, answer.text());
    }
    Ok(())
}
