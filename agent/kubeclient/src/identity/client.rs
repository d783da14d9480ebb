//! Connections to the API server: `kube` clients whose connections show whatever certificate is
//! current. Owns connecting, spreading requests over connections, the Authorization header and the
//! pace; never what is asked. Called by the wiring and by bootstrap.

mod body;
mod pace;
mod proxy;
pub mod shown;
mod trust;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use gantry_metrics::Metrics;
use gantry_model::version;
use http::header::{AUTHORIZATION, HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use rustls::pki_types::ServerName;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::{BoxError, Service};

use self::body::StreamBody;
pub use self::pace::{Pace, RequestPace, Token};
use self::proxy::Dial;
use super::exec::{Credentials, Program};
use super::kubeconfig::{Access, Authorization};
use super::{Current, Shown};

/// Streams of HTTP/2 on one connection; API servers allow 100, and a watch keeps one for long.
const STREAMS: usize = 80;

/// Requests under way on the connections of one way, where the server sets no limit or a wide one.
const AT_ONCE: usize = 100;

const CONNECT: Duration = Duration::from_secs(30);

/// Three ways to the API server, each with connections of its own: what one asks for never waits
/// behind another.
#[derive(Clone)]
pub struct Clients {
    /// For everything.
    pub pods: kube::Client,
    /// For the statuses of pods: over the same connections, and each request waits for `pace` before it is made.
    pub statuses: kube::Client,
    /// Of `pods` and `statuses` together.
    pub pace: RequestPace,
    /// For the lease and the node's status.
    pub lease: kube::Client,
    /// For events.
    pub events: kube::Client,
    lines: [Lines; 3],
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clients").field("lines", &self.lines).finish_non_exhaustive()
    }
}

/// How fast each may ask, and how long the lease may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Requests in a second, and at once.
    pub pods: Pace,
    /// An API server that limits its clients itself is left to it: `pods` holds for others alone.
    pub yields: bool,
    /// Of events.
    pub events: Pace,
    /// Of one request for the lease.
    pub lease: Duration,
}

/// Why there is no way.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("whom to trust")]
    Trust(#[from] trust::Error),
    #[error("tls-server-name {0:?} is no name")]
    Name(String),
    #[error("the client certificate")]
    Certificate(#[from] super::store::Error),
}

impl Clients {
    /// Connects when asked, not now; with `patient` not before there is a certificate to show, since
    /// whoever has none yet is only refused.
    ///
    /// # Errors
    /// When what `access` names cannot be read.
    pub fn new(
        access: &Access,
        current: &Current,
        limits: Limits,
        patient: bool,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, Error> {
        let lines = || Lines::new(access, current.clone(), patient, metrics.clone());
        let (pods, lease, events) = (lines()?, lines()?, lines()?);
        let client = |way: Way| kube::Client::new(way, "default");
        let pace =
            if limits.yields { RequestPace::yielding(limits.pods) } else { RequestPace::new(limits.pods) };
        let of_events = RequestPace::new(limits.events);
        Ok(Self {
            pods: client(Way::new(pods.clone(), pace.limiter(), None)),
            statuses: client(Way { listens: pace.limiter(), ..Way::new(pods.clone(), None, None) }),
            pace,
            lease: client(Way::new(lease.clone(), None, Some(limits.lease))),
            events: client(Way::new(events.clone(), of_events.limiter(), None)),
            lines: [pods, lease, events],
        })
    }

    /// What is asked from now on goes over new connections; streams under way stay where they are.
    pub fn renew(&self) {
        self.lines.iter().for_each(Lines::renew);
    }
}

/// One way, for a single purpose.
///
/// # Errors
/// When what `access` names cannot be read.
pub fn single(access: &Access, current: &Current, metrics: &Arc<Metrics>) -> Result<kube::Client, Error> {
    let lines = Lines::new(access, current.clone(), false, metrics.clone())?;
    Ok(kube::Client::new(Way::new(lines, None, None), "default"))
}

type Line = legacy::Client<HttpsConnector<Dial>, Body>;

/// Lines, each with how many streams it has.
type Open = Vec<(Line, Arc<AtomicUsize>)>;

/// Connections to one server. The first with room takes a request; without one a new one is made.
#[derive(Clone)]
struct Lines {
    access: Arc<Access>,
    current: Current,
    patient: bool,
    open: Arc<Mutex<Open>>,
    /// Watches apart, which last.
    in_flight: Arc<Semaphore>,
    /// Of the certificate of a credential program that the open ones show.
    generation: Arc<AtomicU64>,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Lines {
    fn new(access: &Access, current: Current, patient: bool, metrics: Arc<Metrics>) -> Result<Self, Error> {
        let current = program_of(access).map_or(current, |program| program.certificate());
        let (access, in_flight) = (Arc::new(access.clone()), Arc::new(Semaphore::new(AT_ONCE)));
        let (open, generation) = Default::default();
        let lines = Self { access, current, patient, open, in_flight, generation, metrics };
        // What is wrong with the file is told now, not at the first request.
        let line = lines.connect()?;
        lines.lock().push((line, Arc::default()));
        Ok(lines)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self) {
        self.lock().clear();
    }

    /// A certificate that changed is shown by new connections.
    fn show(&self, generation: u64) {
        if self.generation.swap(generation, Ordering::Relaxed) != generation {
            self.renew();
        }
    }

    fn connect(&self) -> Result<Line, Error> {
        let config = trust::config(&self.access.trust)?;
        let tls = config.with_client_cert_resolver(Arc::new(Shown(self.current.clone())));
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let https = match &self.access.server_name {
            Some(name) => {
                let fixed = ServerName::try_from(name.clone()).map_err(|_| Error::Name(name.clone()))?;
                https.with_server_name_resolver(FixedServerNameResolver::new(fixed))
            }
            None => https,
        };
        // The proxy is believed as the server is, as upstream, and not shown who we are.
        let to_proxy = trust::config(&self.access.trust)?.with_no_client_auth();
        let dial = Dial::new(self.access.proxy.as_ref(), tcp, to_proxy);
        Ok(legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(90))
            // A server that went away without a word is noticed, as Go's clients do.
            .http2_keep_alive_interval(Duration::from_secs(30))
            .http2_keep_alive_timeout(Duration::from_secs(15))
            .build(https.enable_all_versions().wrap_connector(dial)))
    }

    /// A line with room, and one seat on it.
    fn take(&self) -> Result<(Line, body::StreamPermit), Error> {
        let mut open = self.lock();
        if let Some((line, busy)) = open.iter().find(|(_, busy)| busy.load(Ordering::Relaxed) < STREAMS) {
            return Ok((line.clone(), body::StreamPermit::new(busy.clone())));
        }
        let (line, busy) = (self.connect()?, Arc::default());
        open.push((line.clone(), Arc::clone(&busy)));
        Ok((line, body::StreamPermit::new(busy)))
    }
}

fn program_of(access: &Access) -> Option<&Program> {
    match &access.user.authorization {
        Some(Authorization::Program(program)) => Some(program),
        _ => None,
    }
}

/// A request's way: its place in line, its connection, its headers.
#[derive(Debug, Clone)]
struct Way {
    lines: Lines,
    pace: Option<Arc<pace::RateLimiter>>,
    /// Whoever hears what answers say of limits.
    listens: Option<Arc<pace::RateLimiter>>,
    within: Option<Duration>,
}

impl Way {
    fn new(lines: Lines, pace: Option<Arc<pace::RateLimiter>>, within: Option<Duration>) -> Self {
        Self { lines, listens: pace.clone(), pace, within }
    }

    /// What a credential program says, where there is one.
    async fn ask_program(&self) -> Result<Option<Arc<Credentials>>, BoxError> {
        let Some(program) = program_of(&self.lines.access) else { return Ok(None) };
        let found = program
            .credentials(&self.lines.metrics)
            .await
            .map_err(|error| format!("getting credentials: {error}"))?;
        self.lines.show(found.generation);
        Ok(Some(found))
    }

    fn dress(&self, request: &mut Request<Body>, said: Option<&Credentials>) -> Result<(), BoxError> {
        let access = &self.lines.access;
        *request.uri_mut() = place(&access.server, request.uri())?;
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(version::USER_AGENT));
        let value = match &access.user.authorization {
            None => return Ok(()),
            Some(Authorization::Header(value)) => value.clone(),
            Some(Authorization::Program(_)) => match said.and_then(Credentials::token) {
                Some(token) => format!("Bearer {token}"),
                None => return Ok(()),
            },
            // A small file of ours; it may change at any time.
            Some(Authorization::TokenFile(path)) => {
                format!("Bearer {}", std::fs::read_to_string(path)?.trim())
            }
        };
        let mut value = HeaderValue::from_str(&value)?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
        Ok(())
    }
}

/// A request under way, to be counted: one that is given up, or has no answer, as an error.
struct InFlightRequest {
    metrics: Arc<Metrics>,
    host: String,
    method: String,
    /// A watch lasts as long as it is wanted: that is no duration of interest.
    watches: bool,
    begun: Instant,
    code: Option<String>,
}

impl InFlightRequest {
    fn new(lines: &Lines, request: &Request<Body>) -> Self {
        let mut query = request.uri().query().unwrap_or_default().split('&');
        Self {
            metrics: lines.metrics.clone(),
            host: lines.access.server.authority().map_or_else(|| "none".to_owned(), ToString::to_string),
            method: request.method().to_string(),
            watches: query.any(|part| matches!(part, "watch=true" | "watch=1")),
            begun: Instant::now(),
            code: None,
        }
    }

    fn record_answer(mut self, status: StatusCode) {
        self.code = Some(status.as_u16().to_string());
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let code = self.code.as_deref().unwrap_or("<error>");
        self.metrics.rest_client_requests.inc([code, &self.method, &self.host]);
        if !self.watches {
            self.metrics.rest_client_duration.took([&self.method, &self.host], self.begun.elapsed());
        }
    }
}

/// A path on the server, below whatever path its own address has.
fn place(server: &Uri, path: &Uri) -> Result<Uri, http::Error> {
    let base = server.path().trim_end_matches('/');
    let rest = path.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut parts = server.clone().into_parts();
    parts.path_and_query = Some(format!("{base}{rest}").parse()?);
    Ok(Uri::from_parts(parts)?)
}

impl Service<Request<Body>> for Way {
    type Response = Response<StreamBody<Incoming>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let way = self.clone();
        Box::pin(async move {
            if way.lines.patient {
                // Nobody looks after it any more: what comes of it is told by the answer.
                let _ = way.lines.current.clone().wait_for(Option::is_some).await;
            }
            let asked = InFlightRequest::new(&way.lines, &request);
            if let Some(gate) = &way.pace {
                gate.pass().await;
            }
            // Nobody closes it.
            let _under_way = match asked.watches {
                true => None,
                false => way.lines.in_flight.clone().acquire_owned().await.ok(),
            };
            let said = way.ask_program().await?;
            way.dress(&mut request, said.as_deref())?;
            let (line, seat) = way.lines.take()?;
            let answer = line.request(request);
            let answer = match way.within {
                Some(within) => tokio::time::timeout(within, answer).await??,
                None => answer.await?,
            };
            let status = answer.status();
            if let Some(limiter) = &way.listens {
                limiter.hear(status, answer.headers());
            }
            asked.record_answer(status);
            if let (StatusCode::UNAUTHORIZED, Some(said), Some(program)) =
                (status, &said, program_of(&way.lines.access))
            {
                // As upstream: the next request is made with what it says then.
                program.refuse(said, &way.lines.metrics).await;
            }
            Ok(answer.map(|body| StreamBody::new(body, seat)))
        })
    }
}

#[cfg(test)]
mod tests;
