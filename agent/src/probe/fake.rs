//! Answers by script instead of a network. Owns the scripts and a record of what was asked; used by
//! unit tests of the workers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::{HttpError, HttpRequest, HttpResponse, ProbeIo, ProbeResult};

/// The fake; clones share one state. What has no script answers well.
#[derive(Debug, Clone, Default)]
pub struct FakeProbe {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    http: BTreeMap<String, Vec<Result<HttpResponse, HttpError>>>,
    tcp: BTreeMap<u16, Result<(), String>>,
    grpc: BTreeMap<u16, ProbeResult>,
    takes: Duration,
    log: Vec<String>,
}

impl FakeProbe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each request for the path takes the next status; the last one stays.
    pub fn script_http(&self, path: &str, statuses: &[u16]) {
        let answers = statuses.iter().map(|status| Ok(HttpResponse { status: *status, body: String::new() }));
        self.lock().http.insert(path.to_owned(), answers.collect());
    }

    /// The path has no answer.
    pub fn fail_http(&self, path: &str, error: HttpError) {
        self.lock().http.insert(path.to_owned(), vec![Err(error)]);
    }

    /// The path is served without TLS.
    pub fn serve_plain(&self, path: &str) {
        let plain = HttpError::NotTls("server gave HTTP response".to_owned());
        let page = HttpResponse { status: 200, body: String::new() };
        self.lock().http.insert(path.to_owned(), vec![Err(plain), Ok(page)]);
    }

    /// What a connection to the port comes to.
    pub fn script_tcp(&self, port: u16, answer: Result<(), String>) {
        self.lock().tcp.insert(port, answer);
    }

    /// What the health service at the port says.
    pub fn script_grpc(&self, port: u16, verdict: ProbeResult) {
        self.lock().grpc.insert(port, verdict);
    }

    /// Every try takes this long, or until its timeout.
    pub fn set_takes(&self, takes: Duration) {
        self.lock().takes = takes;
    }

    /// What was asked: `http://10.88.0.2:80/x kube-probe/1.36`, `tcp 10.88.0.2:80`.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    /// How many requests had this in them.
    #[must_use]
    pub fn count(&self, part: &str) -> usize {
        self.lock().log.iter().filter(|entry| entry.contains(part)).count()
    }

    async fn pass(&self, timeout: Duration) -> bool {
        let takes = self.lock().takes;
        tokio::time::sleep(takes.min(timeout)).await;
        takes <= timeout
    }
}

impl ProbeIo for FakeProbe {
    fn http(
        &self,
        request: HttpRequest,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let HttpRequest { host, port, path, tls, headers } = request;
            let agent =
                headers.iter().find(|(name, _)| name == "User-Agent").map(|(_, value)| value.as_str());
            let scheme = if tls { "https" } else { "http" };
            self.lock().log.push(format!("{scheme}://{host}:{port}{path} {}", agent.unwrap_or_default()));
            if !self.pass(timeout).await {
                return Err(HttpError::NoAnswer("context deadline exceeded".to_owned()));
            }
            let mut state = self.lock();
            match state.http.get_mut(&path) {
                Some(list) if list.len() > 1 => list.remove(0),
                Some(list) => {
                    list.first().cloned().unwrap_or(Ok(HttpResponse { status: 200, body: String::new() }))
                }
                None => Ok(HttpResponse { status: 200, body: String::new() }),
            }
        })
    }

    fn tcp(&self, host: String, port: u16, timeout: Duration) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            self.lock().log.push(format!("tcp {host}:{port}"));
            if !self.pass(timeout).await {
                return Err(format!("dial tcp {host}:{port}: i/o timeout"));
            }
            self.lock().tcp.get(&port).cloned().unwrap_or(Ok(()))
        })
    }

    fn grpc(
        &self,
        host: String,
        port: u16,
        service: String,
        timeout: Duration,
    ) -> BoxFuture<'_, ProbeResult> {
        Box::pin(async move {
            self.lock().log.push(format!("grpc {host}:{port} {service}"));
            if !self.pass(timeout).await {
                return ProbeResult::Failure("timeout".to_owned());
            }
            let scripted = self.lock().grpc.get(&port).cloned();
            scripted.unwrap_or_else(|| ProbeResult::Success("service healthy".to_owned()))
        })
    }
}
