//! Why an image can't be mounted into a container. Owns the words, containerd's. Returned by `container::image_mounts`.

/// Why an image can't be mounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody has pulled it.
    #[error("failed to resolve image {0:?}: not found: pull it first")]
    Absent(String),
    /// No folder is there.
    #[error("failed to ensure image subpath {sub_path:?} in {image:?}: {cause}")]
    SubPath {
        /// As asked.
        sub_path: String,
        /// As asked.
        image: String,
        /// In Go's words.
        cause: String,
    },
}
