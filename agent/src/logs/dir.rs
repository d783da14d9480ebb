//! Pod log folders in a directory, laid out as the kubelet's:
//! `<namespace>_<name>_<uid>/<container>/<attempt>.log`. Owns making and removing them;
//! never reads a log. Called through [`PodLogs`].

use std::io::ErrorKind;
use std::path::PathBuf;

use futures_util::future::BoxFuture;
use gantry_model::pod::{Container, Pod};
use tokio::fs;

use super::{Error, PodLogs, links};

/// restartCount is an int32.
const MOST: u32 = i32::MAX.cast_unsigned();

/// The real thing.
#[derive(Debug, Clone)]
pub struct LogDir {
    root: PathBuf,
    /// Where collectors look for logs by container.
    links: Option<PathBuf>,
}

impl LogDir {
    /// Below `root`, which is made when it is needed.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root, links: None }
    }

    /// Every container that starts gets a link in `folder`, named after its ID.
    #[must_use]
    pub fn linked_in(self, folder: PathBuf) -> Self {
        Self { links: Some(folder), ..self }
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
                highest = highest.max(name.to_str().and_then(attempt));
            }
            Ok(highest)
        })
    }

    fn link<'a>(
        &'a self,
        pod: &'a Pod,
        container: &'a Container,
        attempt: u32,
        id: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let Some(links) = &self.links else { return Ok(()) };
            let log = self.folder(pod).join(&container.name).join(format!("{attempt}.log"));
            // A link to nothing would only be swept.
            if matches!(fs::metadata(&log).await, Err(error) if error.kind() == ErrorKind::NotFound) {
                return Ok(());
            }
            let path = links.join(links::name(pod, &container.name, id));
            match fs::symlink(&log, &path).await {
                Err(source) if source.kind() != ErrorKind::AlreadyExists => Err(Error::Link { path, source }),
                _ => Ok(()),
            }
        })
    }

    fn unlink<'a>(&'a self, pod: &'a Pod, id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let Some(links) = &self.links else { return Ok(()) };
            for container in pod.every_container() {
                let path = links.join(links::name(pod, &container.name, id));
                match fs::remove_file(&path).await {
                    Err(source) if source.kind() != ErrorKind::NotFound => {
                        return Err(Error::Unlink { path, source });
                    }
                    _ => {}
                }
            }
            Ok(())
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

/// Whose log it is. Others may write to the folder, too: what no container could have been counted to
/// is none.
fn attempt(name: &str) -> Option<u32> {
    let (number, _) = name.split_once(".log")?;
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|attempt| digits && *attempt <= MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::{container, pod};

    #[tokio::test]
    async fn a_container_that_runs_has_a_link_to_its_log() {
        let root = tempfile::tempdir().unwrap();
        let links = root.path().join("containers");
        std::fs::create_dir(&links).unwrap();
        let logs = LogDir::new(root.path().join("pods")).linked_in(links.clone());
        let (pod, web) = (pod(), container("web"));
        logs.prepare(&pod, Some(&web)).await.unwrap();
        logs.link(&pod, &web, 0, "c0ffee").await.unwrap();
        assert_eq!(std::fs::read_dir(&links).unwrap().count(), 0, "no log, no link");
        let log = root.path().join("pods/default_web_uid-1/web/0.log");
        std::fs::write(&log, "").unwrap();
        logs.link(&pod, &web, 0, "c0ffee").await.unwrap();
        logs.link(&pod, &web, 0, "c0ffee").await.unwrap();
        let link = links.join("web_default_web-c0ffee.log");
        assert_eq!(std::fs::read_link(&link).unwrap(), log);
        logs.unlink(&pod, "other").await.unwrap();
        assert!(link.exists());
        let pod = Pod { containers: vec![web], ..pod };
        logs.unlink(&pod, "c0ffee").await.unwrap();
        logs.unlink(&pod, "c0ffee").await.unwrap();
        assert!(!link.exists());
        assert!(log.exists());
    }

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
        for planted in ["4294967295.log", "2147483648.log.20260101-000000", "+9.log"] {
            std::fs::write(folder.join(planted), "").unwrap();
            assert_eq!(logs.highest_attempt(&pod, &web).await.unwrap(), Some(7), "{planted}");
        }
        logs.remove(&pod).await.unwrap();
        logs.remove(&pod).await.unwrap();
        assert!(!root.path().join("default_web_uid-1").exists());
    }
}
