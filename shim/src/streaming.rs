//! The streaming server: Exec, Attach and PortForward answer with a URL, and whoever comes there with
//! its token talks to the container over SPDY/3.1 or WebSocket. Owns the listener and the tokens.
//! Started by `runtime::Runtime`, asked for URLs by the RPC handlers.
//!
//! It listens on loopback only, for the kubelet, crictl or our own agent: what a token is good for is
//! as much as root on the node.

#![expect(clippy::disallowed_methods, reason = "the handle ends with the server")]

pub(crate) mod command;
mod forward;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hangup;
mod http;
mod idle;
mod pending_connections;
pub(crate) mod session;
pub mod spdy;
pub(crate) mod status;
pub mod token;
pub mod ws;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use gantry_proto::cri;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::exec;
use crate::node::Node;
use crate::spec;
use token::{Tokens, Waiting};

pub use crate::exec::terminal::Size;

/// A listening server; dropping it ends the listening, not the streams.
#[derive(Debug)]
pub(crate) struct StreamingServer {
    address: SocketAddr,
    tokens: Arc<Tokens>,
    accepting: JoinHandle<()>,
}

impl Drop for StreamingServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl StreamingServer {
    /// Listens on a free port of loopback.
    ///
    /// # Errors
    /// When there is none, or no loopback.
    pub(crate) async fn start(node: Arc<Node>) -> io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let tokens = Arc::new(Tokens::default());
        let accepting = tokio::spawn(http::accept(listener, node, tokens.clone()));
        Ok(Self { address, tokens, accepting })
    }

    /// Exec.
    ///
    /// # Errors
    /// When the request makes no sense, or the container does not run.
    pub(crate) fn exec(
        &self,
        node: &Node,
        mut request: cri::ExecRequest,
    ) -> Result<cri::ExecResponse, Error> {
        check(&request.container_id, [request.stdin, request.stdout, request.stderr], request.tty)?;
        let container = node.store.container(&request.container_id)?;
        exec::monitor_of(node, &container)?;
        request.container_id.clone_from(&container.id);
        Ok(cri::ExecResponse { url: self.url("exec", Waiting::Exec(request))? })
    }

    /// Attach.
    ///
    /// # Errors
    /// As `exec`.
    pub(crate) fn attach(
        &self,
        node: &Node,
        mut request: cri::AttachRequest,
    ) -> Result<cri::AttachResponse, Error> {
        check(&request.container_id, [request.stdin, request.stdout, request.stderr], request.tty)?;
        let container = node.store.container(&request.container_id)?;
        exec::monitor_of(node, &container)?;
        request.container_id.clone_from(&container.id);
        Ok(cri::AttachResponse { url: self.url("attach", Waiting::Attach(request))? })
    }

    /// PortForward.
    ///
    /// # Errors
    /// When the sandbox is not ready.
    pub(crate) fn port_forward(
        &self,
        node: &Node,
        request: cri::PortForwardRequest,
    ) -> Result<cri::PortForwardResponse, Error> {
        if request.pod_sandbox_id.is_empty() {
            return Err(spec::Error::Missing("pod_sandbox_id").into());
        }
        forward::ForwardTarget::of(node, &request.pod_sandbox_id)?;
        Ok(cri::PortForwardResponse { url: self.url("portforward", Waiting::PortForward(request))? })
    }

    /// Always whole: kubelets of 1.36 take a URL without a scheme for https (cri-dockerd#560).
    fn url(&self, method: &str, request: Waiting) -> Result<String, Error> {
        let token = self.tokens.insert(request, Instant::now())?;
        Ok(format!("http://{}/{method}/{token}", self.address))
    }
}

/// What upstream's server checks, in its words.
fn check(container: &str, streams: [bool; 3], tty: bool) -> Result<(), Error> {
    let [stdin, stdout, stderr] = streams;
    if container.is_empty() {
        return Err(spec::Error::Missing("container_id").into());
    }
    if tty && stderr {
        return Err(Error::BadStreams("tty and stderr cannot both be true"));
    }
    if !(stdin || stdout || stderr) {
        return Err(Error::BadStreams("one of stdin, stdout, or stderr must be set"));
    }
    Ok(())
}
