//! The image half of CRI v1. Owns the edge and the messages: names and ids in, one call of `image`, an
//! answer out; never logic. Served by `runtime::Runtime` beside `cri`, and alone where no runtime runs.

pub(crate) mod alone;

use std::collections::BTreeMap;

use gantry_proto::cri;
use gantry_proto::cri::image_service_server::ImageService;
use gantry_proto::runtime_ext::{
    CheckStoreResponse, LoadImagesRequest, LoadImagesResponse, LoadedImage, StoreFault, TagImageRequest,
    TagImageResponse,
};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::streams::{ResponseChunks, chunk_responses};
use super::{CriService, RpcResult, run_detached, traced};
use crate::config::RuntimeConfig;
use crate::config::handlers::Handlers;
use crate::error::Error;
use crate::node::Node;
use crate::spec;
use crate::stats::disk;
use crate::status;
use gantry_base::timeline::{Recorder, unix_nanos};
use gantry_image::usage::walker::PATIENCE;
use gantry_image::{Auth, Image, Images, Naming, Reference, Upload, Usage};

/// Characters of a user's name in a list: more than any system's user has.
const LISTED_USER: usize = 256;
/// Messages of an upload that wait for the disk.
const UPLOADS: usize = 4;

fn credentials(from: cri::AuthConfig) -> Auth {
    Auth {
        username: from.username,
        password: from.password,
        auth: from.auth,
        server_address: from.server_address,
        identity_token: from.identity_token,
        registry_token: from.registry_token,
    }
}

/// All images, or the one that the filter names.
fn list(
    images: &Images,
    config: &RuntimeConfig,
    filter: Option<cri::ImageFilter>,
) -> Result<Vec<cri::Image>, Status> {
    let name = image_name(&config.handlers, filter.and_then(|filter| filter.image))?;
    let found = match name.is_empty() {
        false => images.find(&name).into_iter().collect(),
        true => images.list(),
    };
    Ok(found.iter().map(|image| to_cri_listed(image, &config.pinned_images)).collect())
}

fn image_name(known: &Handlers, image: Option<cri::ImageSpec>) -> Result<String, Status> {
    let image = image.unwrap_or_default();
    spec::handler::of(known, spec::IMAGE_HANDLER, &image.runtime_handler).map_err(Error::from)?;
    Ok(image.image)
}

#[tonic::async_trait]
impl ImageService for CriService {
    async fn list_images(
        &self,
        request: Request<cri::ListImagesRequest>,
    ) -> RpcResult<cri::ListImagesResponse> {
        let images = list(&self.node.images, &self.node.config, request.into_inner().filter)?;
        Ok(Response::new(cri::ListImagesResponse { images }))
    }

    async fn stream_images(
        &self,
        request: Request<cri::StreamImagesRequest>,
    ) -> RpcResult<ResponseChunks<cri::StreamImagesResponse>> {
        let images = list(&self.node.images, &self.node.config, request.into_inner().filter)?;
        Ok(chunk_responses(images, |images| cri::StreamImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> RpcResult<cri::ImageStatusResponse> {
        status_of(&self.node.images, &self.node.config, request.into_inner())
    }

    async fn pull_image(&self, request: Request<cri::PullImageRequest>) -> RpcResult<cri::PullImageResponse> {
        pull(&self.node.images, &self.node.config, request.into_inner()).await
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> RpcResult<cri::RemoveImageResponse> {
        remove(&self.node.images, &self.node.config, request.into_inner()).await
    }

    async fn image_fs_info(
        &self,
        _: Request<cri::ImageFsInfoRequest>,
    ) -> RpcResult<cri::ImageFsInfoResponse> {
        let node = self.node.clone();
        let root = self.node.config.root.display().to_string();
        let usage = tokio::task::spawn_blocking(move || count_usage(&node)).await.map_err(Error::from)?;
        let usage = cri::FilesystemUsage {
            timestamp: unix_nanos(),
            fs_id: Some(cri::FilesystemIdentifier { mountpoint: root }),
            used_bytes: Some(cri::UInt64Value { value: usage.bytes }),
            inodes_used: Some(cri::UInt64Value { value: usage.inodes }),
        };
        // Layers and writable layers stand on one file system; like containerd, say so by naming one.
        Ok(Response::new(cri::ImageFsInfoResponse {
            image_filesystems: vec![usage],
            container_filesystems: Vec::new(),
        }))
    }
}

fn status_of(
    images: &Images,
    config: &RuntimeConfig,
    request: cri::ImageStatusRequest,
) -> RpcResult<cri::ImageStatusResponse> {
    let name = image_name(&config.handlers, request.image)?;
    Ok(Response::new(status(images, &config.pinned_images, &name, request.verbose)))
}

async fn pull(
    images: &Images,
    config: &RuntimeConfig,
    request: cri::PullImageRequest,
) -> RpcResult<cri::PullImageResponse> {
    let (images, name) = (images.clone(), image_name(&config.handlers, request.image)?);
    let auth = request.auth.map(credentials);
    let (stages, begun) = (Recorder::default(), unix_nanos());
    let recorder = stages.clone();
    let pulled = run_detached(async move {
        let reference = Reference::parse(&name).map_err(Error::from)?;
        Ok(images.pull(&reference, auth, &recorder).await?)
    })
    .await;
    traced::tell_stages(&stages, begun);
    Ok(Response::new(cri::PullImageResponse { image_ref: pulled?.id.clone() }))
}

/// As containerd: whichever name or id is given, the whole image goes; one that is not there is removed already.
async fn remove(
    images: &Images,
    config: &RuntimeConfig,
    request: cri::RemoveImageRequest,
) -> RpcResult<cri::RemoveImageResponse> {
    let (images, name) = (images.clone(), image_name(&config.handlers, request.image)?);
    let removed =
        run_detached(async move { Ok(tokio::task::spawn_blocking(move || images.remove(&name)).await??) });
    if let Some(id) = removed.await? {
        tracing::info!(image = id, "removed");
    }
    Ok(Response::new(cri::RemoveImageResponse {}))
}

/// Hands an upload on. What was begun is finished or undone, whatever becomes of the client.
pub(super) async fn load(
    images: &Images,
    mut requests: Streaming<LoadImagesRequest>,
) -> RpcResult<LoadImagesResponse> {
    let mut next = requests.message().await?;
    let naming =
        next.as_ref().map(|first| Naming { name: first.name.clone(), repository: first.repository.clone() });
    let naming = naming.unwrap_or_default();
    let (send, pieces) = mpsc::channel(UPLOADS);
    let loader = images.clone();
    let images = run_detached(async move { Ok(loader.load(naming, pieces).await?) });
    let upload = async move {
        while let Some(request) = next {
            // Whoever takes them has ended, and says why.
            if send.send(Upload::Chunk(request.chunk.into())).await.is_err() {
                return Ok(());
            }
            next = requests.message().await?;
        }
        let _ = send.send(Upload::End).await;
        Ok::<_, Status>(())
    };
    let (images, upload) = tokio::join!(images, upload);
    let images = images?;
    upload?;
    let images = images.iter().map(|image| {
        tracing::info!(image = image.id, names = ?image.repo_tags, "loaded");
        LoadedImage { id: image.id.clone(), names: image.repo_tags.clone() }
    });
    Ok(Response::new(LoadImagesResponse { images: images.collect() }))
}

/// Gives an image one more name.
pub(super) async fn tag(images: &Images, request: TagImageRequest) -> RpcResult<TagImageResponse> {
    let reference = Reference::parse(&request.name).map_err(Error::from)?;
    let Some(name) = reference.tag_name() else {
        return Err(Error::DigestTag(request.name).into());
    };
    let (tagger, wanted, tag) = (images.clone(), request.image.clone(), name.clone());
    let image = run_detached(async move {
        let image = tagger.tag(&wanted, tag).await?;
        image.ok_or(Error::NoImage(wanted))
    });
    let id = image.await?.id.clone();
    tracing::info!(image = id, name, "tagged");
    Ok(Response::new(TagImageResponse { id, name }))
}

/// Holds images and layers against the disk.
pub(super) async fn check(images: &Images) -> RpcResult<CheckStoreResponse> {
    let images = images.clone();
    let check = tokio::task::spawn_blocking(move || images.check()).await.map_err(Error::from)?;
    let check = check.map_err(Error::from)?;
    for fault in &check.faults {
        tracing::warn!("{fault}");
    }
    Ok(Response::new(CheckStoreResponse {
        images: check.images as u64,
        layers: check.layers as u64,
        bytes: check.bytes,
        faults: check
            .faults
            .iter()
            .map(|fault| StoreFault { what: fault.to_string(), remedy: fault.remedy().to_owned() })
            .collect(),
    }))
}

/// Layers, and what containers have written, as far as they have been counted. Blocks for half a second
/// at most.
fn count_usage(node: &Node) -> Usage {
    let containers = node.store.containers();
    let written = containers.iter().map(|container| disk::job(container));
    // Layers last: after a start there are many of them.
    node.walker.ask(written.chain(node.images.to_measure()), PATIENCE);
    let mut usage = node.images.usage();
    for known in containers.iter().filter_map(|container| container.writable.last_count()) {
        usage += known.usage;
    }
    usage
}

/// As a list has it: what an image may make as long as it likes is left out or cut, or five images would
/// make the list of all longer than a message may be. As containerd, without annotations.
fn to_cri_listed(image: &Image, pinned: &[String]) -> cri::Image {
    let mut shown = to_cri(image, pinned);
    shown.spec = shown.spec.map(|spec| cri::ImageSpec { annotations: BTreeMap::default(), ..spec });
    let end = shown.username.char_indices().nth(LISTED_USER).map_or(shown.username.len(), |(at, _)| at);
    shown.username.truncate(end);
    shown
}

fn to_cri(image: &Image, pinned: &[String]) -> cri::Image {
    let (uid, username) = spec::user::of_image(&image.config.user);
    let annotations: BTreeMap<String, String> = image.annotations.clone().into_iter().collect();
    cri::Image {
        id: image.id.clone(),
        repo_tags: image.repo_tags.clone(),
        repo_digests: image.repo_digests.clone(),
        size: image.size,
        uid: uid.map(|value| cri::Int64Value { value }),
        username,
        spec: Some(cri::ImageSpec { image: image.id.clone(), annotations, ..cri::ImageSpec::default() }),
        pinned: pinned.iter().any(|name| is_named(&image.repo_tags, &image.repo_digests, name)),
    }
}

/// Whether one of the image's names is this one. Nothing of the runtime's own is an image: only the
/// configuration pins.
fn is_named(tags: &[String], digests: &[String], name: &str) -> bool {
    let Ok(reference) = Reference::parse(name) else { return false };
    match (reference.tag_name(), reference.digest()) {
        (Some(tag), _) => tags.contains(&tag),
        (None, Some(digest)) => digests.contains(&format!("{}@{digest}", reference.repository())),
        (None, None) => false,
    }
}

fn status(images: &Images, pinned: &[String], name: &str, verbose: bool) -> cri::ImageStatusResponse {
    let found = images.find(name);
    let mut info = BTreeMap::new();
    if verbose {
        // An image that is not here may be on its way.
        let pull = images.progress(name).and_then(|pull| serde_json::to_string(&pull).ok());
        info.extend(pull.map(|pull| ("pull".to_owned(), pull)));
        if let Some(found) = &found {
            info.extend(status::info(verbose, &images.last_pull(&found.id)));
            info.insert("info".to_owned(), verbose_info(images, found).to_string());
        }
    }
    cri::ImageStatusResponse { image: found.map(|found| to_cri(&found, pinned)), info }
}

/// As containerd's `info`, which tools read: the chain id and the image's whole config.
fn verbose_info(images: &Images, image: &Image) -> serde_json::Value {
    let config = images.config_document(&image.id);
    let config = config.and_then(|config| serde_json::from_str::<serde_json::Value>(&config).ok());
    serde_json::json!({ "chainID": image.chain_id(), "imageSpec": config })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_told_as_a_user_id() {
        assert_eq!(spec::user::of_image("1000:5"), (Some(1000), String::new()));
        assert_eq!(spec::user::of_image("web"), (None, "web".to_owned()));
        assert_eq!(spec::user::of_image("+1000"), (None, "+1000".to_owned()));
        assert_eq!(spec::user::of_image("-1"), (None, "-1".to_owned()));
        assert_eq!(spec::user::of_image(""), (None, String::new()));
    }

    #[test]
    fn an_image_of_an_unknown_handler_is_refused_by_name() {
        let image = cri::ImageSpec { runtime_handler: "kata".into(), ..cri::ImageSpec::default() };
        let error = image_name(&Handlers::new(), Some(image)).unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.message().contains("image.runtime_handler: \"kata\""), "{error:?}");
        assert_eq!(image_name(&Handlers::new(), None).unwrap(), "");
    }

    #[test]
    fn an_image_is_pinned_by_each_form_of_its_names_and_by_no_other() {
        let digest = format!("sha256:{}", "c".repeat(64));
        let tags = ["docker.io/library/pause:3".to_owned()];
        let digests = [format!("docker.io/library/pause@{digest}")];
        let pinned = |name: &str| is_named(&tags, &digests, name);
        for name in ["pause:3", "docker.io/library/pause:3", &format!("pause@{digest}")] {
            assert!(pinned(name), "{name}");
        }
        for name in ["pause", "pause:4", "quay.io/library/pause:3", "No Name", ""] {
            assert!(!pinned(name), "{name}");
        }
    }

    #[test]
    fn the_image_user_is_a_number_or_a_name_and_never_its_group() {
        assert_eq!(spec::user::of_image(""), (None, String::new()));
        assert_eq!(spec::user::of_image("1002:web"), (Some(1002), String::new()));
        assert_eq!(spec::user::of_image("web:7"), (None, "web".to_owned()));
    }

    #[test]
    fn what_an_image_says_of_itself_makes_no_list_too_long() {
        let mut image = Image::with_id("sha256:1".to_owned());
        image.annotations.insert("a".to_owned(), "x".repeat(4 << 20));
        image.config.user = "ü".repeat(1 << 20);
        let bytes = prost::Message::encoded_len(&to_cri_listed(&image, &[]));
        assert!(bytes < 2048, "{bytes}");
        assert_eq!(
            to_cri(&image, &[]).spec.unwrap().annotations.len(),
            1,
            "whoever asks for the one gets all"
        );
    }
}
