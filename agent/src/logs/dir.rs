//! Pod log folders in a directory, laid out as the kubelet's:
//! `<namespace>_<name>_<uid>/<container>/<attempt>.log`. Owns making and removing them;
//! never reads a log. Called through [`PodLogs`].

use std::io::ErrorKind;
use std::path::PathBuf;

use futures_util::future::BoxFuture;
use tokio::fs;

use super::{Error, PodLogs};
use crate::pod::spec::{Container, Pod};

/// The real thing.
#[derive(Debug, Clone)]
pub struct LogDir {
    root: PathBuf,
}

impl LogDir {
    /// Below `root`, which is made when it is needed.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn folder(&self, pod: &Pod) -> PathBuf {
        self.root.join(pod.log_folder())
    }
}

impl PodLogs for LogDir {
    fn prepare<'a>(
        &'a self,
        pod: &'a Pod,
        container: Option<&'a Container>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let folder = self.folder(pod);
            let path = container.map_or(folder.clone(), |c| folder.join(&c.name));
            fs::create_dir_all(&path).await.map_err(|source| Error::Make { path, source })
        })
    }

    fn highest_attempt<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
    ) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        Box::pin(async move {
            let path = self.folder(pod).join(&container.name);
            let wrap = |source| Error::List { path: path.clone(), source };
            let mut entries = match fs::read_dir(&path).await {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                entries => entries.map_err(wrap)?,
            };
            let mut highest = None;
            while let Some(entry) = entries.next_entry().await.map_err(wrap)? {
                // Rotated logs are `<attempt>.log.<time>`.
                let name = entry.file_name();
                let number =
                    name.to_str().and_then(|n| n.split_once(".log")).and_then(|(n, _)| n.parse().ok());
                highest = highest.max(number);
            }
            Ok(highest)
        })
    }

    fn remove<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let path = self.folder(pod);
            match fs::remove_dir_all(&path).await {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                result => result.map_err(|source| Error::Remove { path, source }),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::{container, pod};

    #[tokio::test]
    async fn trap_08_the_highest_log_counts_as_an_attempt() {
        let root = tempfile::tempdir().unwrap();
        let logs = LogDir::new(root.path().to_owned());
        let (pod, web) = (pod(), container("web"));
        assert_eq!(logs.highest_attempt(&pod, &web).await.unwrap(), None);
        logs.prepare(&pod, None).await.unwrap();
        logs.prepare(&pod, Some(&web)).await.unwrap();
        assert_eq!(logs.highest_attempt(&pod, &web).await.unwrap(), None);
        let folder = root.path().join("default_web_uid-1/web");
        for name in ["0.log", "7.log.20260101-000000", "3.log", "notes.txt"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(logs.highest_attempt(&pod, &web).await.unwrap(), Some(7));
        logs.remove(&pod).await.unwrap();
        logs.remove(&pod).await.unwrap();
        assert!(!root.path().join("default_web_uid-1").exists());
    }
}
