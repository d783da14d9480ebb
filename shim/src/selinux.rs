//! SELinux on this node: whether it is on, what its policy has for containers, and the categories that keep
//! pods apart. Owns the levels that are handed out; what a label is made of is `spec::selinux`'s. Off unless the
//! configuration says so, as in containerd: then what requests say is checked and has no effect. Called by
//! `sandbox::run` and `container::create`.

mod relabel;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use gantry_base::selinux::{SelinuxContext, SelinuxPolicy, is_on, random_level};

use crate::spec::selinux::SelinuxOptions;

pub(crate) use relabel::{Error, tree};

/// A pair that nobody has is found soon, or most are taken.
const TRIES: usize = 64;

/// SELinux as found when the runtime started.
#[derive(Debug)]
pub(crate) struct Selinux {
    /// None where it is off.
    policy: Option<SelinuxPolicy>,
    categories: u32,
    given: Mutex<BTreeSet<String>>,
}

impl Selinux {
    /// Looks at the node. `categories`: how many there are, as in `selinux_category_range`.
    #[must_use]
    pub(crate) fn find(wanted: bool, categories: u32) -> Self {
        let on = wanted && is_on();
        if wanted && !on {
            tracing::warn!("Selinux is not supported");
        }
        Self::with(on.then(|| SelinuxPolicy::find(Path::new("/"))), categories)
    }

    fn with(policy: Option<SelinuxPolicy>, categories: u32) -> Self {
        // Two are needed for a pair; 0 is the usual number, as in containerd.
        let categories = if categories < 2 { 1024 } else { categories };
        Self { policy, categories, given: Mutex::default() }
    }

    /// The labels of a process and of its files, both empty where SELinux is off. `used` tells the labels of
    /// what is there.
    pub(crate) fn labels(&self, wanted: &SelinuxOptions, used: impl Fn() -> Vec<String>) -> (String, String) {
        let none = || (String::new(), String::new());
        self.policy.as_ref().map_or_else(none, |policy| policy.labels(wanted.parts(), || self.level(&used)))
    }

    /// A level that nothing on this node has. Those that were handed out are kept until they run short: what is
    /// being made has no record yet.
    fn level(&self, used: &impl Fn() -> Vec<String>) -> String {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.extend(levels(used()));
        loop {
            for _ in 0..TRIES {
                let level = random_level(self.categories);
                if given.insert(level.clone()) {
                    return level;
                }
            }
            *given = levels(used()).collect();
            if given.len() >= TRIES * TRIES {
                // More pods than a node holds: sharing is better than none.
                return random_level(self.categories);
            }
        }
    }
}

fn levels(labels: Vec<String>) -> impl Iterator<Item = String> {
    labels.into_iter().filter_map(|label| SelinuxContext::parse(&label)).map(|context| context.level)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(categories: u32) -> Selinux {
        let policy = SelinuxPolicy { process: "u:r:t:s0".into(), file: "u:o:f:s0".into() };
        Selinux::with(Some(policy), categories)
    }

    #[test]
    fn off_it_labels_nothing() {
        let off = Selinux::with(None, 0);
        assert_eq!(off.labels(&SelinuxOptions::default(), Vec::new), (String::new(), String::new()));
        // This very machine, whatever it has: not asked for is off.
        assert!(Selinux::find(false, 0).policy.is_none());
    }

    #[test]
    fn no_two_have_one_level_until_all_are_taken() {
        // Three categories make three pairs.
        let selinux = on(3);
        let mut seen = BTreeSet::from(["u:r:t:s0:c0,c1".to_owned()]);
        let used = seen.iter().cloned().collect::<Vec<_>>();
        for _ in 0..2 {
            let (process, file) = selinux.labels(&SelinuxOptions::default(), || used.clone());
            assert!(file.starts_with("u:o:f:s0:c") && file.ends_with(&process["u:r:t:".len()..]), "{file}");
            assert!(seen.insert(process), "{seen:?}");
        }
        // What has gone meanwhile is taken again.
        let again = selinux.labels(&SelinuxOptions::default(), || vec!["u:r:t:s0:c0,c1".to_owned()]).0;
        assert_ne!(again, "u:r:t:s0:c0,c1");
    }
}
