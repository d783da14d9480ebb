//! What an agent must still know after it was killed, and can ask nobody: whether running containers
//! had started and were ready (trap 6: no flip over a restart of the agent), which pods are its own
//! (trap 1: it takes back nothing else), and what they were admitted with. Owns the trait, the files
//! and the fake; never decides what is worth remembering (the planner does). Called by the pod workers
//! and for orphans.
//!
//! One small JSON file per pod with probes, replaced atomically. It only speaks of container IDs,
//! so a stale one harms nobody, and it need not survive a reboot: no fsync. A claim is a file of one
//! word in the agent's root folder, as long-lived as the pod's volumes: made before anything else of
//! the pod, removed after everything else. What a pod was admitted with lies beside it, and goes
//! with it.

#![expect(clippy::disallowed_methods, reason = "written beside, then renamed over the old one")]

#[cfg(any(test, feature = "testing"))]
pub mod fake;

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use gantry_model::admitted::Admitted;
use gantry_model::pod::{Origin, PodUid};
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
    /// The pod has these resources for as long as it is this agent's.
    fn admit<'a>(&'a self, uid: &'a PodUid, with: &'a Admitted) -> BoxFuture<'a, Result<(), Error>>;
    /// Of every pod of which that is known. What cannot be understood is left out, and told.
    fn load_admitted(&self) -> BoxFuture<'_, Result<BTreeMap<PodUid, Admitted>, Error>>;
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
    admitted: PathBuf,
}

/// As on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    containers: Marks,
}

/// The same.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdmittedFile {
    version: u32,
    admitted: Admitted,
}

const VERSION: u32 = 1;

impl CheckpointDir {
    /// Checkpoints below `root`, claims below `claims` and admitted resources beside that; all are made
    /// when they are needed.
    #[must_use]
    pub fn new(root: PathBuf, claims: PathBuf) -> Self {
        let admitted = claims.with_file_name("admitted");
        Self { root, claims, admitted }
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

    async fn write_admitted(&self, uid: &PodUid, with: &Admitted) -> std::io::Result<()> {
        fs::create_dir_all(&self.admitted).await?;
        let file = serde_json::to_vec(&AdmittedFile { version: VERSION, admitted: with.clone() })?;
        replace(&self.admitted, uid, uid.as_str(), &file).await
    }

    async fn read_admitted(&self) -> std::io::Result<BTreeMap<PodUid, Admitted>> {
        let mut found = BTreeMap::new();
        let mut entries = match fs::read_dir(&self.admitted).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
            entries => entries?,
        };
        while let Some(entry) = entries.next_entry().await? {
            let name = entry.file_name();
            let Some(uid) = name.to_str().and_then(PodUid::parse) else { continue };
            match serde_json::from_slice::<AdmittedFile>(&fs::read(entry.path()).await?) {
                Ok(file) if file.version == VERSION => drop(found.insert(uid, file.admitted)),
                Ok(file) => tracing::warn!(%uid, file.version, "admitted resources of another version"),
                Err(error) => tracing::warn!(%uid, %error, "what the pod was admitted with is not known"),
            }
        }
        Ok(found)
    }

    async fn forget(&self, uid: &PodUid) -> std::io::Result<()> {
        ignore_not_found(fs::remove_file(self.admitted.join(uid.as_str())).await)?;
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

    fn admit<'a>(&'a self, uid: &'a PodUid, with: &'a Admitted) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let path = self.admitted.join(uid.as_str());
            self.write_admitted(uid, with).await.map_err(|source| Error::Write { path, source })
        })
    }

    fn load_admitted(&self) -> BoxFuture<'_, Result<BTreeMap<PodUid, Admitted>, Error>> {
        Box::pin(async move {
            let read = self.read_admitted().await;
            read.map_err(|source| Error::Read { path: self.admitted.clone(), source })
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
        let with = Admitted::of(&crate::pod::tests::pod());
        checkpoints.admit(&uid, &Admitted::default()).await.unwrap();
        checkpoints.admit(&uid, &with).await.unwrap();
        assert_eq!(checkpoints.load_admitted().await.unwrap(), BTreeMap::from([(uid.clone(), with)]));
        checkpoints.disown(&uid).await.unwrap();
        assert_eq!(checkpoints.load_admitted().await.unwrap(), BTreeMap::new());
        checkpoints.disown(&other).await.unwrap();
        assert_eq!(checkpoints.claims().await.unwrap(), Claims::new());
    }

    #[tokio::test]
    async fn files_and_fake_keep_the_contract() {
        let folder = tempfile::tempdir().unwrap();
        let (new, claims) = (folder.path().join("new"), folder.path().join("claims"));
        contract(&CheckpointDir::new(new.clone(), claims.clone())).await;
        assert_eq!((new.exists(), std::fs::read_dir(claims).unwrap().count()), (false, 0));
        contract(&fake::Memory::default()).await;
    }

    #[tokio::test]
    async fn what_a_pod_was_admitted_with_is_left_out_when_its_file_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointDir::new(folder.path().join("new"), folder.path().join("pods"));
        let other = PodUid::parse("uid-2").unwrap();
        checkpoints.admit(&other, &Admitted::default()).await.unwrap();
        // As a power cut leaves it.
        std::fs::write(folder.path().join("admitted/uid-1"), b"").unwrap();
        let known = checkpoints.load_admitted().await.unwrap();
        assert_eq!(known, BTreeMap::from([(other, Admitted::default())]));
    }

    #[tokio::test]
    async fn a_broken_file_is_told_and_can_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = CheckpointDir::new(folder.path().to_owned(), folder.path().join("claims"));
        let uid = PodUid::parse("uid-1").unwrap();
        std::fs::write(folder.path().join("uid-1.json"), b"{\"version\":1").unwrap();
        assert!(chain(&checkpoints.load(&uid).await.unwrap_err()).contains("uid-1.json"));
        let marks = Marks::from([("a".into(), Mark::Ready)]);
        checkpoints.save(&uid, &marks).await.unwrap();
        assert_eq!(checkpoints.load(&uid).await.unwrap(), marks);
    }
}
