//! The image half of CRI without a runtime behind it. Owns the edge, as its parent does for a whole node. Served by
//! `runtime::images_alone`.

use std::sync::Arc;

use gantry_proto::cri;
use gantry_proto::cri::image_service_server::ImageService;
use gantry_proto::runtime_ext;
use gantry_proto::runtime_ext::runtime_extensions_server::RuntimeExtensions;
use tonic::{Request, Response, Streaming};

use super::{RpcResult, check, list, load, pull, remove, status_of, tag};
use crate::config::RuntimeConfig;
use gantry_image::Images;

/// The images of a node, and how it is set up.
#[derive(Debug, Clone)]
pub(crate) struct ImageServiceOnly {
    pub(crate) images: Images,
    pub(crate) config: Arc<RuntimeConfig>,
}

#[tonic::async_trait]
impl ImageService for ImageServiceOnly {
    async fn list_images(
        &self,
        request: Request<cri::ListImagesRequest>,
    ) -> RpcResult<cri::ListImagesResponse> {
        let images = list(&self.images, &self.config, request.into_inner().filter)?;
        Ok(Response::new(cri::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> RpcResult<cri::ImageStatusResponse> {
        status_of(&self.images, &self.config, request.into_inner())
    }

    async fn pull_image(&self, request: Request<cri::PullImageRequest>) -> RpcResult<cri::PullImageResponse> {
        pull(&self.images, &self.config, request.into_inner()).await
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> RpcResult<cri::RemoveImageResponse> {
        remove(&self.images, &self.config, request.into_inner()).await
    }
}

#[tonic::async_trait]
impl RuntimeExtensions for ImageServiceOnly {
    async fn load_images(
        &self,
        request: Request<Streaming<runtime_ext::LoadImagesRequest>>,
    ) -> RpcResult<runtime_ext::LoadImagesResponse> {
        load(&self.images, request.into_inner()).await
    }

    async fn tag_image(
        &self,
        request: Request<runtime_ext::TagImageRequest>,
    ) -> RpcResult<runtime_ext::TagImageResponse> {
        tag(&self.images, request.into_inner()).await
    }

    async fn check_store(
        &self,
        _: Request<runtime_ext::CheckStoreRequest>,
    ) -> RpcResult<runtime_ext::CheckStoreResponse> {
        check(&self.images).await
    }
}
