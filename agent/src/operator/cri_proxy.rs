//! The runtime's own API through the agent's socket: `gantry images`, `gantry exec` and crictl
//! speak plain CRI to whichever socket they are given, also when the runtime has none of its own
//! (`gantry run`). Owns passing calls on, byte for byte; reads only those about pulls, and those only where
//! the agent knows more of pulls than the runtime says. Served by [`super::socket`].

use std::convert::Infallible;
use std::marker::PhantomData;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use gantry_proto::cri;
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::image_service_server::{ImageService, ImageServiceServer};
use gantry_proto::cri::runtime_service_server::RuntimeServiceServer;
use gantry_proto::runtime_ext::runtime_extensions_server::RuntimeExtensionsServer;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::transport::Channel;
use tower::{Service, ServiceExt};

use crate::runtime_ext::pulls::Pulls;

/// Passes a whole service on, that of the generated server `S`. A runtime that does not have it says so itself.
#[derive(Debug)]
pub struct Proxy<S> {
    channel: Channel,
    service: PhantomData<fn() -> S>,
}

/// Passes `runtime.v1.RuntimeService` on.
pub type RuntimeProxy = Proxy<RuntimeServiceServer<()>>;
/// Passes `gantry.runtime_ext.v1.RuntimeExtensions` on.
pub type RuntimeExtensionsProxy = Proxy<RuntimeExtensionsServer<()>>;

impl<S> Proxy<S> {
    /// To the runtime behind `channel`.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        Self { channel, service: PhantomData }
    }
}

impl<S> Clone for Proxy<S> {
    fn clone(&self) -> Self {
        Self::new(self.channel.clone())
    }
}

/// Passes `runtime.v1.ImageService` on.
#[derive(Debug, Clone)]
pub struct ImageProxy {
    channel: Channel,
    /// Answers what is about pulls.
    pulls: Option<ImageServiceServer<WithPulls>>,
}

impl ImageProxy {
    /// To the runtime behind `channel`; pulls of which it tells nothing are known by `pulls`.
    #[must_use]
    pub fn new(channel: Channel, pulls: Option<Pulls>) -> Self {
        let pulls = pulls.map(|pulls| {
            let client = ImageServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
            ImageServiceServer::new(WithPulls { client, pulls }).max_encoding_message_size(MAX_MESSAGE)
        });
        Self { channel, pulls }
    }
}

/// As the CRI client's.
const MAX_MESSAGE: usize = 16 << 20;

/// The two calls that are about pulls.
#[derive(Debug)]
struct WithPulls {
    client: ImageServiceClient<Channel>,
    pulls: Pulls,
}

#[tonic::async_trait]
impl ImageService for WithPulls {
    /// Verbose, it says how far a pull under way has come, as Gantry's own runtime does.
    async fn image_status(
        &self,
        request: tonic::Request<cri::ImageStatusRequest>,
    ) -> Result<tonic::Response<cri::ImageStatusResponse>, Status> {
        let asked = request.get_ref();
        let image = asked.image.as_ref().filter(|_| asked.verbose).map(|image| image.image.clone());
        let mut answer = self.client.clone().image_status(request).await?;
        if let Some(progress) = image.and_then(|image| self.pulls.progress(&image)) {
            let text = serde_json::to_string(&progress).map_err(|e| Status::internal(e.to_string()))?;
            answer.get_mut().info.entry("pull".to_owned()).or_insert(text);
        }
        Ok(answer)
    }

    async fn pull_image(
        &self,
        request: tonic::Request<cri::PullImageRequest>,
    ) -> Result<tonic::Response<cri::PullImageResponse>, Status> {
        let image = request.get_ref().image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
        let _under_way = self.pulls.begin(&image);
        self.client.clone().pull_image(request).await
    }
}

impl<S: NamedService> NamedService for Proxy<S> {
    const NAME: &'static str = S::NAME;
}

impl NamedService for ImageProxy {
    const NAME: &'static str = "runtime.v1.ImageService";
}

fn pass_on(
    channel: Channel,
    request: Request<Body>,
) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
    Box::pin(async move {
        let answer = channel.oneshot(request).await;
        Ok(answer.unwrap_or_else(|error| {
            Status::unavailable(format!("the runtime does not answer: {error}")).into_http()
        }))
    })
}

impl<S> Service<Request<Body>> for Proxy<S> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        pass_on(self.channel.clone(), request)
    }
}

impl Service<Request<Body>> for ImageProxy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        match &self.pulls {
            Some(pulls) if matches!(method, "ImageStatus" | "PullImage") => {
                Box::pin(pulls.clone().oneshot(request))
            }
            _ => pass_on(self.channel.clone(), request),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;

    use tokio::net::UnixListener;
    use tokio::sync::Notify;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::transport::Server;

    use super::*;

    /// A runtime that knows no image and pulls until it is told to end.
    struct Slow(Arc<Notify>);

    #[tonic::async_trait]
    impl ImageService for Slow {
        async fn image_status(
            &self,
            request: tonic::Request<cri::ImageStatusRequest>,
        ) -> Result<tonic::Response<cri::ImageStatusResponse>, Status> {
            let note = request.metadata().get("note").map(|note| note.to_str().unwrap().to_owned());
            let info = BTreeMap::from([("note".to_owned(), note.unwrap_or_default())]);
            Ok(tonic::Response::new(cri::ImageStatusResponse { image: None, info }))
        }

        async fn pull_image(
            &self,
            _: tonic::Request<cri::PullImageRequest>,
        ) -> Result<tonic::Response<cri::PullImageResponse>, Status> {
            self.0.notified().await;
            Ok(tonic::Response::new(cri::PullImageResponse { image_ref: "id".to_owned() }))
        }
    }

    async fn serve<S>(service: S, path: &Path) -> Channel
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
        crate::runtime::cri::connect(&format!("unix://{}", path.display())).await.unwrap()
    }

    #[tokio::test]
    async fn a_pull_is_shown_to_those_who_ask_verbosely_and_the_rest_is_passed_on() {
        let folder = tempfile::tempdir().unwrap();
        let end = Arc::new(Notify::new());
        let runtime = ImageServiceServer::new(Slow(end.clone()));
        let runtime = serve(runtime, &folder.path().join("runtime.sock")).await;
        let pulls = Pulls::default();
        let proxy = ImageProxy::new(runtime, Some(pulls.clone()));
        let mut client = ImageServiceClient::new(serve(proxy, &folder.path().join("agent.sock")).await);
        let image = cri::ImageSpec { image: "reg/web".into(), ..cri::ImageSpec::default() };
        let mut puller = client.clone();
        let ask = cri::PullImageRequest { image: Some(image.clone()), ..cri::PullImageRequest::default() };
        let pull = tokio::spawn(async move { puller.pull_image(ask).await });
        let mut board = pulls.watch();
        board.wait_for(|board| board.open().next().is_some()).await.unwrap();

        let status = async |client: &mut ImageServiceClient<Channel>, verbose| {
            let ask = cri::ImageStatusRequest { image: Some(image.clone()), verbose };
            let mut request = tonic::Request::new(ask);
            request.metadata_mut().insert("note", "kept".parse().unwrap());
            client.image_status(request).await.unwrap().into_inner().info
        };
        let info = status(&mut client, true).await;
        assert_eq!(info.get("note").map(String::as_str), Some("kept"));
        let told = info.get("pull").unwrap();
        assert!(told.contains(r#""image":"reg/web:latest""#) && told.contains("resolving"), "{told}");
        assert!(!status(&mut client, false).await.contains_key("pull"));
        end.notify_one();
        assert_eq!(pull.await.unwrap().unwrap().into_inner().image_ref, "id");
        assert!(!status(&mut client, true).await.contains_key("pull"));
        let refused = client.image_fs_info(cri::ImageFsInfoRequest {}).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented);
    }
}
