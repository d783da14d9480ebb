//! `tests/suites.toml`: which specs, with which flags, how many at once. Owns its form; chooses nothing. Called by
//! `conformance`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Name;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Suites {
    node: Suite,
    e2e: Suite,
    #[serde(rename = "csi-hostpath")]
    csi_hostpath: Suite,
    conformance: Suite,
}

/// One program's part.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Suite {
    /// Specs at once: Ginkgo's processes.
    pub(super) processes: usize,
    /// Of the program, after `--`.
    pub(super) flags: Vec<String>,
    /// What `--all` takes, and what nothing takes.
    pub(super) focus: String,
    pub(super) skip: Vec<String>,
    /// The peer's results, from the root of the repository.
    pub(super) peer: PathBuf,
    /// The list, by what a kubelet has to deliver for it. Without one the suite is all that `focus` takes.
    #[serde(default)]
    specs: BTreeMap<String, Vec<String>>,
}

/// Regular expressions for Ginkgo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) focus: Vec<String>,
    pub(super) skip: Vec<String>,
}

impl Suites {
    pub(super) fn get(&self, name: Name) -> &Suite {
        match name {
            Name::Node => &self.node,
            Name::E2e => &self.e2e,
            Name::CsiHostpath => &self.csi_hostpath,
            Name::Conformance => &self.conformance,
        }
    }
}

impl Suite {
    /// Every spec of the list.
    pub(super) fn specs(&self) -> impl Iterator<Item = &str> {
        self.specs.values().flatten().map(String::as_str)
    }

    pub(super) fn everything(&self) -> Choice {
        Choice { focus: vec![self.focus.clone()], skip: self.skip.clone() }
    }

    /// Whether its focus is the list.
    pub(super) fn has_no_list(&self) -> bool {
        self.specs.is_empty()
    }

    pub(super) fn listed(&self) -> Choice {
        if self.has_no_list() {
            return self.everything();
        }
        Choice::named(self.specs())
    }
}

impl Choice {
    /// These specs and no others.
    pub(super) fn named<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        // Ginkgo searches in the suite's description, a space, and the spec's text.
        Self { focus: names.map(|name| format!(" {}$", escaped(name))).collect(), skip: Vec::new() }
    }

    /// Leaves it for the half inside: a list of regular expressions is too long for a command line that people see.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        for (name, lines) in [("focus", &self.focus), ("skip", &self.skip)] {
            std::fs::write(folder.join(name), lines.join("\n"))?;
        }
        Ok(())
    }

    pub(super) fn read(folder: &Path) -> Result<Self> {
        let lines = |name: &str| -> Result<Vec<String>> {
            let path = folder.join(name);
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        Ok(Self { focus: lines("focus")?, skip: lines("skip")? })
    }
}

/// Go's regexp.QuoteMeta.
fn escaped(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted
}

/// Reads the file.
pub(super) fn read(path: &Path) -> Result<Suites> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::conformance::report::{self, SpecOutcome};
    use crate::sh;

    fn suites() -> Suites {
        read(&sh::root().join("tests/suites.toml")).unwrap()
    }

    #[test]
    fn a_listed_spec_is_one_that_the_peer_passes_and_is_listed_once() {
        let suites = suites();
        for suite in [&suites.node, &suites.e2e] {
            let peer = report::peer(&sh::root().join(&suite.peer)).unwrap();
            let passed: BTreeSet<_> = peer
                .iter()
                .filter(|spec| spec.outcome == SpecOutcome::Passed)
                .map(|spec| spec.name.as_str())
                .collect();
            let mut seen = BTreeSet::new();
            for name in suite.specs() {
                assert!(passed.contains(name), "{name:?} does not pass on the peer");
                assert!(seen.insert(name), "{name:?} is listed twice");
            }
        }
    }

    #[test]
    fn the_lists_are_as_long_as_issue_5_wants_them() {
        let suites = suites();
        assert!(suites.e2e.specs().count() >= 50);
        assert!(suites.node.specs().count() >= 60);
        let lifecycle = suites.node.specs().filter(|name| name.contains("Containers Lifecycle")).count();
        assert!(lifecycle >= 15, "{lifecycle} of container_lifecycle");
        for line in ["4-registration", "5-pods", "6-volumes", "7-images", "8-server"] {
            let both = [&suites.node, &suites.e2e];
            let count: usize = both.iter().map(|suite| suite.specs.get(line).map_or(0, Vec::len)).sum();
            assert!(count >= 6, "{line} has {count}");
        }
    }

    #[test]
    fn conformance_is_all_of_upstreams_446() {
        let suite = suites().conformance;
        let names = report::peer(&sh::root().join(&suite.peer)).unwrap();
        assert_eq!(names.len(), 446);
        assert!(names.iter().all(|spec| spec.name.contains("[Conformance]")));
        assert_eq!(suite.listed(), suite.everything());
    }

    #[test]
    fn a_name_is_found_as_it_is_and_not_as_a_pattern() {
        assert_eq!(escaped("a (b) [c] d.e?"), r"a \(b\) \[c\] d\.e\?");
    }
}
