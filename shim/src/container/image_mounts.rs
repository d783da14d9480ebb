//! Mounts of images: which layers each needs, and whether its sub-path is there. Owns the refusals, in
//! containerd's words; the layers are pinned with the container's own, and mounted by its first process in
//! its own mount namespace, so that nothing is to be unmounted. Called by `create`, on a blocking thread.

use std::path::Path;
use std::sync::Arc;

use gantry_proto::cri;
use gantry_proto::monitor::{ImageTree, StartContainer};
use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;

use super::merged;
use crate::error;
use crate::error::image_mounts::Error;
use gantry_image::pins::Pin;
use gantry_image::{Image, Images};
use gantry_monitor::within;

/// Pins the images of all mounts; one for each mount of the request.
///
/// # Errors
/// The first that is not on this node.
pub(super) fn pin(config: &cri::ContainerConfig, pin: &Pin) -> Result<Vec<Option<Arc<Image>>>, error::Error> {
    let one = |mount: &cri::Mount| {
        let Some(wanted) = &mount.image else { return Ok(None) };
        match pin.also(&wanted.image) {
            Some(image) => Ok(Some(image)),
            None => Err(error::Error::ImageMount(Error::Absent(wanted.image.clone()))),
        }
    };
    config.mounts.iter().map(one).collect()
}

/// Tells the monitor what to mount. `start` has a mount for each of the request, in its order; `folder` is
/// the container's.
///
/// # Errors
/// A sub-path that is not there.
pub(super) fn resolve(
    start: &mut StartContainer,
    config: &cri::ContainerConfig,
    (images, pinned): (&Images, &[Option<Arc<Image>>]),
    folder: &Path,
) -> Result<(), error::Error> {
    for ((told, asked), image) in start.mounts.iter_mut().zip(&config.mounts).zip(pinned) {
        let Some(image) = image else { continue };
        let mut lower = images.layers(image);
        let sub_path = &asked.image_sub_path;
        if !sub_path.is_empty() {
            let place = merged::with(images.layers_dir(), &lower, &folder.join("root"), |root| {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Ok(within::open(root, sub_path.as_str(), flags, ResolveFlags::empty()).map(drop))
            })?;
            let named = asked.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
            place.map_err(|errno| error::Error::ImageMount(refusal(errno, sub_path.clone(), named)))?;
        }
        lower.push(folder.join("empty").display().to_string());
        told.image = Some(ImageTree { lower, sub_path: sub_path.clone() });
    }
    Ok(())
}

fn refusal(errno: Errno, sub_path: String, image: String) -> Error {
    let cause = if errno == Errno::NOTDIR {
        format!("only directory subpath is supported, subpath: {sub_path:?}, mountpoint: {image:?}")
    } else {
        let said = std::io::Error::from(errno).to_string().to_lowercase();
        format!("openat {sub_path}: {}", said.split(" (os error").next().unwrap_or_default())
    };
    Error::SubPath { sub_path, image, cause }
}
