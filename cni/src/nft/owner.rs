//! Whose a rule or an element is: hashes that comments begin with, and that keys are made of.
//!
//! Owns the form of both, which outlives this program in the kernel; pure. Called by `table` and `members`.

use crate::request::{AttachmentTarget, NodeDirs, ValidAttachment};

/// Digits of a hash in a comment.
const DIGITS: usize = 16;

/// An attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleOwner {
    network: u64,
    instance: u64,
}

impl RuleOwner {
    pub(crate) fn of(target: AttachmentTarget<'_>) -> RuleOwner {
        RuleOwner::new(target.network, target.home, target.container_id, target.ifname)
    }

    pub(crate) fn new(network: &str, home: NodeDirs<'_>, container_id: &str, ifname: &str) -> RuleOwner {
        RuleOwner { network: network_of(network, home), instance: hash(&[container_id, ifname]) }
    }

    /// None of the attachments, for what is told of a thing of this name: no network's hash is 0.
    pub(super) fn thing(name: &str) -> RuleOwner {
        RuleOwner { network: 0, instance: hash(&[name]) }
    }

    /// What its comments begin with.
    pub(crate) fn prefix(&self) -> String {
        format!("{:016x}-{:016x}", self.network, self.instance)
    }

    /// Who is meant by a comment; none by those that say something else.
    pub(super) fn read(comment: &str) -> Option<RuleOwner> {
        let hash = |from: usize| {
            let digits = comment.get(from..from + DIGITS)?;
            let is_ours = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            is_ours.then(|| u64::from_str_radix(digits, 16).ok())?
        };
        let (network, instance) = (hash(0)?, hash(DIGITS + 1)?);
        comment.get(DIGITS..)?.starts_with('-').then_some(RuleOwner { network, instance })
    }

    /// The key of its address of this number, as `nft` shows it: `mark . mark . mark . mark . mark`.
    pub(super) fn key(&self, number: u32) -> Vec<u8> {
        let hashes = [self.network.to_be_bytes(), self.instance.to_be_bytes()];
        let words = hashes.as_flattened().as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word));
        words.chain([number]).flat_map(u32::to_ne_bytes).collect()
    }

    pub(super) fn read_key(key: &[u8]) -> Option<RuleOwner> {
        let mut words = key.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_ne_bytes(*word)));
        let mut hash = || Some(words.next()? << 32 | words.next()?);
        Some(RuleOwner { network: hash()?, instance: hash()? })
    }
}

/// GC must not take another node's rules for garbage: it does not know what is valid there.
fn network_of(network: &str, home: NodeDirs<'_>) -> u64 {
    if home.is_default_dirs() {
        return hash(&[network]);
    }
    hash(&[network, &home.data_dir.to_string_lossy(), &home.cache_dir.to_string_lossy()])
}

/// FNV-1a, 64 bits: the same in every version of this program, since rules outlive it.
fn hash(parts: &[&str]) -> u64 {
    parts
        .iter()
        .flat_map(|part| part.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Which attachments of a network are none of these.
pub(crate) fn garbage(
    network: &str,
    home: NodeDirs<'_>,
    valid: &[ValidAttachment],
) -> impl Fn(&RuleOwner) -> bool + use<> {
    let of_network = network_of(network, home);
    let valid: Vec<_> =
        valid.iter().map(|valid| RuleOwner::new(network, home, &valid.container_id, &valid.ifname)).collect();
    move |owner| owner.network == of_network && !valid.contains(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_apart() {
        let usual = NodeDirs::default_dirs();
        let owner = RuleOwner::new("net", usual, "c1", "eth0");
        assert_eq!(owner, RuleOwner::new("net", usual, "c1", "eth0"));
        for other in [
            RuleOwner::new("net2", usual, "c1", "eth0"),
            RuleOwner::new("net", usual, "c1e", "th0"),
            RuleOwner::new("net", usual, "c1", "eth1"),
        ] {
            assert_ne!(owner.prefix(), other.prefix());
            assert_ne!(owner.key(0), other.key(0));
        }
        assert_ne!(owner.key(0), owner.key(1));
    }

    #[test]
    fn an_owner_is_read_from_comments_and_keys() {
        let owner = RuleOwner { network: 0x0123_4567_89ab_cdef, instance: 0xfedc_ba98_7654_3210 };
        assert_eq!(owner.prefix(), "0123456789abcdef-fedcba9876543210");
        assert_eq!(RuleOwner::read("0123456789abcdef-fedcba9876543210 shop/web"), Some(owner.clone()));
        for other in
            ["0123456789abcdef-fedcba987654321", "0123456789abcdef+fedcba9876543210", "pods-10.0.0.0/8", ""]
        {
            assert_eq!(RuleOwner::read(other), None, "{other}");
        }
        assert_eq!(RuleOwner::read_key(&owner.key(7)), Some(owner.clone()));
        assert_eq!(RuleOwner::read_key(&owner.key(7)[..15]), None);
    }

    #[test]
    fn another_nodes_network_of_the_same_name_is_another_network() {
        let usual = NodeDirs::default_dirs();
        let [data, cache] = ["/a", "/b"].map(std::path::Path::new);
        let networks = [
            usual,
            NodeDirs { data_dir: data, ..usual },
            NodeDirs { cache_dir: cache, ..usual },
            NodeDirs { data_dir: data, cache_dir: cache },
        ]
        .map(|home| network_of("net", home));
        let distinct: std::collections::BTreeSet<_> = networks.iter().collect();
        assert_eq!(distinct.len(), networks.len());
        // Rules outlive this program: those of the usual folders keep their name.
        assert_eq!(networks.first().unwrap(), &hash(&["net"]));
    }

    #[test]
    fn garbage_is_of_the_network_and_not_valid() {
        let usual = NodeDirs::default_dirs();
        let valid = ValidAttachment { container_id: "c1".into(), ifname: "eth0".into() };
        let is_garbage = garbage("net", usual, &[valid]);
        assert!(!is_garbage(&RuleOwner::new("net", usual, "c1", "eth0")));
        assert!(is_garbage(&RuleOwner::new("net", usual, "c1", "eth1")));
        assert!(is_garbage(&RuleOwner::new("net", usual, "c2", "eth0")));
        assert!(!is_garbage(&RuleOwner::new("other", usual, "c2", "eth0")));
    }
}
