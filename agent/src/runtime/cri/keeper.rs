//! What housekeeping asks, over CRI. Owns the mapping of answers. Called through [`Keeper`].

use gantry_model::failure::{Failure, FailureKind};
use gantry_proto::cri::{self as wire};

use super::{CriRuntime, failure, timed};
use crate::gc::{ImageUse, Keeper, KeeperFuture, StoredImage};

impl CriRuntime {
    async fn containers(&self) -> Result<Vec<wire::Container>, Failure> {
        let ask = wire::ListContainersRequest { filter: None };
        let answer = self.runtime().list_containers(timed(ask, self.node.request_timeout)).await;
        Ok(answer.map_err(|status| failure(&status))?.into_inner().containers)
    }

    async fn status_of(&self, id: &str) -> Result<wire::ContainerStatus, Failure> {
        let ask = wire::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let answer = self.runtime().container_status(timed(ask, self.node.request_timeout)).await;
        let status = answer.map_err(|status| failure(&status))?.into_inner().status;
        status.ok_or_else(|| Failure {
            code: "",
            ..Failure::new(FailureKind::NotFound, format!("container {id}: no status"))
        })
    }
}

impl Keeper for CriRuntime {
    fn running(&self) -> KeeperFuture<'_, Vec<String>> {
        Box::pin(async {
            let running =
                |container: &wire::Container| container.state() == wire::ContainerState::ContainerRunning;
            Ok(self.containers().await?.into_iter().filter(running).map(|container| container.id).collect())
        })
    }

    fn log_path<'a>(&'a self, container: &'a str) -> KeeperFuture<'a, String> {
        Box::pin(async { Ok(self.status_of(container).await?.log_path) })
    }

    fn reopen_log<'a>(&'a self, container: &'a str) -> KeeperFuture<'a, ()> {
        Box::pin(async {
            let ask = wire::ReopenContainerLogRequest { container_id: container.to_owned() };
            let answer = self.runtime().reopen_container_log(timed(ask, self.node.request_timeout)).await;
            answer.map(drop).map_err(|status| failure(&status))
        })
    }

    fn images(&self) -> KeeperFuture<'_, Vec<StoredImage>> {
        Box::pin(async {
            let ask = wire::ListImagesRequest { filter: None };
            let answer = self.images().list_images(timed(ask, self.node.request_timeout)).await;
            let images = answer.map_err(|status| failure(&status))?.into_inner().images;
            let stored = |image: wire::Image| StoredImage {
                id: image.id,
                names: image.repo_tags.into_iter().chain(image.repo_digests).collect(),
                size: image.size,
                pinned: image.pinned,
            };
            Ok(images.into_iter().map(stored).collect())
        })
    }

    fn images_in_use(&self) -> KeeperFuture<'_, Vec<ImageUse>> {
        Box::pin(async {
            let mut used = Vec::new();
            for container in self.containers().await? {
                // The list names what the container was made of; its mounts only the status has.
                let by = container_name(&container);
                let needs = |image: String| ImageUse { image, container: by.clone() };
                used.push(needs(image_of(&container)));
                match self.status_of(&container.id).await {
                    Ok(status) => {
                        let mounted = status.mounts.into_iter().filter_map(|mount| mount.image);
                        used.extend(mounted.map(|image| needs(image.image)));
                    }
                    // Gone since the list.
                    Err(error) if error.kind == FailureKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(used)
        })
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> KeeperFuture<'a, ()> {
        Box::pin(async {
            let image = Some(wire::ImageSpec { image: id.to_owned(), ..wire::ImageSpec::default() });
            let answer = self
                .images()
                .remove_image(timed(wire::RemoveImageRequest { image }, self.node.request_timeout))
                .await;
            answer.map(drop).map_err(|status| failure(&status))
        })
    }

    fn image_folder(&self) -> KeeperFuture<'_, String> {
        Box::pin(async {
            let answer = self
                .images()
                .image_fs_info(timed(wire::ImageFsInfoRequest {}, self.node.request_timeout))
                .await;
            let info = answer.map_err(|status| failure(&status))?.into_inner();
            let mount =
                info.image_filesystems.into_iter().next().and_then(|fs| fs.fs_id).map(|id| id.mountpoint);
            mount.filter(|path| !path.is_empty()).ok_or_else(|| Failure {
                code: "",
                ..Failure::new(FailureKind::Failed, "the runtime names no file system of images")
            })
        })
    }
}

/// Whose container it is; its ID when it is no kubelet's.
fn container_name(container: &wire::Container) -> String {
    let words = ["io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"]
        .map(|label| container.labels.get(label).map(String::as_str));
    match words {
        [Some(namespace), Some(pod), Some(name)] => format!("{namespace}/{pod}/{name}"),
        _ => container.id.clone(),
    }
}

/// The ID of a container's image; runtimes older than that field have it as the reference.
pub(super) fn image_of(container: &wire::Container) -> String {
    let id = &container.image_id;
    if id.is_empty() { container.image_ref.clone() } else { id.clone() }
}
