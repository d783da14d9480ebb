//! The files `allocated_pods_state` and `actuated_pods_state` of the kubelet's root, in upstream's form, so that one
//! kubelet can follow another. Owns the form, the checksum and the files; never decides what a pod is allocated. Called
//! by [`super`].
//!
//! `{"data":"{\"entries\":{UID:{\"ContainerResources\":{NAME:{\"limits\":{…},\"requests\":{…}}},\"PodLevelResources\":null}}}",
//! "checksum":NUMBER}`
//!
//! The checksum is FNV-1a (32 bits) over how Go's spew prints the text of the data.

#![expect(clippy::disallowed_methods, reason = "written beside, then renamed over the old one")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use gantry_model::allocation::Allocation;
use gantry_model::go_json;
use gantry_model::pod::{PodUid, Requirements};
use serde::{Deserialize, Serialize};
use tokio::fs;
use tokio::sync::Mutex;

/// By UID, as text: those of another kubelet's pods, too.
type Entries = BTreeMap<String, Allocation>;

/// Why such a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    #[error("not a checkpoint of pods' resources")]
    Json(#[from] serde_json::Error),
    /// Upstream's words.
    #[error("checkpoint is corrupted")]
    Checksum,
}

/// What stands in the way of the agent's start, in upstream's words: without the file it would take every pod for
/// allocated what its description says, and start containers again that wait for a resize.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(
        "could not restore state from checkpoint, please drain this node and delete pod resource information checkpoint \
         file {path:?} before restarting Kubelet"
    )]
    Form {
        path: PathBuf,
        #[source]
        source: FormError,
    },
    #[error("read checkpoint {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// One of the two files.
#[derive(Debug)]
pub(super) struct PodResourcesFile {
    path: PathBuf,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    entries: Entries,
    /// Those that an agent before this one has left and this one has not touched.
    left: BTreeSet<String>,
}

impl PodResourcesFile {
    /// What is there; an empty file is what a power cut leaves, and says nothing.
    pub(super) fn open(path: PathBuf) -> Result<Self, RestoreError> {
        let content = match std::fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(RestoreError::Read { path, source }),
            Ok(content) => {
                if content.is_empty() {
                    tracing::warn!(path = %path.display(), "the checkpoint is empty: taken as none");
                }
                content
            }
        };
        let entries = match content.as_slice() {
            [] => Entries::new(),
            content => match decode(content) {
                Ok(entries) => entries,
                Err(source) => return Err(RestoreError::Form { path, source }),
            },
        };
        let left = entries.keys().cloned().collect();
        Ok(Self { path, known: Mutex::new(Known { entries, left }) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn get(&self, uid: &PodUid) -> Option<Allocation> {
        self.known.lock().await.entries.get(uid.as_str()).cloned()
    }

    pub(super) async fn all(&self) -> BTreeMap<PodUid, Allocation> {
        let known = self.known.lock().await;
        known.entries.iter().filter_map(|(uid, own)| Some((PodUid::parse(uid)?, own.clone()))).collect()
    }

    /// Changes what is known of a pod, and the file when that is new.
    pub(super) async fn change(
        &self,
        uid: &PodUid,
        with: impl FnOnce(&mut Allocation),
    ) -> std::io::Result<()> {
        let mut known = self.known.lock().await;
        known.left.remove(uid.as_str());
        let entries = &mut known.entries;
        let before = entries.get(uid.as_str()).cloned();
        let mut own = before.clone().unwrap_or_default();
        with(&mut own);
        if before.as_ref() == Some(&own) {
            return Ok(());
        }
        entries.insert(uid.as_str().to_owned(), own);
        let written = self.write(entries).await;
        if written.is_err() {
            // What is not on the disk is not known.
            match before {
                Some(before) => drop(entries.insert(uid.as_str().to_owned(), before)),
                None => drop(entries.remove(uid.as_str())),
            }
        }
        written
    }

    /// As upstream, the file follows with the next change: one too many harms nobody.
    pub(super) async fn forget(&self, uid: &PodUid) {
        let mut known = self.known.lock().await;
        known.left.remove(uid.as_str());
        known.entries.remove(uid.as_str());
    }

    /// The same of what an agent before this one has left, but of these pods. Others may be taken up meanwhile.
    pub(super) async fn retain(&self, uids: &[PodUid]) {
        let mut known = self.known.lock().await;
        let gone = |uid: &String| !uids.iter().any(|known| known.as_str() == *uid);
        let gone: Vec<String> = std::mem::take(&mut known.left).into_iter().filter(gone).collect();
        gone.iter().for_each(|uid| drop(known.entries.remove(uid)));
    }

    async fn write(&self, entries: &Entries) -> std::io::Result<()> {
        let next = self.path.with_extension("next");
        fs::write(&next, encode(entries)?).await?;
        fs::rename(&next, &self.path).await
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    data: String,
    checksum: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Data {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(default)]
    container_resources: Option<BTreeMap<String, Lists>>,
    #[serde(default)]
    pod_level_resources: Option<Lists>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Lists {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    requests: BTreeMap<String, String>,
}

impl From<&Requirements> for Lists {
    fn from(of: &Requirements) -> Self {
        Self { limits: of.limits.clone(), requests: of.requests.clone() }
    }
}

impl From<Lists> for Requirements {
    fn from(Lists { limits, requests }: Lists) -> Self {
        Self { requests, limits }
    }
}

fn encode(entries: &Entries) -> serde_json::Result<Vec<u8>> {
    let entry = |own: &Allocation| Entry {
        container_resources: Some(
            own.containers.iter().map(|(name, of)| (name.clone(), of.into())).collect(),
        ),
        pod_level_resources: own.pod.as_ref().map(Lists::from),
    };
    let entries = entries.iter().map(|(uid, own)| (uid.clone(), entry(own))).collect();
    let data = go_json::text(&Data { entries })?;
    let checksum = checksum(&data);
    serde_json::to_vec(&File { data, checksum })
}

fn decode(content: &[u8]) -> Result<Entries, FormError> {
    let File { data, checksum: told } = serde_json::from_slice(content)?;
    if told != checksum(&data) {
        return Err(FormError::Checksum);
    }
    let Data { entries } = serde_json::from_str(&data)?;
    let allocation = |entry: Entry| Allocation {
        pod: entry.pod_level_resources.map(Requirements::from),
        containers: entry
            .container_resources
            .into_iter()
            .flatten()
            .map(|(name, of)| (name, of.into()))
            .collect(),
    };
    Ok(entries.into_iter().map(|(uid, entry)| (uid, allocation(entry))).collect())
}

/// Of a text spew prints the type, and the text.
fn checksum(data: &str) -> u64 {
    let mut hash = 0x811c_9dc5_u32;
    for byte in b"(string)".iter().chain(data.as_bytes()) {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    u64::from(hash)
}

#[cfg(test)]
mod tests {
    use gantry_base::error::chain;

    use super::*;

    /// Upstream's own example, of Test_stateCheckpoint_formatUpgraded.
    const UPSTREAM: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn allocation() -> Allocation {
        let container =
            Requirements { requests: texts(&[("cpu", "1")]), limits: texts(&[("memory", "1Gi")]) };
        let pod = Requirements { requests: texts(&[]), limits: texts(&[("cpu", "2")]) };
        Allocation { pod: Some(pod), containers: BTreeMap::from([("web".to_owned(), container)]) }
    }

    #[test]
    fn what_upstream_wrote_is_understood() {
        let entries = decode(UPSTREAM.as_bytes()).unwrap();
        let container =
            Requirements { requests: texts(&[("cpu", "1Ki"), ("memory", "1Ki")]), ..Default::default() };
        assert_eq!(entries["pod1"].containers, BTreeMap::from([("container1".to_owned(), container)]));
        assert_eq!(entries["pod1"].pod, None);
    }

    #[test]
    fn what_is_written_has_upstreams_form() {
        let content = encode(&Entries::from([("u".to_owned(), allocation())])).unwrap();
        let file: File = serde_json::from_slice(&content).unwrap();
        let data = r#"{"entries":{"u":{"ContainerResources":{"web":{"limits":{"memory":"1Gi"},"requests":{"cpu":"1"}}},"PodLevelResources":{"limits":{"cpu":"2"}}}}}"#;
        assert_eq!(file.data, data);
        assert_eq!(decode(&content).unwrap(), Entries::from([("u".to_owned(), allocation())]));
        assert_eq!(encode(&Entries::new()).unwrap(), br#"{"data":"{}","checksum":694314937}"#);
    }

    #[tokio::test]
    async fn a_pod_is_known_to_the_next_agent() {
        let folder = tempfile::tempdir().unwrap();
        let (path, uid) = (folder.path().join("state"), PodUid::parse("u").unwrap());
        let file = PodResourcesFile::open(path.clone()).unwrap();
        assert!(!path.exists());
        file.change(&uid, |own| *own = allocation()).await.unwrap();
        let next = PodResourcesFile::open(path.clone()).unwrap();
        assert_eq!(next.get(&uid).await, Some(allocation()));
        let new = PodUid::parse("new").unwrap();
        next.change(&new, |own| *own = allocation()).await.unwrap();
        // Of those that were taken up meanwhile nothing is forgotten.
        next.retain(&[]).await;
        assert_eq!(next.all().await.into_keys().collect::<Vec<_>>(), std::slice::from_ref(&new));
        next.forget(&new).await;
        assert_eq!(next.all().await, BTreeMap::new());
        // What a power cut leaves.
        std::fs::write(&path, b"").unwrap();
        assert_eq!(PodResourcesFile::open(path).unwrap().all().await, BTreeMap::new());
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        let (path, uid) = (folder.path().join("none/state"), PodUid::parse("u").unwrap());
        let file = PodResourcesFile::open(path).unwrap();
        file.change(&uid, |own| *own = allocation()).await.unwrap_err();
        assert_eq!(file.get(&uid).await, None);
    }

    /// #118371: a corrupt checkpoint was a panic without a word of what to do.
    #[test]
    fn a_corrupt_checkpoint_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("allocated_pods_state");
        let broken = [UPSTREAM.replace("1178570812", "1"), "{\"data\":".to_owned(), "[]".to_owned()];
        for content in broken {
            std::fs::write(&path, content).unwrap();
            let error = chain(&PodResourcesFile::open(path.clone()).unwrap_err());
            assert!(error.contains("drain this node and delete"), "{error}");
            assert!(error.contains("allocated_pods_state"), "{error}");
        }
        let error = chain(&RestoreError::Form { path, source: FormError::Checksum });
        assert!(error.ends_with("checkpoint is corrupted"), "{error}");
    }
}
