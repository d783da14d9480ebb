//! The paths of the node that a container mounts: made where they are missing, as containerd makes them,
//! their links followed, and labelled for SELinux where the request says so. One on a network disk that has
//! died never answers, and must keep nothing but its own call: this is done before anything of the pod is
//! held, and on a thread of its own, since those of the pool are few and everybody's. A pod has a few of
//! them. Called by `create`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gantry_proto::cri;
use tokio::sync::{Semaphore, oneshot};

use crate::error::Error;
use crate::selinux;
use gantry_base::mutex::lock;

/// How long all sources of a container may take. Shorter than the kubelet's own two minutes, so that it
/// hears why.
const DEADLINE: Duration = Duration::from_secs(100);

/// By what the request says, what is to be mounted.
pub(super) type MountSources = BTreeMap<String, String>;

/// A path to look at.
#[derive(Debug)]
struct SourcePath {
    path: String,
    relabel: bool,
}

/// Resolves the sources of all mounts that are of paths. `label` is given to those that ask for it; none where
/// SELinux is off. `turns` are the pod's.
///
/// # Errors
/// The path that can't be made, followed or labelled, or that does not answer.
pub(super) async fn resolve(
    mounts: &[cri::Mount],
    label: &str,
    turns: &Arc<Semaphore>,
) -> Result<MountSources, Error> {
    let paths = mounts.iter().filter(|mount| mount.image.is_none());
    let asked = paths.map(|mount| SourcePath {
        path: mount.host_path.clone(),
        relabel: mount.selinux_relabel && !label.is_empty(),
    });
    let label = label.to_owned();
    let look = move |asked: &SourcePath| {
        let wrap = |source| Error::Files {
            what: "prepare the mount source",
            path: PathBuf::from(&asked.path),
            source,
        };
        let found = follow(Path::new(&asked.path)).map_err(wrap)?.display().to_string();
        if asked.relabel {
            selinux::tree(&found, &label)?;
        }
        Ok(found)
    };
    resolve_by(asked.collect(), turns, DEADLINE, look).await
}

async fn resolve_by(
    asked: Vec<SourcePath>,
    turns: &Arc<Semaphore>,
    deadline: Duration,
    look: impl Fn(&SourcePath) -> Result<String, Error> + Send + 'static,
) -> Result<MountSources, Error> {
    let Some(first) = asked.first() else { return Ok(MountSources::new()) };
    let under_way = Arc::new(Mutex::new(PathBuf::from(&first.path)));
    let stuck =
        |path: &Mutex<PathBuf>| Error::SourceStuck { path: lock(path).clone(), seconds: deadline.as_secs() };
    // Those before it hang, most likely in the same one. A semaphore that is closed is nobody's here.
    let turn = match tokio::time::timeout(deadline, Arc::clone(turns).acquire_owned()).await {
        Ok(Ok(turn)) => turn,
        _ => return Err(stuck(&under_way)),
    };
    let (answer, answered) = oneshot::channel();
    let told = Arc::clone(&under_way);
    let work = move || {
        let one = |asked: SourcePath| {
            Path::new(&asked.path).clone_into(&mut lock(&told));
            let found = look(&asked)?;
            Ok((asked.path, found))
        };
        let found = asked.into_iter().map(one).collect::<Result<MountSources, Error>>();
        drop(turn);
        // Nobody listens any more when it took too long.
        drop(answer.send(found));
    };
    thread::Builder::new().name("mount-sources".to_owned()).spawn(work).map_err(Error::Thread)?;
    match tokio::time::timeout(deadline, answered).await {
        Ok(Ok(sources)) => sources,
        Ok(Err(_)) => Err(Error::Thread(io::Error::other("it ended without an answer"))),
        Err(_) => Err(stuck(&under_way)),
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

    fn turns(count: usize) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(count))
    }

    #[tokio::test]
    async fn sources_are_made_and_their_links_followed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let at = |name: &str| folder.join(name).display().to_string();
        std::os::unix::fs::symlink(at("real/inner"), at("link")).unwrap();
        let mount = |name: &str| cri::Mount { host_path: at(name), ..cri::Mount::default() };
        let image = cri::Mount { image: Some(cri::ImageSpec::default()), ..cri::Mount::default() };
        let found = resolve(&[mount("real/inner"), mount("link"), image], "", &turns(1)).await.unwrap();
        assert_eq!(found, [(at("real/inner"), at("real/inner")), (at("link"), at("real/inner"))].into());
    }

    #[tokio::test]
    async fn only_a_volume_that_asks_is_labelled_and_only_where_there_is_a_label() {
        // Which the node's own folder may never be: nothing is written.
        let mount = |relabel| cri::Mount {
            host_path: "/tmp".into(),
            selinux_relabel: relabel,
            ..cri::Mount::default()
        };
        let error = resolve(&[mount(true)], "u:o:f:s0", &turns(1)).await.unwrap_err();
        assert!(matches!(error, Error::Selinux(_)), "{error}");
        resolve(&[mount(false)], "u:o:f:s0", &turns(1)).await.unwrap();
        resolve(&[mount(true)], "", &turns(1)).await.unwrap();
    }

    #[tokio::test]
    async fn a_source_that_never_answers_is_named_and_keeps_one_turn_of_its_pod() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let look = move |asked: &SourcePath| {
            // Ends with the test.
            let _ = lock(&held).recv();
            Ok(asked.path.clone())
        };
        let (turns, deadline) = (turns(1), Duration::from_millis(10));
        let asks = |path: &str| vec![SourcePath { path: path.to_owned(), relabel: false }];
        let error = resolve_by(asks("/dead"), &turns, deadline, look).await.unwrap_err();
        assert_eq!(error.to_string(), "mount source /dead does not answer within 0 s: its disk may hang");
        // No further thread is made.
        let never = |_: &SourcePath| -> Result<String, Error> { unreachable!("there is no turn") };
        let error = resolve_by(asks("/other"), &turns, deadline, never).await.unwrap_err();
        assert!(matches!(error, Error::SourceStuck { .. }), "{error}");
        drop(release);
        let answers = |asked: &SourcePath| Ok(asked.path.clone());
        resolve_by(asks("/other"), &turns, Duration::from_secs(60), answers).await.unwrap();
    }
}
