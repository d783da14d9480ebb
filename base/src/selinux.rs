//! SELinux on this node: whether it is on, what its policy has for containers, and what a label is made of. Owns the rules,
//! which are those of opencontainers/selinux; never sets a label. Called by the runtime, and by the agent for what it has
//! mounted with a label.

use std::fmt;
use std::fs;
use std::path::Path;

/// `SELINUX_MAGIC` of statfs(2), linux/magic.h.
const MAGIC: u64 = 0xf97c_ff8c;
const FOLDER: &str = "/sys/fs/selinux";
/// Where a distribution says it once for all container runtimes.
const CONTEXTS: &str = "usr/share/containers/selinux/contexts";

/// Whether its file system is there and writable, and policy has been loaded.
#[must_use]
pub fn is_on() -> bool {
    let there = rustix::fs::statfs(FOLDER)
        .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == MAGIC));
    let writable = rustix::fs::statvfs(FOLDER)
        .is_ok_and(|found| !found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    let label = fs::read_to_string("/proc/thread-self/attr/current").unwrap_or_default();
    there && writable && label.trim_end_matches('\0') != "kernel"
}

/// `user:role:type:level`; a policy without levels has no last part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelinuxContext {
    pub user: String,
    pub role: String,
    pub kind: String,
    pub level: String,
}

impl fmt::Display for SelinuxContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.user, self.role, self.kind)?;
        if self.level.is_empty() { Ok(()) } else { write!(f, ":{}", self.level) }
    }
}

impl SelinuxContext {
    /// None for a text that is no label.
    #[must_use]
    pub fn parse(label: &str) -> Option<Self> {
        let mut parts = label.splitn(4, ':').map(str::to_owned);
        let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { user, role, kind, level: parts.next().unwrap_or_default() })
    }
}

/// What the node's policy has for containers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelinuxPolicy {
    /// The label of a process.
    pub process: String,
    /// The label of what it may write.
    pub file: String,
}

impl SelinuxPolicy {
    /// The distribution's for containers below `root`, else the loaded policy's; empty without either.
    #[must_use]
    pub fn find(root: &Path) -> Self {
        let own = || {
            let config = fs::read_to_string(root.join("etc/selinux/config")).unwrap_or_default();
            let lines = config.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
            let kind = lines.filter_map(|line| line.split_once('=')).find(|(name, _)| *name == "SELINUXTYPE");
            let kind = kind.map_or("", |(_, value)| value.trim_matches('"'));
            fs::read_to_string(root.join("etc/selinux").join(kind).join("contexts/lxc_contexts"))
        };
        let text = fs::read_to_string(root.join(CONTEXTS)).or_else(|_| own());
        Self::parse(&text.unwrap_or_default())
    }

    /// Of the file `lxc_contexts` or `contexts`: `name = "label"`, a line each.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let pairs = text.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
        let mut policy = Self::default();
        for (name, value) in pairs.filter_map(|line| line.split_once('=')) {
            let value = value.trim().trim_matches('"').to_owned();
            match name.trim() {
                "process" => policy.process = value,
                "file" => policy.file = value,
                _ => {}
            }
        }
        policy
    }

    /// Whether what it has for containers are labels, where it has any.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let all = [&self.process, &self.file];
        all.iter().any(|label| label.is_empty())
            || all.iter().all(|label| SelinuxContext::parse(label).is_some())
    }

    /// The labels of a process that asks for `wanted`, and of what is mounted for it. An empty part is the policy's to
    /// fill. `fresh` makes a level that nobody else has; it is not called for one that is asked for.
    #[must_use]
    pub fn labels(&self, wanted: &SelinuxContext, fresh: impl FnOnce() -> String) -> (String, String) {
        let parsed = SelinuxContext::parse(&self.process).zip(SelinuxContext::parse(&self.file));
        let Some((mut process, mut file)) = parsed else { return (String::new(), self.file.clone()) };
        if !wanted.level.is_empty() {
            process.level.clone_from(&wanted.level);
            file.level.clone_from(&wanted.level);
        } else if !process.level.is_empty() {
            process.level = fresh();
            file.level.clone_from(&process.level);
        }
        for (own, asked) in [
            (&mut process.user, &wanted.user),
            (&mut process.role, &wanted.role),
            (&mut process.kind, &wanted.kind),
            // What a process of another user makes is that user's.
            (&mut file.user, &wanted.user),
        ] {
            if !asked.is_empty() {
                own.clone_from(asked);
            }
        }
        (process.to_string(), file.to_string())
    }
}

/// A level of two of `categories`, by chance; 1024 where that is less than two.
#[must_use]
pub fn random_level(categories: u32) -> String {
    let categories = if categories < 2 { 1024 } else { categories };
    loop {
        let mut bytes = [0u8; 8];
        // The kernel has chance for anybody once it is up.
        if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
            continue;
        }
        if let Some(level) = level_of(u64::from_le_bytes(bytes), categories) {
            return level;
        }
    }
}

fn level_of(number: u64, categories: u32) -> Option<String> {
    let range = u64::from(categories);
    let (one, other) = (number.checked_rem(range)?, number.checked_div(range)?.checked_rem(range)?);
    (one != other).then(|| format!("s0:c{},c{}", one.min(other), one.max(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_the_distributions_or_the_loaded_ones() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(SelinuxPolicy::find(root.path()), SelinuxPolicy::default());
        fs::create_dir_all(root.path().join("etc/selinux/targeted/contexts")).unwrap();
        fs::write(root.path().join("etc/selinux/config"), "# x\nSELINUX=enforcing\nSELINUXTYPE=targeted\n")
            .unwrap();
        fs::write(root.path().join("etc/selinux/targeted/contexts/lxc_contexts"), "process = \"a:b:c:s0\"\n")
            .unwrap();
        assert_eq!(SelinuxPolicy::find(root.path()).process, "a:b:c:s0");
        fs::create_dir_all(root.path().join("usr/share/containers/selinux")).unwrap();
        fs::write(root.path().join(CONTEXTS), "process = \"d:e:f:s0\"\n").unwrap();
        assert_eq!(SelinuxPolicy::find(root.path()).process, "d:e:f:s0");
    }

    #[test]
    fn a_level_is_of_two_categories_that_differ() {
        assert_eq!(level_of(5 + 3 * 1024, 1024).as_deref(), Some("s0:c3,c5"));
        assert_eq!((level_of(0, 1024), level_of(7, 0)), (None, None));
        assert_eq!(random_level(2), "s0:c0,c1");
        assert!(random_level(0).starts_with("s0:c"));
    }

    #[test]
    fn a_policy_without_labels_is_one_and_one_with_something_else_is_not() {
        let of = |process: &str, file: &str| SelinuxPolicy { process: process.into(), file: file.into() };
        assert!(of("", "").is_valid() && of("", "x").is_valid() && of("u:r:t:s0", "u:r:t").is_valid());
        assert!(!of("u:r:t:s0", "t").is_valid());
    }
}
