//! docs/traps.md and docs/runtime-traps.md: each test that is named after a trap is told there, with the file it stands in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// By `trap_04` or `rt_2_11`: the files with tests of that name.
type Held = BTreeMap<String, BTreeSet<String>>;

/// The trap that a test is named after.
fn trap(test: &str) -> Option<String> {
    let kind = ["trap", "rt"]
        .into_iter()
        .find(|kind| test.strip_prefix(kind).is_some_and(|rest| rest.starts_with('_')))?;
    let parts = test[kind.len() + 1..].split('_');
    let numbers: Vec<&str> = parts.take_while(|part| part.parse::<u8>().is_ok()).collect();
    (!numbers.is_empty()).then(|| format!("{kind}_{}", numbers.join("_")))
}

fn in_sources() -> Held {
    let mut held = Held::new();
    for (file, text) in super::sources() {
        if file.starts_with("xtask/") {
            continue;
        }
        let names = text.lines().filter_map(|line| line.split("fn ").nth(1)?.split('(').next());
        for trap in names.filter_map(trap) {
            held.entry(trap).or_default().insert(file.clone());
        }
    }
    held
}

/// Lines as "Tests: `rt_2_1_…` in `a.rs`, `b.rs`."
fn in_documents() -> Held {
    let mut held = Held::new();
    for page in ["docs/traps.md", "docs/runtime-traps.md"] {
        let text = fs::read_to_string(super::root().join(page)).unwrap();
        for line in text.lines().filter(|line| line.starts_with("Tests: ")) {
            let mut quoted = line.split('`').skip(1).step_by(2);
            let trap = quoted.next().and_then(|name| name.strip_suffix("_…")).unwrap().to_owned();
            held.insert(trap, quoted.map(str::to_owned).collect());
        }
    }
    held
}

#[test]
fn traps_are_told_with_the_tests_that_hold_them() {
    let (sources, documents) = (in_sources(), in_documents());
    assert!(sources.len() > 40, "only {} traps have tests", sources.len());
    let traps: BTreeSet<&String> = sources.keys().chain(documents.keys()).collect();
    let offenders: Vec<String> = traps
        .into_iter()
        .filter(|trap| sources.get(*trap) != documents.get(*trap))
        .map(|trap| format!("{trap}: tests in {:?}, told of {:?}", sources.get(trap), documents.get(trap)))
        .collect();
    super::assert_none("docs/traps.md and docs/runtime-traps.md name the tests of each trap", &offenders);
}

#[test]
fn a_tests_name_begins_with_its_trap() {
    assert_eq!(trap("trap_04_the_end").as_deref(), Some("trap_04"));
    assert_eq!(trap("rt_2_11_an_exec").as_deref(), Some("rt_2_11"));
    assert_eq!(trap("rt_4_a_removal_of_2").as_deref(), Some("rt_4"));
    assert_eq!((trap("rt_no"), trap("traps_4")), (None, None));
}
