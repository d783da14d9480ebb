//! The paths of the node that a container mounts: made where they are missing, as containerd makes them, and
//! their links followed. One on a network disk that has died never answers, and must keep nothing but its
//! own call: this is done before anything of the pod is held, and on a thread of its own, since those of
//! the pool are few and everybody's. Called by `create`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gantry_proto::cri;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::store::lock;

/// How long all sources of a container may take. Shorter than the kubelet's own two minutes, so that it
/// hears why.
const DEADLINE: Duration = Duration::from_secs(100);

/// By what the request says, what is to be mounted.
pub(super) type Sources = BTreeMap<String, String>;

/// Resolves the sources of all mounts that are of paths.
///
/// # Errors
/// The path that can't be made or followed, or that does not answer.
pub(super) async fn resolve(mounts: &[cri::Mount]) -> Result<Sources, Error> {
    let paths = mounts.iter().filter(|mount| mount.image.is_none());
    resolve_by(paths.map(|mount| mount.host_path.clone()).collect(), DEADLINE, follow).await
}

async fn resolve_by(
    paths: Vec<String>,
    deadline: Duration,
    follow: impl Fn(&Path) -> io::Result<PathBuf> + Send + 'static,
) -> Result<Sources, Error> {
    let Some(first) = paths.first() else { return Ok(Sources::new()) };
    let under_way = Arc::new(Mutex::new(PathBuf::from(first)));
    let (answer, answered) = oneshot::channel();
    let told = Arc::clone(&under_way);
    let work = move || {
        let one = |path: String| {
            Path::new(&path).clone_into(&mut lock(&told));
            let found = follow(Path::new(&path)).map_err(|source| Error::Files {
                what: "prepare the mount source",
                path: PathBuf::from(&path),
                source,
            })?;
            Ok((path, found.display().to_string()))
        };
        // Nobody listens any more when it took too long.
        drop(answer.send(paths.into_iter().map(one).collect::<Result<Sources, Error>>()));
    };
    thread::Builder::new().name("mount-sources".to_owned()).spawn(work).map_err(Error::Thread)?;
    match tokio::time::timeout(deadline, answered).await {
        Ok(Ok(sources)) => sources,
        Ok(Err(_)) => Err(Error::Thread(io::Error::other("it ended without an answer"))),
        Err(_) => Err(Error::SourceStuck { path: lock(&under_way).clone(), seconds: deadline.as_secs() }),
    }
}

fn follow(source: &Path) -> io::Result<PathBuf> {
    if !source.exists() {
        fs::create_dir_all(source)?;
    }
    fs::canonicalize(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sources_are_made_and_their_links_followed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let at = |name: &str| folder.join(name).display().to_string();
        std::os::unix::fs::symlink(at("real/inner"), at("link")).unwrap();
        let mount = |name: &str| cri::Mount { host_path: at(name), ..cri::Mount::default() };
        let image = cri::Mount { image: Some(cri::ImageSpec::default()), ..cri::Mount::default() };
        let found = resolve(&[mount("real/inner"), mount("link"), image]).await.unwrap();
        assert_eq!(found, [(at("real/inner"), at("real/inner")), (at("link"), at("real/inner"))].into());
    }

    #[tokio::test]
    async fn a_source_that_never_answers_is_named() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let follow = move |path: &Path| {
            // Ends with the test.
            let _ = lock(&held).recv();
            Ok(path.to_owned())
        };
        let deadline = Duration::from_millis(10);
        let error = resolve_by(vec!["/dead".to_owned()], deadline, follow).await.unwrap_err();
        assert_eq!(error.to_string(), "mount source /dead does not answer within 0 s: its disk may hang");
        drop(release);
    }
}
