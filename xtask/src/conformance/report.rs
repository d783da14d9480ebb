//! What a suite said, beside what it says of the peer: Ginkgo's JSON report, the peer's list, the table. Owns the
//! comparison; runs nothing. Called by `conformance`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// How a spec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpecOutcome {
    Passed,
    Failed,
    /// It ran into its own reason not to
    Skipped,
}

/// One spec.
#[derive(Debug, Clone)]
pub(super) struct SpecResult {
    /// Its outermost container's text.
    pub(super) group: String,
    /// All its texts.
    pub(super) name: String,
    pub(super) outcome: SpecOutcome,
    pub(super) seconds: f64,
    /// The first line of what failed.
    pub(super) said: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GinkgoReport {
    #[serde(default)]
    spec_reports: Option<Vec<Single>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Single {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    run_time: u64,
    #[serde(default)]
    failure: GinkgoFailure,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GinkgoFailure {
    #[serde(default)]
    message: String,
}

/// Reads Ginkgo's report. Specs that were not chosen are in it as skipped without having run; they are left out. A node
/// that is not a spec counts only when it failed, since then none of the specs ran.
pub(super) fn read(path: &Path) -> Result<Vec<SpecResult>> {
    let bytes =
        std::fs::read(path).with_context(|| format!("the suite left no report: {}", path.display()))?;
    let reports: Vec<GinkgoReport> =
        serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?;
    let singles = reports.into_iter().filter_map(|report| report.spec_reports).flatten();
    Ok(singles.filter_map(Single::spec).collect())
}

impl Single {
    fn spec(self) -> Option<SpecResult> {
        let texts = self.container_hierarchy_texts.unwrap_or_default();
        let outcome = match self.state.as_str() {
            "passed" => SpecOutcome::Passed,
            // Skipped by a filter it has not even begun.
            "skipped" | "pending" if self.failure.message.is_empty() => return None,
            "skipped" | "pending" => SpecOutcome::Skipped,
            _ => SpecOutcome::Failed,
        };
        if self.leaf_node_type != "It" && outcome != SpecOutcome::Failed {
            return None;
        }
        let group = texts.first().cloned().unwrap_or_else(|| format!("[{}]", self.leaf_node_type));
        let words = texts.iter().map(String::as_str).chain([self.leaf_node_text.as_str()]);
        let name = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        let said = self.failure.message.lines().next().unwrap_or_default().to_owned();
        #[expect(clippy::cast_precision_loss, reason = "seconds, for people")]
        let seconds = self.run_time as f64 / 1e9;
        Some(SpecResult { group, name, outcome, seconds, said })
    }
}

/// Reads a peer's list: outcome, seconds, name, parted by tabs.
pub(super) fn peer(path: &Path) -> Result<Vec<SpecResult>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let line = |line: &str| -> Option<SpecResult> {
        let mut words = line.splitn(3, '\t');
        let outcome = match words.next()? {
            "passed" => SpecOutcome::Passed,
            "failed" => SpecOutcome::Failed,
            "skipped" => SpecOutcome::Skipped,
            _ => return None,
        };
        let seconds = words.next()?.parse().ok()?;
        let name = words.next()?.to_owned();
        Some(SpecResult { group: String::new(), name, outcome, seconds, said: String::new() })
    };
    let specs: Option<Vec<SpecResult>> = text.lines().map(line).collect();
    specs.with_context(|| format!("{}: not a list of outcome, seconds and name", path.display()))
}

/// All of it, sorted.
#[derive(Debug)]
pub(super) struct SpecTable {
    groups: BTreeMap<String, SpecGroup>,
    /// Name and what was said.
    failed: Vec<(String, String)>,
    /// Passed on the peer and failed, skipped or not here: what counts.
    worse: BTreeSet<String>,
    /// Failed on the peer too.
    as_peer: BTreeSet<String>,
    /// Passed when they ran again, alone.
    alone: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct SpecGroup {
    passed: usize,
    failed: usize,
    skipped: usize,
    seconds: f64,
}

impl SpecTable {
    /// `expected` are names that must have run.
    pub(super) fn new(specs: Vec<SpecResult>, peer: &[SpecResult], expected: &[&str]) -> Self {
        let peer: BTreeMap<&str, SpecOutcome> =
            peer.iter().map(|spec| (spec.name.as_str(), spec.outcome)).collect();
        let mut table = Self {
            groups: BTreeMap::new(),
            failed: Vec::new(),
            worse: BTreeSet::new(),
            as_peer: BTreeSet::new(),
            alone: BTreeSet::new(),
        };
        let mut missing: BTreeSet<&str> = expected.iter().copied().collect();
        for spec in specs {
            missing.remove(spec.name.as_str());
            let group = table.groups.entry(spec.group).or_default();
            group.seconds += spec.seconds;
            match spec.outcome {
                SpecOutcome::Passed => group.passed += 1,
                SpecOutcome::Failed => group.failed += 1,
                SpecOutcome::Skipped => group.skipped += 1,
            }
            match (spec.outcome, peer.get(spec.name.as_str())) {
                (SpecOutcome::Passed, _) => {}
                (_, Some(SpecOutcome::Passed)) | (SpecOutcome::Failed, None) => {
                    table.worse.insert(spec.name.clone());
                }
                (SpecOutcome::Failed, Some(_)) => {
                    table.as_peer.insert(spec.name.clone());
                }
                (SpecOutcome::Skipped, _) => {}
            }
            if spec.outcome != SpecOutcome::Passed {
                table.failed.push((spec.name, spec.said));
            }
        }
        table.worse.extend(missing.iter().map(|&name| name.to_owned()));
        let unsaid = missing.into_iter().map(|name| (name.to_owned(), "did not run".to_owned()));
        table.failed.extend(unsaid);
        table
    }

    /// What is worse than on the peer, by name.
    pub(super) fn worse(&self) -> impl Iterator<Item = &str> {
        self.worse.iter().map(String::as_str)
    }

    /// Another run of what was worse: what passed in it is worse no more.
    pub(super) fn again(&mut self, specs: &[SpecResult]) {
        for spec in specs.iter().filter(|spec| spec.outcome == SpecOutcome::Passed) {
            if self.worse.remove(&spec.name) {
                self.alone.insert(spec.name.clone());
            }
        }
    }

    /// Whether nothing is worse than on the peer, and something ran.
    pub(super) fn is_green(&self) -> bool {
        let has_passed = !self.alone.is_empty() || self.groups.values().any(|group| group.passed > 0);
        self.worse.is_empty() && has_passed
    }

    /// For people.
    pub(super) fn markdown(&self) -> String {
        let mut text =
            String::from("| group | passed | failed | skipped | seconds |\n|---|---|---|---|---|\n");
        let mut total = SpecGroup::default();
        for (name, group) in &self.groups {
            let SpecGroup { passed, failed, skipped, seconds } = group;
            // A string takes everything.
            let _ = writeln!(text, "| {name} | {passed} | {failed} | {skipped} | {seconds:.0} |");
            total.passed += passed;
            total.failed += failed;
            total.skipped += skipped;
            total.seconds += seconds;
        }
        let SpecGroup { passed, failed, skipped, seconds } = total;
        let _ = writeln!(text, "| **all** | {passed} | {failed} | {skipped} | {seconds:.0} |");
        let _ = writeln!(text, "\n{} specs are worse than on the peer.", self.worse.len());
        for (name, said) in &self.failed {
            let mark = match (self.worse.contains(name), self.as_peer.contains(name)) {
                (true, _) => "worse",
                (_, true) => "as on the peer",
                _ if self.alone.contains(name) => "passed when it ran again, alone",
                _ => "not known of the peer",
            };
            let _ = writeln!(text, "- {name} ({mark}): {said}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, outcome: SpecOutcome) -> SpecResult {
        SpecResult { group: "g".into(), name: name.into(), outcome, seconds: 1.0, said: String::new() }
    }

    #[test]
    fn skipped_and_missing_count_as_failed_where_the_peer_passes() {
        let names = ["a", "b", "c", "d"];
        let mut peer: Vec<SpecResult> = names.iter().map(|name| spec(name, SpecOutcome::Passed)).collect();
        peer.push(spec("known", SpecOutcome::Failed));
        let ours = vec![
            spec("a", SpecOutcome::Passed),
            spec("b", SpecOutcome::Failed),
            spec("c", SpecOutcome::Skipped),
            spec("known", SpecOutcome::Failed),
        ];
        let table = SpecTable::new(ours, &peer, &names);
        assert_eq!(table.worse.iter().collect::<Vec<_>>(), ["b", "c", "d"]);
        assert!(!table.is_green());
        let fine = SpecTable::new(
            vec![spec("a", SpecOutcome::Passed), spec("known", SpecOutcome::Failed)],
            &peer,
            &["a"],
        );
        assert!(fine.is_green());
        assert!(fine.markdown().contains("| **all** | 1 | 1 | 0 | 2 |"), "{}", fine.markdown());
    }

    #[test]
    fn what_passes_when_it_runs_again_alone_is_not_worse() {
        let peer = ["a", "b", "c"].map(|name| spec(name, SpecOutcome::Passed));
        let first = ["a", "b", "c"].map(|name| spec(name, SpecOutcome::Failed));
        let mut table = SpecTable::new(first.to_vec(), &peer, &[]);
        table.again(&[spec("a", SpecOutcome::Passed), spec("b", SpecOutcome::Skipped)]);
        assert_eq!(table.worse().collect::<Vec<_>>(), ["b", "c"]);
        let text = table.markdown();
        assert!(text.contains("- a (passed when it ran again, alone)"), "{text}");
        table.again(&[spec("b", SpecOutcome::Passed), spec("c", SpecOutcome::Passed)]);
        assert!(table.is_green());
    }

    #[test]
    fn a_run_without_specs_is_not_green() {
        assert!(!SpecTable::new(Vec::new(), &[], &[]).is_green());
    }

    #[test]
    fn ginkgos_report_is_read_without_those_that_were_not_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let one = |kind: &str, state: &str, message: &str| {
            serde_json::json!({
                "ContainerHierarchyTexts": ["[sig-node] G", "when"], "LeafNodeType": kind, "LeafNodeText": "it does",
                "State": state, "RunTime": 1_500_000_000_u64, "Failure": { "Message": message },
            })
        };
        let specs = [
            one("It", "passed", ""),
            one("It", "skipped", ""),
            one("It", "skipped", "no GPU\nhere"),
            one("It", "timedout", "late"),
            one("ReportAfterSuite", "passed", ""),
            one("SynchronizedBeforeSuite", "failed", "no API"),
        ];
        std::fs::write(&path, serde_json::to_vec(&serde_json::json!([{ "SpecReports": specs }])).unwrap())
            .unwrap();
        let read = read(&path).unwrap();
        let seen: Vec<_> = read.iter().map(|spec| (spec.outcome, spec.said.as_str())).collect();
        assert_eq!(
            seen,
            [
                (SpecOutcome::Passed, ""),
                (SpecOutcome::Skipped, "no GPU"),
                (SpecOutcome::Failed, "late"),
                (SpecOutcome::Failed, "no API"),
            ]
        );
        assert_eq!(
            (read[0].name.as_str(), read[0].group.as_str()),
            ("[sig-node] G when it does", "[sig-node] G")
        );
    }
}
