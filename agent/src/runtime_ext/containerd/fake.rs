//! A containerd on a socket, as far as it is asked here: its events and its content store. The client's
//! crate has no servers, so the two services are put together by hand; they keep real state. For tests.

#![expect(clippy::disallowed_methods, reason = "the fake is served until its test ends")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use containerd_client::events::TaskOom;
use containerd_client::services::v1::{
    Info, ListContentRequest, ListContentResponse, ListStatusesRequest, ListStatusesResponse,
    ReadContentRequest, ReadContentResponse, Status as Ingest, SubscribeRequest,
};
use containerd_client::types::Envelope;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use prost::Message;
use prost_types::{Any, Timestamp};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::body::Body;
use tonic::codegen::http::{Request as HttpRequest, Response as HttpResponse};
use tonic::server::{Grpc, NamedService};
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

/// Its state; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Fake {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    blobs: BTreeMap<String, (Info, Vec<u8>)>,
    ingests: Vec<Ingest>,
    subscribers: Vec<mpsc::Sender<Result<Envelope, Status>>>,
    /// Filters of all subscriptions there were.
    subscriptions: Vec<Vec<String>>,
    /// Of the next lists of ingests, so many fail.
    failures: usize,
    asked: usize,
}

/// A stretch of time in which it serves.
pub(super) struct Serving {
    _folder: TempDir,
    pub(super) channel: Channel,
}

pub(super) fn at(nanos: i64) -> Option<Timestamp> {
    let rest = i32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap();
    Some(Timestamp { seconds: nanos.div_euclid(1_000_000_000), nanos: rest })
}

impl Fake {
    pub(super) async fn serve(&self) -> Serving {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("containerd.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = Server::builder().add_service(Events(self.clone())).add_service(Content(self.clone()));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        let channel = crate::runtime::cri::connect(&format!("unix://{}", path.display())).await.unwrap();
        Serving { _folder: folder, channel }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().unwrap())
    }

    pub(super) fn put(&self, digest: &str, created: i64, labels: &[(&str, &str)], bytes: &[u8]) {
        let info = Info {
            digest: digest.into(),
            size: bytes.len().try_into().unwrap(),
            created_at: at(created),
            updated_at: at(created),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        };
        self.with(|inner| {
            inner.ingests.retain(|ingest| !ingest.r#ref.ends_with(digest));
            inner.blobs.insert(digest.to_owned(), (info, bytes.to_vec()))
        });
    }

    pub(super) fn take_in(&self, digest: &str, since: i64, offset: i64) {
        let ingest =
            Ingest { r#ref: format!("layer-{digest}"), started_at: at(since), offset, ..Ingest::default() };
        self.with(|inner| {
            inner.ingests.retain(|old| old.r#ref != ingest.r#ref);
            inner.ingests.push(ingest);
        });
    }

    pub(super) fn fail(&self, times: usize) {
        self.with(|inner| inner.failures = times);
    }

    pub(super) fn requests(&self) -> usize {
        self.with(|inner| inner.asked)
    }

    pub(super) fn subscriptions(&self) -> Vec<Vec<String>> {
        self.with(|inner| inner.subscriptions.clone())
    }

    pub(super) fn oom(&self, container: &str) {
        let value = TaskOom { container_id: container.into() }.encode_to_vec();
        self.publish(&Envelope {
            timestamp: at(1),
            namespace: "k8s.io".into(),
            topic: "/tasks/oom".into(),
            event: Some(Any { type_url: "containerd.events.TaskOOM".into(), value }),
        });
    }

    pub(super) fn publish(&self, event: &Envelope) {
        let subscribers = self.with(|inner| inner.subscribers.clone());
        subscribers.iter().for_each(|one| drop(one.try_send(Ok(event.clone()))));
    }

    /// Every subscription ends.
    pub(super) fn hang_up(&self) {
        self.with(|inner| inner.subscribers.clear());
    }

    fn subscribe(&self, filters: Vec<String>) -> BoxStream<'static, Result<Envelope, Status>> {
        let (sender, receiver) = mpsc::channel(64);
        self.with(|inner| {
            inner.subscriptions.push(filters);
            inner.subscribers.push(sender);
        });
        ReceiverStream::new(receiver).boxed()
    }

    /// By the two kinds of filters that are used here: a digest, or labels that are all there.
    fn list(&self, filters: &[String]) -> Vec<Info> {
        let holds = |info: &Info, filter: &String| match filter.strip_prefix("digest==") {
            Some(digest) => info.digest == digest,
            None => filter.split(',').all(|part| {
                let label = part.strip_prefix("labels.\"").and_then(|rest| rest.strip_suffix('"'));
                info.labels.contains_key(label.unwrap())
            }),
        };
        self.with(|inner| {
            inner.asked += 1;
            let infos = inner.blobs.values().map(|(info, _)| info);
            infos.filter(|info| filters.iter().any(|filter| holds(info, filter))).cloned().collect()
        })
    }
}

/// Nothing is there for those who name no namespace.
fn in_namespace<T>(request: &Request<T>) -> Result<(), Status> {
    let namespace = request.metadata().get("containerd-namespace").map(|name| name.to_str().unwrap());
    (namespace == Some("k8s.io"))
        .then_some(())
        .ok_or_else(|| Status::failed_precondition("namespace is required"))
}

#[derive(Debug, Clone)]
struct Events(Fake);

#[derive(Debug, Clone)]
struct Content(Fake);

impl NamedService for Events {
    const NAME: &'static str = "containerd.services.events.v1.Events";
}

impl NamedService for Content {
    const NAME: &'static str = "containerd.services.content.v1.Content";
}

type Answer = BoxFuture<'static, Result<HttpResponse<Body>, Infallible>>;

impl Service<HttpRequest<Body>> for Events {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Answer {
        let fake = self.0.clone();
        Box::pin(async move {
            let answer = service_fn(move |request: Request<SubscribeRequest>| {
                let fake = fake.clone();
                async move {
                    in_namespace(&request)?;
                    Ok(Response::new(fake.subscribe(request.into_inner().filters)))
                }
            });
            Ok(Grpc::new(ProstCodec::<Envelope, SubscribeRequest>::default())
                .server_streaming(answer, request)
                .await)
        })
    }
}

impl Service<HttpRequest<Body>> for Content {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Answer {
        let fake = self.0.clone();
        let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
        Box::pin(async move {
            Ok(match method.as_str() {
                "List" => list(fake, request).await,
                "Read" => read(fake, request).await,
                "ListStatuses" => statuses(fake, request).await,
                other => Status::unimplemented(other.to_owned()).into_http(),
            })
        })
    }
}

async fn list(fake: Fake, request: HttpRequest<Body>) -> HttpResponse<Body> {
    let answer = service_fn(move |request: Request<ListContentRequest>| {
        let fake = fake.clone();
        async move {
            in_namespace(&request)?;
            // In parts, as the real one.
            let info = fake.list(&request.get_ref().filters);
            let parts: Vec<_> =
                info.chunks(2).map(|part| Ok(ListContentResponse { info: part.to_vec() })).collect();
            Ok(Response::new(stream::iter(parts)))
        }
    });
    Grpc::new(ProstCodec::<ListContentResponse, ListContentRequest>::default())
        .server_streaming(answer, request)
        .await
}

async fn read(fake: Fake, request: HttpRequest<Body>) -> HttpResponse<Body> {
    let answer = service_fn(move |request: Request<ReadContentRequest>| {
        let fake = fake.clone();
        async move {
            in_namespace(&request)?;
            let found = fake.with(|inner| inner.blobs.get(&request.get_ref().digest).cloned());
            let (_, bytes) = found.ok_or_else(|| Status::not_found("no such blob"))?;
            let part = |part: &[u8]| Ok(ReadContentResponse { offset: 0, data: part.to_vec() });
            let parts: Vec<Result<_, Status>> = bytes.chunks(1 << 20).map(part).collect();
            Ok(Response::new(stream::iter(parts)))
        }
    });
    Grpc::new(ProstCodec::<ReadContentResponse, ReadContentRequest>::default())
        .server_streaming(answer, request)
        .await
}

async fn statuses(fake: Fake, request: HttpRequest<Body>) -> HttpResponse<Body> {
    let answer = service_fn(move |request: Request<ListStatusesRequest>| {
        let fake = fake.clone();
        async move {
            in_namespace(&request)?;
            fake.with(|inner| {
                if inner.failures > 0 {
                    inner.failures -= 1;
                    return Err(Status::unavailable("as asked for"));
                }
                Ok(Response::new(ListStatusesResponse { statuses: inner.ingests.clone() }))
            })
        }
    });
    Grpc::new(ProstCodec::<ListStatusesResponse, ListStatusesRequest>::default()).unary(answer, request).await
}
