//! What `gantry doctor` says of the kubelet's plugins: CSI drivers, device plugins and others whose sockets are in its folder.
//! Owns the facts; [`files`] finds the sockets, [`ask`] speaks to them, [`judge`] words the rows. No plugin is trusted: one
//! may hang, flood or lie. Never changes anything. Called by [`super`].

mod ask;
mod files;
mod judge;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Check;

/// For one question to one plugin; all are asked at once, and each two questions at most.
const PATIENCE: Duration = Duration::from_secs(3);

/// Of the kubelet's folder.
#[derive(Debug, Default)]
struct PluginFacts {
    /// Folders and files that could not be read, and why.
    unread: Vec<(PathBuf, String)>,
    asked: Vec<AskedSocket>,
    /// Whether there are more sockets than are asked.
    more: bool,
    /// Healthy devices by resource, as the kubelet's checkpoint has them.
    resources: BTreeMap<String, usize>,
}

/// How the plugin of a socket makes itself known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PluginFolder {
    /// `plugins_registry`: it is asked by GetInfo who it is.
    Common,
    /// `device-plugins`: it has told the kubelet who it is, and its socket does not say.
    Devices,
}

/// A socket in one of the folders.
#[derive(Debug, Clone)]
struct PluginSocket {
    path: PathBuf,
    within: PluginFolder,
    /// Since when it is there, where the file says so.
    made: Option<SystemTime>,
}

#[derive(Debug)]
struct AskedSocket {
    socket: PluginSocket,
    /// Or why there is none.
    answer: Result<PluginAnswer, String>,
}

#[derive(Debug)]
enum PluginAnswer {
    /// One of `device-plugins` serves.
    Serves,
    Info(PluginInfo),
}

/// What a plugin says of itself; every word is its own.
#[derive(Debug)]
struct PluginInfo {
    /// `CSIPlugin`, `DevicePlugin`, `DRAPlugin`.
    kind: String,
    name: String,
    versions: Vec<String>,
    endpoint: PathBuf,
    /// Whether what serves at the endpoint is as it should be, or why not; none of a type that is not asked.
    service: Option<Result<(), String>>,
    /// Whether `plugins/NAME` is there.
    folder: bool,
}

/// A row for each plugin; none where there is none. Takes twice [`PATIENCE`] at most.
pub(super) async fn checks(root: &Path) -> Vec<Check> {
    judge::plugins(&look(root, PATIENCE).await)
}

async fn look(root: &Path, patience: Duration) -> PluginFacts {
    let (sockets, mut facts) = files::look(root);
    facts.asked = ask::all(sockets, root, patience).await;
    facts
}

#[cfg(test)]
mod tests;
