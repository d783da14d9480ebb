//! Ranges of the node's user IDs for pods with a user namespace of their own: each gets one for itself,
//! and keeps it over a restart of the agent. Owns the ranges, where they are taken from, and the files in which the kubelet keeps
//! them, `ROOT/pods/UID/userns`; never makes a namespace. Called before a sandbox is made.

#![expect(
    clippy::disallowed_methods,
    reason = "runs getsubids, which alone knows where subordinate IDs are kept"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gantry_base::files;
use gantry_model::pod::PodUid;
use serde::{Deserialize, Serialize};
use tokio::fs;

use crate::runtime::Users;

/// As DefaultKubeletUserNamespacesIDsPerPod.
const LENGTH: u32 = 65_536;
/// Whose subordinate ids they are, as upstream.
const USER: &str = "kubelet";

/// All ranges of this node.
#[derive(Debug)]
pub struct UserRanges {
    /// None: nothing outlives the agent.
    root: Option<PathBuf>,
    range: Range,
    length: u32,
    given: Mutex<BTreeMap<PodUid, u32>>,
}

/// The kubelet's file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UserRangesFile {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl Default for UserRanges {
    fn default() -> Self {
        Self { root: None, range: Range::default(), length: LENGTH, given: Mutex::default() }
    }
}

/// What may be given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    first: u32,
    /// Of pods.
    count: u32,
}

impl Default for Range {
    /// All of the node's 32 bits but the first range, which is its own.
    fn default() -> Self {
        Self { first: LENGTH, count: u32::MAX / LENGTH }
    }
}

impl Range {
    /// The subordinate ids of the user `kubelet`, where there are both that user and `getsubids`, which
    /// knows of name services as well; else the default.
    ///
    /// # Errors
    /// When its ids are not told, or are none that can be given to pods: others may have them.
    pub async fn of_kubelet(max_pods: i32) -> Result<Self, String> {
        let users = match fs::read_to_string("/etc/passwd").await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            users => users.map_err(|error| format!("read /etc/passwd: {error}"))?,
        };
        if !users.lines().any(|line| line.split(':').next() == Some(USER)) {
            return Ok(Self::default());
        }
        let Some(uids) = subordinate(&[USER]).await? else { return Ok(Self::default()) };
        let gids = subordinate(&["-g", USER]).await?;
        if gids.as_ref() != Some(&uids) {
            return Err(format!("mismatched subuids and subgids for user {USER:?}"));
        }
        Self::told(&uids, max_pods)
    }

    /// `0: kubelet 65536 2147483648`: the first id, and how many.
    fn told(text: &str, max_pods: i32) -> Result<Self, String> {
        let text = text.trim_matches('\n');
        let bad = |why: String| format!("subordinate ids of user {USER:?} {text:?}: {why}");
        let fields: Vec<&str> = text.split_whitespace().collect();
        let ([_, _, first, ids], 1) = (&fields[..], text.lines().count()) else {
            return Err(bad("there must be one range".to_owned()));
        };
        let number = |field: &str| field.parse::<u32>().map_err(|error| bad(format!("{field}: {error}")));
        let (first, ids) = (number(first)?, number(ids)?);
        if first < LENGTH || first % LENGTH != 0 || ids % LENGTH != 0 {
            return Err(bad(format!("both must be multiples of {LENGTH}, and 0 is the node's own")));
        }
        let count = ids / LENGTH;
        if u64::from(first) + u64::from(ids) > 1 << 32 {
            return Err(bad("it ends after the last id".to_owned()));
        }
        if i64::from(count) < i64::from(max_pods) {
            return Err(bad(format!("it has room for {count} pods, and maxPods is {max_pods}")));
        }
        Ok(Self { first, count })
    }
}

/// What getsubids says; none without it.
async fn subordinate(of: &[&str]) -> Result<Option<String>, String> {
    let output = match tokio::process::Command::new("getsubids").args(of).output().await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        output => output.map_err(|error| format!("run getsubids: {error}"))?,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("getsubids {}: {}: {}", of.join(" "), output.status, said.trim()));
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

impl UserRanges {
    /// Ranges that are kept below `root`, with what an earlier agent has given out. `told` says which
    /// ranges the sandboxes of a pod have: it is asked where a file is damaged.
    ///
    /// # Errors
    /// When a file of it cannot be read, or says what cannot be: two pods must not share users.
    pub async fn load(
        root: PathBuf,
        range: Range,
        told: impl AsyncFn(&PodUid) -> Result<Vec<Users>, String>,
    ) -> Result<Self, String> {
        let ranges = Self { root: Some(root.clone()), range, ..Self::default() };
        let mut entries = match fs::read_dir(root.join("pods")).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ranges),
            entries => entries.map_err(|error| format!("read pods from disk: {error}"))?,
        };
        let mut damaged = Vec::new();
        loop {
            let entry =
                entries.next_entry().await.map_err(|error| format!("read pods from disk: {error}"))?;
            let Some(entry) = entry else { break };
            let Some(uid) = entry.file_name().to_str().and_then(PodUid::parse) else { continue };
            if let Written::Damaged(path) = ranges.recall(&uid).await? {
                damaged.push((uid, path));
            }
        }
        // Once all others are known: what the runtime says must be none of theirs.
        for (uid, path) in damaged {
            let told = told(&uid).await.map_err(|error| format!("users of pod {uid}: {error}"))?;
            ranges.restore(&uid, &path, told).await?;
        }
        Ok(ranges)
    }

    fn given(&self) -> MutexGuard<'_, BTreeMap<PodUid, u32>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod's range: the one it has, or one that nobody has.
    ///
    /// # Errors
    /// When none is left, or it cannot be written down.
    pub async fn of(&self, uid: &PodUid) -> Result<Users, String> {
        let known = self.given().get(uid).copied();
        if let Some(first) = known {
            return Ok(self.users(first));
        }
        match self.recall(uid).await? {
            Written::Nothing => {}
            Written::Range(first) => return Ok(self.users(first)),
            // After the start: nobody knows who did that, or what stands on the range.
            Written::Damaged(path) => return Err(bad(uid, "invalid user namespace mappings file", &path)),
        }
        let first = {
            let mut given = self.given();
            let mut all = (0..self.range.count).map(|n| self.range.first + n * self.length);
            let free = all.find(|first| given.values().all(|taken| taken != first));
            let first = free.ok_or("could not find an empty slot to allocate a user namespace")?;
            given.insert(uid.clone(), first);
            first
        };
        if let Err(error) = self.write(uid, first).await {
            self.given().remove(uid);
            return Err(format!("create user namespace: {error}"));
        }
        Ok(self.users(first))
    }

    /// Others may have it.
    pub fn release(&self, uid: &PodUid) {
        self.given().remove(uid);
    }

    fn users(&self, first: u32) -> Users {
        Users { first, length: self.length }
    }

    fn path(&self, uid: &PodUid) -> Option<PathBuf> {
        Some(self.root.as_ref()?.join("pods").join(uid.as_str()).join("userns"))
    }

    async fn write(&self, uid: &PodUid, first: u32) -> std::io::Result<()> {
        let Some(path) = self.path(uid) else { return Ok(()) };
        let mapping = vec![Mapping { host_id: first, container_id: 0, length: self.length }];
        let text =
            serde_json::to_vec(&UserRangesFile { uid_mappings: mapping.clone(), gid_mappings: mapping })?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).await?;
        }
        let written = tokio::task::spawn_blocking(move || files::replace(&path, &text, 0o600)).await;
        written.unwrap_or_else(|died| Err(died.into()))
    }

    /// What is written down for the pod, taken for given out.
    async fn recall(&self, uid: &PodUid) -> Result<Written, String> {
        let Some(path) = self.path(uid) else { return Ok(Written::Nothing) };
        let text = match fs::read(&path).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Written::Nothing),
            text => text.map_err(|error| format!("read {}: {error}", path.display()))?,
        };
        let Ok(file) = serde_json::from_slice::<UserRangesFile>(&text) else {
            return Ok(Written::Damaged(path));
        };
        let ([own], [groups]) = (&file.uid_mappings[..], &file.gid_mappings[..]) else {
            return Err(bad(uid, "no more than one mapping allowed", &path));
        };
        if own != groups || own.container_id != 0 {
            return Err(bad(uid, "GID and UID mapping should be identical, and 0 must be mapped", &path));
        }
        self.take(uid, Users { first: own.host_id, length: own.length })
            .map(Written::Range)
            .map_err(|why| bad(uid, why, &path))
    }

    /// The pod has it, unless it is no range for a pod, or another's.
    fn take(&self, uid: &PodUid, users: Users) -> Result<u32, &'static str> {
        let Range { first, count } = self.range;
        let last = first + count.saturating_sub(1) * self.length;
        if users.length != self.length
            || !users.first.is_multiple_of(self.length)
            || !(first..=last).contains(&users.first)
        {
            return Err("the range is none of this node's");
        }
        let mut given = self.given();
        if given.iter().any(|(other, first)| other != uid && *first == users.first) {
            return Err("another pod has the range");
        }
        given.insert(uid.clone(), users.first);
        Ok(users.first)
    }

    /// A file that a power cut left empty or torn is worth nothing: what runs on the pod's range is
    /// known to the runtime, and without that nothing does.
    async fn restore(&self, uid: &PodUid, path: &Path, told: Vec<Users>) -> Result<(), String> {
        let Some(users) = told.first().copied() else {
            tracing::warn!(%uid, path = %path.display(), "the file of a pod's users is damaged, and no sandbox has any: removed");
            return match fs::remove_file(path).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(format!("remove {}: {error}", path.display()))
                }
                _ => Ok(()),
            };
        };
        if told.iter().any(|other| *other != users) {
            return Err(bad(uid, "its sandboxes have different ranges", path));
        }
        let first = self.take(uid, users).map_err(|why| bad(uid, why, path))?;
        tracing::warn!(%uid, path = %path.display(), first, "the file of a pod's users is damaged: written anew as its sandbox has them");
        self.write(uid, first).await.map_err(|error| format!("write {}: {error}", path.display()))
    }
}

/// What the file of a pod says.
enum Written {
    Nothing,
    Range(u32),
    /// Not even what a file is.
    Damaged(PathBuf),
}

fn bad(uid: &PodUid, why: &str, path: &Path) -> String {
    format!("user namespace of pod {uid}: {why}: remove {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    async fn load(folder: &Path) -> Result<UserRanges, String> {
        UserRanges::load(folder.to_owned(), Range::default(), async |_: &PodUid| Ok(Vec::new())).await
    }

    #[tokio::test]
    async fn each_pod_has_a_range_of_its_own_that_outlives_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let ranges = load(folder.path()).await.unwrap();
        let (a, b) = (ranges.of(&uid("a")).await.unwrap(), ranges.of(&uid("b")).await.unwrap());
        assert_eq!((a.first, a.length, b.first), (65_536, 65_536, 131_072));
        assert_eq!(ranges.of(&uid("a")).await.unwrap(), a);
        let again = load(folder.path()).await.unwrap();
        assert_eq!(again.of(&uid("b")).await.unwrap(), b);
        assert_eq!(again.of(&uid("c")).await.unwrap().first, 196_608);
        again.release(&uid("a"));
        std::fs::remove_dir_all(folder.path().join("pods/a")).unwrap();
        assert_eq!(again.of(&uid("d")).await.unwrap(), a);
    }

    #[tokio::test]
    async fn the_users_of_the_kubelet_bound_what_pods_get() {
        let range = Range::told("0: kubelet 131072 196608\n", 3).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ranges = UserRanges::load(folder.path().to_owned(), range, async |_: &PodUid| Ok(Vec::new()))
            .await
            .unwrap();
        for (pod, first) in [("a", 131_072), ("b", 196_608), ("c", 262_144)] {
            assert_eq!(ranges.of(&uid(pod)).await.unwrap().first, first);
        }
        assert!(ranges.of(&uid("d")).await.is_err());
        for (text, why) in [
            ("0: kubelet 131072 196608", "room for 3 pods, and maxPods is 4"),
            ("", "one range"),
            ("0: kubelet 131072 196608\n1: kubelet 1310720 65536", "one range"),
            ("0: kubelet 100000 655360", "multiples"),
            ("0: kubelet 0 655360", "multiples"),
            ("0: kubelet 131072 65535", "multiples"),
            ("0: kubelet 131072 -1", "invalid digit"),
            ("0: kubelet 4294901760 655360", "after the last id"),
        ] {
            let error = Range::told(text, 4).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(Range::told("0: kubelet 65536 4294901760", 110).unwrap(), Range::default());
    }

    fn text(id: u32) -> String {
        let mapping = format!("{{\"hostId\":{id},\"containerId\":0,\"length\":65536}}");
        format!("{{\"uidMappings\":[{mapping}],\"gidMappings\":[{mapping}]}}")
    }

    fn plant(folder: &Path, pod: &str, text: &str) -> PathBuf {
        let file = folder.join("pods").join(pod).join("userns");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        file
    }

    #[tokio::test]
    async fn a_range_that_is_none_of_this_nodes_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        plant(folder.path(), "a", &text(7));
        let error = load(folder.path()).await.unwrap_err();
        assert!(error.contains("none of this node's"), "{error}");
        plant(folder.path(), "a", &text(131_072));
        let ranges = load(folder.path()).await.unwrap();
        assert_eq!(ranges.of(&uid("a")).await.unwrap().first, 131_072);
    }

    const DAMAGED: [&str; 4] = ["", "{\"uidMappings\":[{\"hostId\":131", "\0\0\0\0", "{}"];

    #[tokio::test]
    async fn a_damaged_file_of_a_pod_that_has_no_sandbox_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        for damaged in DAMAGED {
            let file = plant(folder.path(), "a", damaged);
            plant(folder.path(), "b", &text(65_536));
            let ranges = load(folder.path()).await.unwrap();
            assert!(!file.exists(), "{damaged}");
            assert_eq!(ranges.of(&uid("a")).await.unwrap().first, 131_072, "{damaged}");
        }
    }

    #[tokio::test]
    async fn a_damaged_file_of_a_pod_that_has_a_sandbox_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let has = |first| async move |_: &PodUid| Ok::<_, String>(vec![Users { first, length: LENGTH }; 2]);
        for damaged in DAMAGED {
            let file = plant(folder.path(), "a", damaged);
            let ranges = UserRanges::load(folder.path().to_owned(), Range::default(), has(65_536));
            let ranges = ranges.await.unwrap();
            // Nobody else gets it.
            assert_eq!(ranges.of(&uid("other")).await.unwrap().first, 131_072, "{damaged}");
            assert_eq!(ranges.of(&uid("a")).await.unwrap().first, 65_536, "{damaged}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text(65_536));
        }
        plant(folder.path(), "a", "");
        plant(folder.path(), "b", &text(65_536));
        let ranges = UserRanges::load(folder.path().to_owned(), Range::default(), has(65_536)).await;
        assert!(ranges.unwrap_err().contains("another pod has the range"));
        let ranges = UserRanges::load(folder.path().to_owned(), Range::default(), has(7)).await;
        assert!(ranges.unwrap_err().contains("none of this node's"));
        // Who cannot be asked may have any.
        let mute = async |_: &PodUid| Err("no answer".to_owned());
        let ranges = UserRanges::load(folder.path().to_owned(), Range::default(), mute).await;
        assert!(ranges.unwrap_err().contains("no answer"));
        assert!(folder.path().join("pods/a/userns").exists());
    }

    #[tokio::test]
    async fn a_file_that_is_damaged_later_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let ranges = load(folder.path()).await.unwrap();
        plant(folder.path(), "a", "");
        assert!(ranges.of(&uid("a")).await.is_err());
        assert_eq!(ranges.of(&uid("b")).await.unwrap().first, 65_536);
    }
}
