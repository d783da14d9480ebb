//! Records of pulls below the kubelet's root: what is being pulled, and who may use what was. Owns the
//! files, byte for byte as upstream writes them; never decides with them. Called by [`super::pull_manager`].
//!
//! ```text
//! ROOT/image_manager/pulling/sha256-<sum of the image's name>    ImagePullIntent
//! ROOT/image_manager/pulled/sha256-<sum of the image's ID>       ImagePulledRecord
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use gantry_base::files;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::keyring::sha256;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const OLDER: &str = "kubelet.config.k8s.io/v1alpha1";
const INTENT: &str = "ImagePullIntent";
const PULLED: &str = "ImagePulledRecord";
const PREFIX: &str = "sha256-";
/// Of what upstream was writing.
const TEMPORARY: &str = ".tmp";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

/// Who may use an image that was pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PulledRecord {
    kind: String,
    api_version: String,
    /// RFC 3339, whole seconds.
    pub(super) last_updated_time: String,
    /// The runtime's ID.
    pub(super) image_ref: String,
    /// By the image's name in the pod, without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) credential_mapping: BTreeMap<String, Credentials>,
}

/// With what an image was got.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Credentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) kubernetes_secrets: Vec<PullSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) kubernetes_service_accounts: Vec<PullAccount>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) node_pods_accessible: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PullSecret {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) credential_hash: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct PullAccount {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl PulledRecord {
    pub(super) fn new(image_ref: &str, now: &str) -> Self {
        Self {
            kind: PULLED.to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: now.to_owned(),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }

    /// What is known of the image under the name `image` now includes `new`; false when it did before.
    pub(super) fn merge(&mut self, image: &str, new: &Credentials, now: &str) -> bool {
        if *new == Credentials::default() {
            return false;
        }
        let changed = match self.credential_mapping.get_mut(image) {
            None => {
                self.credential_mapping.insert(image.to_owned(), new.clone());
                true
            }
            Some(known) => known.merge(new),
        };
        if changed {
            now.clone_into(&mut self.last_updated_time);
        }
        changed
    }
}

impl Credentials {
    fn merge(&mut self, new: &Self) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            *self = Self { node_pods_accessible: true, ..Self::default() };
            return true;
        }
        let mut changed = false;
        for secret in &new.kubernetes_secrets {
            changed |= self.merge_secret(secret);
        }
        for account in &new.kubernetes_service_accounts {
            if !self.kubernetes_service_accounts.contains(account) {
                self.kubernetes_service_accounts.push(account.clone());
                changed = true;
            }
        }
        let place = |secret: &PullSecret| (secret.namespace.clone(), secret.name.clone(), secret.uid.clone());
        self.kubernetes_secrets.sort_by_key(place);
        self.kubernetes_service_accounts
            .sort_by_key(|account| (account.namespace.clone(), account.name.clone(), account.uid.clone()));
        changed
    }

    fn merge_secret(&mut self, secret: &PullSecret) -> bool {
        match self.kubernetes_secrets.iter_mut().find(|known| known.is(secret)) {
            Some(known) if known.credential_hash == secret.credential_hash => false,
            Some(known) => {
                known.credential_hash.clone_from(&secret.credential_hash);
                true
            }
            None => {
                self.kubernetes_secrets.push(secret.clone());
                true
            }
        }
    }
}

impl PullSecret {
    /// The very same object.
    pub(super) fn is(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

/// A record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct Error {
    path: PathBuf,
    message: String,
}

fn wrap(path: &Path, error: &impl ToString) -> Error {
    Error { path: path.to_owned(), message: error.to_string() }
}

/// The two folders.
#[derive(Debug)]
pub(super) struct PullRecords {
    pulling: PathBuf,
    pulled: PathBuf,
}

impl PullRecords {
    /// Makes the folders, and brings what an earlier version wrote up to date.
    pub(super) fn open(root_dir: &Path) -> Result<Self, Error> {
        let folder = root_dir.join("image_manager");
        let records = Self { pulling: folder.join("pulling"), pulled: folder.join("pulled") };
        for path in [&records.pulling, &records.pulled] {
            make(path)?;
        }
        records.migrate();
        Ok(records)
    }

    fn migrate(&self) {
        for (path, intent) in list::<Intent>(&self.pulling) {
            let migrated = intent.and_then(|intent| match intent.api_version.as_str() {
                API_VERSION => Ok(()),
                _ => self.intend(&intent.image),
            });
            if let Err(error) = migrated {
                tracing::error!(path = %path.display(), %error, "Error migrating image pull intents");
            }
        }
        for (path, pulled) in list::<PulledRecord>(&self.pulled) {
            let migrated = pulled.and_then(|pulled| match pulled.api_version.as_str() {
                API_VERSION => Ok(()),
                _ => self.write_pulled(&PulledRecord { api_version: API_VERSION.to_owned(), ..pulled }),
            });
            if let Err(error) = migrated {
                tracing::error!(path = %path.display(), %error, "Error migrating image pulled records");
            }
        }
    }

    pub(super) fn intend(&self, image: &str) -> Result<(), Error> {
        let (kind, api_version, image) = (INTENT.to_owned(), API_VERSION.to_owned(), image.to_owned());
        write(&file(&self.pulling, &image), &Intent { kind, api_version, image })
    }

    pub(super) fn is_intended(&self, image: &str) -> Result<bool, Error> {
        let intent: Option<Intent> = read(&file(&self.pulling, image))?;
        Ok(intent.is_some_and(|intent| intent.image == image))
    }

    pub(super) fn forget_intent(&self, image: &str) -> Result<(), Error> {
        remove(&file(&self.pulling, image))
    }

    /// Images that were being pulled.
    pub(super) fn intents(&self) -> Vec<String> {
        readable(list::<Intent>(&self.pulling)).map(|intent| intent.image).collect()
    }

    pub(super) fn read_pulled(&self, image_ref: &str) -> Result<Option<PulledRecord>, Error> {
        let pulled: Option<PulledRecord> = read(&file(&self.pulled, image_ref))?;
        Ok(pulled.filter(|pulled| pulled.image_ref == image_ref))
    }

    pub(super) fn write_pulled(&self, record: &PulledRecord) -> Result<(), Error> {
        write(&file(&self.pulled, &record.image_ref), record)
    }

    pub(super) fn forget_pulled(&self, image_ref: &str) -> Result<(), Error> {
        remove(&file(&self.pulled, image_ref))
    }

    /// All that can be read.
    pub(super) fn all_pulled(&self) -> Vec<PulledRecord> {
        readable(list::<PulledRecord>(&self.pulled)).collect()
    }

    /// How many there are of each: being pulled, pulled.
    pub(super) fn counts(&self) -> (usize, usize) {
        (paths(&self.pulling).len(), paths(&self.pulled).len())
    }
}

/// One of our kinds, in a version that is known.
trait Record: DeserializeOwned {
    const KIND: &'static str;
    fn head(&self) -> (&str, &str);
}

impl Record for Intent {
    const KIND: &'static str = INTENT;
    fn head(&self) -> (&str, &str) {
        (&self.kind, &self.api_version)
    }
}

impl Record for PulledRecord {
    const KIND: &'static str = PULLED;
    fn head(&self) -> (&str, &str) {
        (&self.kind, &self.api_version)
    }
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{PREFIX}{}", sha256(name.as_bytes())))
}

fn make(folder: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| wrap(folder, &error))
}

fn read<T: Record>(path: &Path) -> Result<Option<T>, Error> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| wrap(path, &error))?,
    };
    let record: T = serde_json::from_slice(&text).map_err(|error| wrap(path, &error))?;
    match record.head() {
        (kind, API_VERSION | OLDER) if kind == T::KIND => Ok(Some(record)),
        (kind, version) => {
            Err(wrap(path, &format!("no kind {kind:?} is registered for version {version:?} here")))
        }
    }
}

/// Whole or not at all, after a power cut, too: an image without its record may be anybody's.
fn write(path: &Path, record: &impl Serialize) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        make(folder)?;
    }
    let mut text = serde_json::to_vec(record).map_err(|error| wrap(path, &error))?;
    text.push(b'\n');
    files::replace(path, &text, 0o600).map_err(|error| wrap(path, &error))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|error| wrap(path, &error)),
    }
}

/// Files that we wrote.
fn paths(folder: &Path) -> Vec<PathBuf> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::error!(folder = %folder.display(), %error, "records of pulls cannot be listed");
            return Vec::new();
        }
    };
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(PREFIX) && !name.ends_with(TEMPORARY) && path.is_file()
    };
    entries.filter_map(Result::ok).map(|entry| entry.path()).filter(ours).collect()
}

fn list<T: Record>(folder: &Path) -> Vec<(PathBuf, Result<T, Error>)> {
    let look = |path: PathBuf| {
        // Gone since the list.
        let record = read(&path).transpose()?;
        Some((path, record))
    };
    paths(folder).into_iter().filter_map(look).collect()
}

fn readable<T>(list: Vec<(PathBuf, Result<T, Error>)>) -> impl Iterator<Item = T> {
    list.into_iter().filter_map(|(_, record)| match record {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::error!(%error, "a record of a pull cannot be read");
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, hash: &str) -> Credentials {
        let secret = PullSecret {
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            name: name.into(),
            credential_hash: hash.into(),
        };
        Credentials { kubernetes_secrets: vec![secret], ..Credentials::default() }
    }

    #[test]
    fn files_are_upstreams_byte_for_byte() {
        let root = tempfile::tempdir().unwrap();
        let records = PullRecords::open(root.path()).unwrap();
        records.intend("docker.io/testing/test:latest").unwrap();
        let folder = root.path().join("image_manager");
        // As in upstream's own test data.
        assert_eq!(
            fs::read_to_string(
                folder
                    .join("pulling/sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56")
            )
            .unwrap(),
            "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"docker.io/testing/test:latest\"}\n"
        );
        let mut pulled = PulledRecord::new("testimage-anonpull", "2024-10-21T12:26:40Z");
        let everyone = Credentials { node_pods_accessible: true, ..Credentials::default() };
        assert!(pulled.merge("docker.io/testing/test", &everyone, "2024-10-21T12:26:40Z"));
        records.write_pulled(&pulled).unwrap();
        assert_eq!(
            fs::read_to_string(
                folder.join("pulled/sha256-a2eace2182b24cdbbb730798e47b10709b9ef5e0f0c1624a3bc06c8ca987727a")
            )
            .unwrap(),
            "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"lastUpdatedTime\":\"2024-10-21T12:26:40Z\",\"imageRef\":\"testimage-anonpull\",\"credentialMapping\":{\"docker.io/testing/test\":{\"nodePodsAccessible\":true}}}\n"
        );
        assert_eq!(records.read_pulled("testimage-anonpull").unwrap(), Some(pulled));
        assert_eq!(records.counts(), (1, 1));
        assert!(records.is_intended("docker.io/testing/test:latest").unwrap());
        records.forget_intent("docker.io/testing/test:latest").unwrap();
        records.forget_intent("docker.io/testing/test:latest").unwrap();
        assert!(!records.is_intended("docker.io/testing/test:latest").unwrap());
    }

    #[test]
    fn what_an_older_kubelet_wrote_is_brought_up_to_date_and_what_is_broken_is_left() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("image_manager/pulled");
        fs::create_dir_all(&folder).unwrap();
        let older = file(&folder, "old");
        fs::write(
            &older,
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"old"}"#,
        )
        .unwrap();
        fs::write(file(&folder, "broken"), r#"{"kind":"ImagePulledRecord","more":1}"#).unwrap();
        fs::write(folder.join("notes"), "mine").unwrap();
        fs::write(folder.join("sha256-1.tmp"), "half").unwrap();
        let records = PullRecords::open(root.path()).unwrap();
        assert!(fs::read_to_string(&older).unwrap().contains("/v1beta1\""));
        assert!(records.read_pulled("broken").is_err());
        assert_eq!(records.all_pulled().len(), 1);
        assert_eq!(records.counts(), (0, 2));
    }

    #[test]
    fn new_credentials_join_those_that_are_known() {
        let mut record = PulledRecord::new("id", "1");
        assert!(!record.merge("web", &Credentials::default(), "2"), "nothing to record");
        assert!(record.merge("web", &secret("b", "1"), "3"));
        assert!(!record.merge("web", &secret("b", "1"), "4"));
        assert!(record.merge("web", &secret("a", "1"), "5"));
        assert!(record.merge("web", &secret("b", "2"), "6"));
        let seen = |record: &PulledRecord| -> Vec<(String, String)> {
            let known = record.credential_mapping.get("web").unwrap();
            known.kubernetes_secrets.iter().map(|s| (s.name.clone(), s.credential_hash.clone())).collect()
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            (seen(&record), record.last_updated_time.as_str()),
            (vec![pair("a", "1"), pair("b", "2")], "6")
        );
        let everyone = Credentials { node_pods_accessible: true, ..Credentials::default() };
        assert!(record.merge("web", &everyone, "7"));
        assert_eq!(record.credential_mapping.get("web"), Some(&everyone));
        assert!(!record.merge("web", &secret("c", "1"), "8"));
    }
}
