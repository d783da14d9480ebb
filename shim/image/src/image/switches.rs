//! What makes pulls fast and can be left out, so that a bench can tell what each is worth. Owns the names; each
//! user of one asks here. Set by the runtime's `pull_without`.

use std::fmt;
use std::str::FromStr;

/// One way in which pulls are made fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimisation {
    /// Several layers of an image at the same time.
    SideBySide,
    /// Pipes of 1 MiB to and from the confined processes, instead of the kernel's 64 KiB.
    LargePipes,
    /// An image is usable before it is durable.
    SyncBehind,
    /// Large layers come in pieces by several connections where one is slow.
    Pieces,
    /// The largest layers of an image begin first, instead of the base.
    LargestFirst,
    /// Whoever unpacks works in batches (`SCHED_BATCH`).
    Batches,
}

/// No optimisation of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no optimisation of pulls is called {name:?}: there are {}", NAMES.map(|(name, _)| name).join(", "))]
pub struct UnknownOptimisation {
    name: String,
}

pub(super) const NAMES: [(&str, Optimisation); 6] = [
    ("side-by-side", Optimisation::SideBySide),
    ("large-pipes", Optimisation::LargePipes),
    ("sync-behind", Optimisation::SyncBehind),
    ("pieces", Optimisation::Pieces),
    ("largest-first", Optimisation::LargestFirst),
    ("batches", Optimisation::Batches),
];

/// Those that are left out.
#[derive(Debug, Clone, Default)]
pub struct Switches(Vec<Optimisation>);

impl Switches {
    /// All but these.
    #[must_use]
    pub fn without(these: Vec<Optimisation>) -> Self {
        Self(these)
    }

    pub(super) fn has(&self, one: Optimisation) -> bool {
        !self.0.contains(&one)
    }
}

impl fmt::Display for Optimisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = NAMES.iter().find(|(_, one)| one == self);
        f.write_str(own.map(|(name, _)| *name).unwrap_or_default())
    }
}

impl FromStr for Optimisation {
    type Err = UnknownOptimisation;

    fn from_str(name: &str) -> Result<Self, UnknownOptimisation> {
        let found = NAMES.iter().find(|(own, _)| *own == name).map(|(_, one)| *one);
        found.ok_or_else(|| UnknownOptimisation { name: super::digest::clip(name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_on_but_what_is_named() {
        let one: Optimisation = "large-pipes".parse().unwrap();
        assert_eq!(one.to_string(), "large-pipes");
        let switches = Switches::without(vec![one]);
        assert!(!switches.has(Optimisation::LargePipes) && switches.has(Optimisation::SideBySide));
        let error = "x".parse::<Optimisation>().unwrap_err().to_string();
        assert_eq!(
            error,
            "no optimisation of pulls is called \"x\": there are side-by-side, large-pipes, sync-behind, pieces, \
             largest-first, batches"
        );
    }
}
