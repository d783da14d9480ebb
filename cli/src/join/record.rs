//! `/var/lib/gantry/join.json`: what a join has changed on this machine, for the leave. Owns the file and its versions;
//! never what is done with it. Called by [`super`] and [`crate::leave`].
//!
//! An entry is written before its change is made: a leave that finds nothing to take back passes on.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::step::JoinChange;

/// Where it is.
pub(crate) const PATH: &str = "/var/lib/gantry/join.json";
const VERSION: u32 = 1;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct JoinRecord {
    version: u32,
    /// The API server.
    pub(crate) endpoint: String,
    /// The node's name.
    pub(crate) node: String,
    /// kubeadm came to its end.
    pub(crate) joined: bool,
    /// In the order in which it was made.
    pub(crate) made: Vec<JoinChange>,
    pub(crate) before: Before,
}

/// What others than gantry join change on a node, as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Before {
    /// Files in /etc/cni/net.d.
    pub(crate) cni: Vec<PathBuf>,
    /// Folders of kubeadm and kubelet that were not there.
    pub(crate) absent: Vec<PathBuf>,
    /// Sysctls that kubelets and kube-proxies set.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// Tables of nf_tables, as `ip nat`.
    pub(crate) tables: Vec<String>,
    /// `networking.podSubnet`: routes into it are the cluster's.
    pub(crate) pod_subnets: Vec<String>,
}

impl JoinRecord {
    /// Of a join that begins.
    pub(crate) fn new(endpoint: String, node: String, before: Before) -> Self {
        Self { version: VERSION, endpoint, node, joined: false, made: Vec::new(), before }
    }

    /// Reads it; none where nobody joined.
    ///
    /// # Errors
    /// When it cannot be read, or another version wrote it.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>> {
        let text = match std::fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("read {}", path.display()))?,
        };
        let value: serde_json::Value = serde_json::from_slice(&text).with_context(|| {
            format!("{} is damaged: `kubeadm reset` and its removal begin anew", path.display())
        })?;
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(VERSION.into()) {
            bail!("{} is of another version of gantry: leave with the one that joined", path.display());
        }
        serde_json::from_value(value).map(Some).with_context(|| path.display().to_string())
    }

    /// Writes it whole.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("the record as JSON")?;
        gantry_base::files::replace(path, &text, 0o600).with_context(|| format!("write {}", path.display()))
    }

    /// Adds what is about to be made, once.
    pub(crate) fn note(&mut self, made: JoinChange) {
        if !self.made.contains(&made) {
            self.made.push(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_and_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("join.json");
        assert_eq!(JoinRecord::read(&path).unwrap(), None);
        let mut record = JoinRecord::new("h:6443".into(), "n1".into(), Before::default());
        for made in [
            JoinChange::Folder("/etc/cni".into()),
            JoinChange::Sysctl { name: "net.ipv4.ip_forward".into(), before: "0".into() },
            JoinChange::Join { cri_socket: "unix:///run/gantry/gantry.sock".into() },
            JoinChange::Folder("/etc/cni".into()),
        ] {
            record.note(made);
        }
        assert_eq!(record.made.len(), 3, "each once");
        record.write(&path).unwrap();
        assert_eq!(JoinRecord::read(&path).unwrap(), Some(record.clone()));
        record.version = 2;
        record.write(&path).unwrap();
        assert!(format!("{:#}", JoinRecord::read(&path).unwrap_err()).contains("another version"));
        std::fs::write(&path, "{").unwrap();
        assert!(format!("{:#}", JoinRecord::read(&path).unwrap_err()).contains("join.json is damaged"));
    }
}
