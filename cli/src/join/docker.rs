//! What docker knows of a kind cluster's nodes: their address, and the administrator's kubeconfig in a control plane's
//! container. Owns two questions to the engine's API (v1.24 and later, over its unix socket); never changes a container.
//! Called by [`super`] for `--kind`.
//!
//! The file is read instead of `kubeadm token create` being run there: no program of another container speaks to ours.

#![expect(clippy::disallowed_methods, reason = "the connection ends with its answer")]

use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use axum::body::{Body, to_bytes};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

/// Of an answer; a kubeconfig has a few KiB.
const LIMIT: usize = 1 << 20;
const ADMIN: &str = "/etc/kubernetes/admin.conf";

/// A docker engine.
#[derive(Debug, Clone)]
pub(super) struct Docker {
    socket: PathBuf,
}

impl Docker {
    pub(super) fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The address of a container in its networks, kind's first.
    ///
    /// # Errors
    /// When there is no such container, or it does not run.
    pub(super) async fn address(&self, container: &str) -> Result<IpAddr> {
        let body = self.get(&format!("/containers/{container}/json"), container).await?;
        let value: Value = serde_json::from_slice(&body).context("docker's answer")?;
        address(&value)
            .with_context(|| format!("the container {container} has no address: docker start {container}"))
    }

    /// The text of the administrator's kubeconfig in a container.
    ///
    /// # Errors
    /// When there is no such container or file.
    pub(super) async fn admin(&self, container: &str) -> Result<String> {
        let path = format!("/containers/{container}/archive?path={ADMIN}");
        let body = self.get(&path, container).await?;
        first_file(&body).with_context(|| format!("{ADMIN} of the container {container}"))
    }

    async fn get(&self, path: &str, container: &str) -> Result<Vec<u8>> {
        let at = || format!("ask docker at {}", self.socket.display());
        let stream = UnixStream::connect(&self.socket).await.with_context(|| {
            format!(
                "{}: is kind's docker on this machine? Else use --kubeconfig, or --token with what `docker exec \
                 {container} kubeadm token create --print-join-command` prints there",
                at()
            )
        })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.with_context(at)?;
        // What goes wrong with it shows in the answer.
        tokio::spawn(connection);
        let request = Request::get(path).header("Host", "docker").body(Body::empty()).with_context(at)?;
        let answer = sender.send_request(request).await.with_context(at)?;
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), LIMIT).await.with_context(at)?;
        match status {
            StatusCode::OK => Ok(body.to_vec()),
            StatusCode::NOT_FOUND => {
                bail!(
                    "docker at {} has no container {container}: `kind get clusters` lists them",
                    self.socket.display()
                )
            }
            other => bail!("{}: {other}: {}", at(), String::from_utf8_lossy(&body).trim()),
        }
    }
}

fn address(container: &Value) -> Option<IpAddr> {
    let networks = container.pointer("/NetworkSettings/Networks")?.as_object()?;
    let of = |network: &Value| {
        let word = |key: &str| network.get(key).and_then(Value::as_str).and_then(|text| text.parse().ok());
        word("IPAddress").or_else(|| word("GlobalIPv6Address"))
    };
    networks.get("kind").and_then(of).or_else(|| networks.values().find_map(of))
}

fn first_file(archive: &[u8]) -> Result<String> {
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            return Ok(text);
        }
    }
    bail!("docker sent no file")
}

#[cfg(test)]
mod tests;
