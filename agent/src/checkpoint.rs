//! What an agent must still know after it was killed, and can ask nobody: whether running containers
//! had started and were ready (trap 6: no flip over a restart of the agent), which pods are its own
//! (trap 1: it takes back nothing else), what they were allocated, and what they are held to. Owns the trait, the files
//! and the fake; never decides what is worth remembering (the planner does). Called by the pod workers
//! and for orphans.
//!
//! One small JSON file per pod with probes, replaced atomically. It only speaks of container IDs,
//! so a stale one harms nobody, and it need not survive a reboot: no fsync. A claim is a file of one
//! word in the agent's root folder, as long-lived as the pod's volumes: made before anything else of
//! the pod, removed after everything else. What pods were allocated is in files of upstream's
//! ([`pod_resources`]).

#![expect(clippy::disallowed_methods, reason = "written beside, then renamed over the old one")]

#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod pod_resources;

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use gantry_model::allocation::Allocation;
use gantry_model::pod::{Origin, PodUid, Requirements};
use pod_resources::PodResourcesFile;
pub use pod_resources::RestoreError;
use serde::{Deserialize, Serialize};
use tokio::fs;

/// How far a running container has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mark {
    /// Its startup probe has succeeded.
    Started,
    /// Its readiness probe has, too.
    Ready,
}

/// By container ID.
pub type Marks = BTreeMap<String, Mark>;

/// Whose pods are this agent's, and where each was described.
pub type Claims = BTreeMap<PodUid, Origin>;

/// The memory that outlives an agent.
pub trait Checkpoints: Send + Sync + fmt::Debug {
    /// Empty when there is none.
    fn load<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<Marks, Error>>;
    /// Replaces what was there; nothing to remember removes it.
    fn save<'a>(&'a self, uid: &'a PodUid, marks: &'a Marks) -> BoxFuture<'a, Result<(), Error>>;
    /// From now on the pod is this agent's.
    fn claim<'a>(&'a self, uid: &'a PodUid, origin: &'a Origin) -> BoxFuture<'a, Result<(), Error>>;
    /// The pod has these resources until it is allocated others.
    fn allocate<'a>(&'a self, uid: &'a PodUid, with: &'a Allocation) -> BoxFuture<'a, Result<(), Error>>;
    /// Of every pod of which that is known.
    fn allocated(&self) -> BoxFuture<'_, BTreeMap<PodUid, Allocation>>;
    /// From now on the pod, and those of its containers that are named, are held to this.
    fn actuate<'a>(&'a self, uid: &'a PodUid, to: &'a Allocation) -> BoxFuture<'a, Result<(), Error>>;
    /// From now on the container is.
    fn actuate_container<'a>(
        &'a self,
        uid: &'a PodUid,
        container: &'a str,
        to: &'a Requirements,
    ) -> BoxFuture<'a, Result<(), Error>>;
    /// What the pod is held to; none when nobody knows.
    fn actuated<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Option<Allocation>>;
    /// Of other pods nothing is left that an agent before this one has known.
    fn retain<'a>(&'a self, known: &'a [PodUid]) -> BoxFuture<'a, ()>;
    /// Nothing of it is left; succeeds when it was nobody's.
    fn disown<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>>;
    /// Every pod of this agent, those of earlier runs too.
    fn claims(&self) -> BoxFuture<'_, Result<Claims, Error>>;
}

/// What failed, on which file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read checkpoint {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("understand checkpoint {}", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("write checkpoint {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Files in a folder of the agent's own.
#[derive(Debug, Clone)]
pub struct CheckpointDir {
    root: PathBuf,
    claims: PathBuf,
    allocated: Arc<PodResourcesFile>,
    actuated: Arc<PodResourcesFile>,
}

/// As on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    containers: Marks,
}

const VERSION: u32 = 1;

impl CheckpointDir {
    /// Checkpoints below `root`, claims below `claims` and upstream's files in `state`; all are made when they
    /// are needed.
    ///
    /// # Errors
    /// When one of upstream's is there and says nothing: the agent must not start.
    pub fn open(root: PathBuf, claims: PathBuf, state: &Path) -> Result<Self, RestoreError> {
        let file = |name| PodResourcesFile::open(state.join(name)).map(Arc::new);
        let (allocated, actuated) = (file("allocated_pods_state")?, file("actuated_pods_state")?);
        Ok(Self { root, claims, allocated, actuated })
    }

    fn path(&self, uid: &PodUid) -> PathBuf {
        self.root.join(format!("{uid}.json"))
    }

    async fn write(&self, uid: &PodUid, marks: &Marks) -> std::io::Result<()> {
        fs::create_dir_all(&self.root).await?;
        let file = File { version: VERSION, containers: marks.clone() };
        replace(&self.root, uid, &format!("{uid}.json"), &serde_json::to_vec(&file)?).await
    }

    async fn write_claim(&self, uid: &PodUid, origin: &Origin) -> std::io::Result<()> {
        fs::create_dir_all(&self.claims).await?;
        let word = match origin {
            Origin::Run => RUN,
            Origin::Static => STATIC,
            Origin::Api => API,
        };
        replace(&self.claims, uid, uid.as_str(), word.as_bytes()).await
    }

    async fn forget(&self, uid: &PodUid) -> std::io::Result<()> {
        self.allocated.forget(uid).await;
        self.actuated.forget(uid).await;
        ignore_not_found(fs::remove_file(self.claims.join(uid.as_str())).await)
    }

    async fn read_claims(&self) -> std::io::Result<Claims> {
        let mut found = Claims::new();
        let mut entries = match fs::read_dir(&self.claims).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
            entries => entries?,
        };
        while let Some(entry) = entries.next_entry().await? {
            let name = entry.file_name();
            let Some(uid) = name.to_str().and_then(PodUid::parse) else { continue };
            // Of another version: nothing is ended on the word of a file we do not understand.
            let word = fs::read(entry.path()).await?;
            let origin = match word.as_slice() {
                word if word == STATIC.as_bytes() => Origin::Static,
                word if word == API.as_bytes() => Origin::Api,
                _ => Origin::Run,
            };
            found.insert(uid, origin);
        }
        Ok(found)
    }
}

const RUN: &str = "run";
const STATIC: &str = "static";
const API: &str = "api";

/// Readers see the old content or the new. No pod has a name that begins with a dot.
async fn replace(folder: &Path, uid: &PodUid, name: &str, content: &[u8]) -> std::io::Result<()> {
    let next = folder.join(format!(".{uid}.next"));
    fs::write(&next, content).await?;
    fs::rename(&next, folder.join(name)).await
}

/// What is not there, or still used by another pod, is fine.
fn ignore_not_found(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => Ok(()),
        removed => removed,
    }
}

fn merge(own: &mut Allocation, to: &Allocation) {
    own.pod.clone_from(&to.pod);
    own.containers.extend(to.containers.clone());
}

impl Checkpoints for CheckpointDir {
    fn load<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<Marks, Error>> {
        Box::pin(async move {
            let path = self.path(uid);
            let bytes = match fs::read(&path).await {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Marks::new()),
                bytes => bytes.map_err(|source| Error::Read { path: path.clone(), source })?,
            };
            let file: File =
                serde_json::from_slice(&bytes).map_err(|source| Error::Parse { path, source })?;
            // Another version's marks only cost one round of probes.
            Ok(if file.version == VERSION { file.containers } else { Marks::new() })
        })
    }

    fn save<'a>(&'a self, uid: &'a PodUid, marks: &'a Marks) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let path = self.path(uid);
            let done = if marks.is_empty() {
                ignore_not_found(fs::remove_file(&path).await)
                    .and(ignore_not_found(fs::remove_dir(&self.root).await))
            } else {
                self.write(uid, marks).await
            };
            done.map_err(|source| Error::Write { path, source })
        })
    }

    fn claim<'a>(&'a self, uid: &'a PodUid, origin: &'a Origin) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let path = self.claims.join(uid.as_str());
            self.write_claim(uid, origin).await.map_err(|source| Error::Write { path, source })
        })
    }

    fn allocate<'a>(&'a self, uid: &'a PodUid, with: &'a Allocation) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let written = self.allocated.change(uid, |own| own.clone_from(with)).await;
            written.map_err(|source| Error::Write { path: self.allocated.path().to_owned(), source })
        })
    }

    fn allocated(&self) -> BoxFuture<'_, BTreeMap<PodUid, Allocation>> {
        Box::pin(self.allocated.all())
    }

    fn actuate<'a>(&'a self, uid: &'a PodUid, to: &'a Allocation) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let written = self.actuated.change(uid, |own| merge(own, to)).await;
            written.map_err(|source| Error::Write { path: self.actuated.path().to_owned(), source })
        })
    }

    fn actuate_container<'a>(
        &'a self,
        uid: &'a PodUid,
        container: &'a str,
        to: &'a Requirements,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let change = |own: &mut Allocation| drop(own.containers.insert(container.to_owned(), to.clone()));
            let written = self.actuated.change(uid, change).await;
            written.map_err(|source| Error::Write { path: self.actuated.path().to_owned(), source })
        })
    }

    fn actuated<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Option<Allocation>> {
        Box::pin(self.actuated.get(uid))
    }

    fn retain<'a>(&'a self, known: &'a [PodUid]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.allocated.retain(known).await;
            self.actuated.retain(known).await;
        })
    }

    fn disown<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let path = self.claims.join(uid.as_str());
            self.forget(uid).await.map_err(|source| Error::Write { path, source })
        })
    }

    fn claims(&self) -> BoxFuture<'_, Result<Claims, Error>> {
        Box::pin(async move {
            let read = self.read_claims().await;
            read.map_err(|source| Error::Read { path: self.claims.clone(), source })
        })
    }
}

#[cfg(test)]
mod tests {
    use gantry_base::error::chain;

    use super::*;

    async fn contract(checkpoints: &dyn Checkpoints) {
        let uid = PodUid::parse("uid-1").unwrap();
        let other = PodUid::parse("uid-2").unwrap();
        let marks = Marks::from([("a".into(), Mark::Started), ("b".into(), Mark::Ready)]);
        assert_eq!(checkpoints.load(&uid).await.unwrap(), Marks::new());
        checkpoints.save(&uid, &Marks::new()).await.unwrap();
        checkpoints.save(&uid, &marks).await.unwrap();
        assert_eq!(checkpoints.load(&uid).await.unwrap(), marks);
        assert_eq!(checkpoints.load(&other).await.unwrap(), Marks::new());
        checkpoints.save(&uid, &Marks::new()).await.unwrap();
        assert_eq!(checkpoints.load(&uid).await.unwrap(), Marks::new());
        assert_eq!(checkpoints.claims().await.unwrap(), Claims::new());
        checkpoints.disown(&uid).await.unwrap();
        checkpoints.claim(&uid, &Origin::Run).await.unwrap();
        checkpoints.claim(&uid, &Origin::Static).await.unwrap();
        checkpoints.claim(&other, &Origin::Run).await.unwrap();
        let claims = Claims::from([(uid.clone(), Origin::Static), (other.clone(), Origin::Run)]);
        assert_eq!(checkpoints.claims().await.unwrap(), claims);
        let with = Allocation::of(&crate::pod::tests::pod());
        checkpoints.allocate(&uid, &Allocation::default()).await.unwrap();
        checkpoints.allocate(&uid, &with).await.unwrap();
        assert_eq!(checkpoints.allocated().await, BTreeMap::from([(uid.clone(), with.clone())]));
        assert_eq!(checkpoints.actuated(&uid).await, None);
        checkpoints.actuate_container(&uid, "other", &Requirements::default()).await.unwrap();
        checkpoints.actuate(&uid, &with).await.unwrap();
        let held = checkpoints.actuated(&uid).await.unwrap();
        assert_eq!(held.containers.keys().collect::<Vec<_>>(), ["other", "web"]);
        checkpoints.retain(std::slice::from_ref(&uid)).await;
        assert_eq!(checkpoints.allocated().await.len(), 1);
        checkpoints.disown(&uid).await.unwrap();
        assert_eq!(
            (checkpoints.allocated().await, checkpoints.actuated(&uid).await),
            (BTreeMap::new(), None)
        );
        checkpoints.disown(&other).await.unwrap();
        assert_eq!(checkpoints.claims().await.unwrap(), Claims::new());
    }

    #[tokio::test]
    async fn files_and_fake_keep_the_contract() {
        let folder = tempfile::tempdir().unwrap();
        let (new, claims) = (folder.path().join("new"), folder.path().join("claims"));
        contract(&CheckpointDir::open(new.clone(), claims.clone(), folder.path()).unwrap()).await;
        assert_eq!((new.exists(), std::fs::read_dir(claims).unwrap().count()), (false, 0));
        contract(&fake::Memory::default()).await;
    }

    #[tokio::test]
    async fn a_broken_file_is_told_and_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints =
            CheckpointDir::open(folder.path().to_owned(), folder.path().join("claims"), folder.path())
                .unwrap();
        let uid = PodUid::parse("uid-1").unwrap();
        std::fs::write(folder.path().join("uid-1.json"), b"{\"version\":1").unwrap();
        assert!(chain(&checkpoints.load(&uid).await.unwrap_err()).contains("uid-1.json"));
        let marks = Marks::from([("a".into(), Mark::Ready)]);
        checkpoints.save(&uid, &marks).await.unwrap();
        assert_eq!(checkpoints.load(&uid).await.unwrap(), marks);
    }
}
