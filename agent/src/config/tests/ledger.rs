//! docs/ledger/kubelet-flags.md and docs/ledger/kubelet-config.md against upstream's own lists: each
//! flag and field is honoured (and the test named exists, and is one of behaviour), refused, or inert.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::config::{flag, refused};

fn root() -> PathBuf {
    // Not env!: checkouts that share a target folder share this binary.
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).parent().unwrap().to_owned()
}

/// Tests of files that begin so see that a setting is read and handed on, not what it does.
const READERS: [&str; 2] = ["agent/src/config", "agent/src/kubelet/wiring"];

/// Names of all test functions.
#[derive(Default)]
struct Tests {
    /// Of all but the readers.
    doing: BTreeSet<String>,
}

impl Tests {
    fn find() -> Self {
        let mut tests = Self::default();
        let mut open: Vec<PathBuf> =
            ["agent", "cli/src", "tests"].iter().map(|folder| root().join(folder)).collect();
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    open.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let names = tests_in(&std::fs::read_to_string(&path).unwrap());
                    let own = path.strip_prefix(root()).unwrap().to_string_lossy();
                    if !READERS.iter().any(|reader| own.starts_with(reader)) {
                        tests.doing.extend(names);
                    }
                }
            }
        }
        tests
    }

    /// Whether an honoured row names a test that would fail.
    fn hold(&self, test: &str) -> bool {
        self.doing.contains(test)
    }
}

/// Functions that stand below a `#[test]` or `#[tokio::test…]`, whatever attributes lie between.
pub(crate) fn tests_in(text: &str) -> BTreeSet<String> {
    let (mut names, mut is_test) = (BTreeSet::new(), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, rest)) = line.split_once("fn ") {
            names.extend(rest.split('(').next().filter(|_| is_test).map(str::to_owned));
            is_test = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            is_test = false;
        }
    }
    names
}

#[test]
fn only_tests_are_tests() {
    let text = "#[test]\nfn a() {}\nfn b() {}\n#[tokio::test(start_paused = true)]\n// why\n#[cfg(unix)]\nasync fn c() {}\n";
    assert_eq!(tests_in(text), BTreeSet::from(["a".to_owned(), "c".to_owned()]));
}

/// The rows of a table: name, status.
fn rows(file: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(root().join("docs/ledger").join(file)).unwrap();
    let (tests, mut found, mut wrong) = (Tests::find(), BTreeMap::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [name, status, note] = cells[..] else { panic!("{line}") };
        let fine = match status {
            "honoured" => tests.hold(note),
            "refused" | "inert" | "field" => !note.is_empty(),
            _ => false,
        };
        if !fine || found.insert(name.to_owned(), status.to_owned()).is_some() {
            wrong.push(line);
        }
    }
    assert!(
        wrong.is_empty(),
        "no such test or status, one of the reading alone, no reason, or twice:\n{}",
        wrong.join("\n")
    );
    found
}

#[test]
fn every_flag_of_upstream_is_honoured_refused_or_inert() {
    let rows = rows("kubelet-flags.md");
    let names: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
    assert_eq!(names, flag::all().iter().map(|flag| flag.name).collect());
    for flag in flag::all() {
        let is_field = rows[flag.name] == "field";
        assert_eq!(is_field, !flag.field.is_empty(), "--{}", flag.name);
    }
    for (name, status) in &rows {
        assert_eq!(status == "refused", refused::FLAGS.iter().any(|(flag, _)| flag == name), "--{name}");
        assert_eq!(status == "inert", refused::INERT_FLAGS.iter().any(|(flag, _)| flag == name), "--{name}");
    }
}

#[test]
fn every_field_of_upstream_is_honoured_refused_or_inert() {
    let rows = rows("kubelet-config.md");
    let upstream: BTreeSet<&str> =
        include_str!("../upstream/fields.tsv").lines().filter_map(|line| line.split('\t').next()).collect();
    let names: BTreeSet<&str> = rows.keys().map(String::as_str).collect();
    assert_eq!(names, upstream);
    let below = |list: &[(&str, &str)], name: &str| {
        list.iter().any(|(path, _)| name == *path || name.starts_with(&format!("{path}.")))
    };
    for (name, status) in &rows {
        // These are refused or not by their value, and have tests of their own.
        if matches!(name.as_str(), "cgroupDriver" | "singleProcessOOMKill" | "runOnce") {
            continue;
        }
        assert_eq!(status == "refused", below(&refused::FIELDS, name), "{name}");
        assert_eq!(status == "inert", below(&refused::INERT, name), "{name}");
    }
}
