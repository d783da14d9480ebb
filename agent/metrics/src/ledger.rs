//! docs/ledger/metrics.md and docs/ledger/events.md against upstream's own lists and against the code:
//! each metric of the kubelet is served or absent for a reason, and so is each reason of its events.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::text::Kind;
use super::{Metrics, ProbeMetrics};

/// Families whose names are put together, by what they begin with.
const PREFIXES: [&str; 2] = ["container_fs_", "container_network_"];

/// Of a family.
const CHANGES: [&str; 7] = [".inc(", ".add(", ".set(", ".replace(", ".observe(", ".took(", ".of("];

fn root() -> PathBuf {
    // Not env!: checkouts that share a target folder share this binary.
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).ancestors().nth(2).unwrap().to_owned()
}

/// The code of the agent and of the kubelet's start by file; not the tests'.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open = vec![root().join("agent"), root().join("cli/src")];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is = |name: &str| path.file_name().is_some_and(|own| own == name);
            if path.is_dir() && !is("tests") {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs")
                && !is("tests.rs")
                && !is("ledger.rs")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned();
                found.push((path, code));
            }
        }
    }
    found
}

/// Every text without a space that it has.
fn texts() -> BTreeSet<String> {
    let plain = |code: String| -> Vec<String> {
        code.split('"').filter(|part| !part.contains(char::is_whitespace)).map(str::to_owned).collect()
    };
    sources().into_iter().flat_map(|(_, code)| plain(code)).collect()
}

/// Fields of the families that are declared, by their names in the text.
fn fields(declared: &str) -> Vec<(&str, &str)> {
    declared
        .lines()
        .filter_map(|line| {
            let (field, rest) = line.strip_prefix("    ")?.split_once(": ")?;
            let (kind, rest) = rest.split_once(" = \"")?;
            let of = ["Counter", "Gauge", "Histogram", "Asked"].iter().any(|of| kind.starts_with(of));
            of.then(|| (field, rest.split('"').next().unwrap()))
        })
        .collect()
}

/// The rows of a ledger: the first cell and the endpoint, if there is one, whether it is there, why not.
fn rows(file: &str) -> BTreeMap<(String, String), (bool, String)> {
    let text = std::fs::read_to_string(root().join("docs/ledger").join(file)).unwrap();
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> =
            line.strip_prefix('|').and_then(|line| line.strip_suffix('|')).unwrap().split('|').collect();
        let cells: Vec<&str> = cells.into_iter().map(|cell| cell.trim().trim_matches('`')).collect();
        let (name, at, what, why) = match cells[..] {
            [name, what, why] => (name, "", what, why),
            [name, at, what, why] => (name, at, what, why),
            _ => panic!("{line}"),
        };
        let there = matches!(what, "served" | "sent");
        assert!(there == why.is_empty() && (there || what == "absent"), "{line}");
        let row = found.insert((name.to_owned(), at.to_owned()), (there, why.to_owned()));
        assert_eq!(row, None, "twice: {line}");
    }
    found
}

fn is_in(texts: &BTreeSet<String>, name: &str) -> bool {
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    let pressure = name.starts_with("container_pressure_");
    texts.contains(name) || pressure || rest.is_some_and(|rest| texts.contains(rest))
}

fn check(file: &str, upstream: &BTreeSet<(String, String)>) {
    let (rows, texts) = (rows(file), texts());
    assert_eq!(rows.keys().cloned().collect::<BTreeSet<_>>(), *upstream, "{file}");
    let elsewhere: BTreeSet<&str> =
        rows.iter().filter(|(_, (there, _))| *there).map(|((name, _), _)| name.as_str()).collect();
    for ((name, at), (there, _)) in &rows {
        // The same name may be served at another endpoint.
        if !there && (elsewhere.contains(name.as_str())) {
            continue;
        }
        assert_eq!(*there, is_in(&texts, name), "{file}: {name} {at}");
    }
}

/// Endpoint, name, type, labels.
fn metrics() -> Vec<[&'static str; 4]> {
    let cells = |line: &'static str| {
        let cells: Vec<&str> = line.split('\t').collect();
        <[&str; 4]>::try_from(cells).unwrap()
    };
    include_str!("../../src/config/upstream/metrics.tsv").lines().map(cells).collect()
}

#[test]
fn every_metric_of_upstream_is_served_or_named_with_a_reason() {
    let upstream = metrics().iter().map(|[at, name, ..]| ((*name).to_owned(), (*at).to_owned())).collect();
    check("metrics.md", &upstream);
}

#[test]
fn somebody_changes_every_family_that_is_declared() {
    let all = sources();
    let home = |path: &PathBuf| path.ends_with("agent/metrics/src/lib.rs");
    let declared = all.iter().find(|(path, _)| home(path)).unwrap().1.clone();
    let code: String = all.iter().filter(|(path, _)| !home(path)).map(|(_, code)| code.as_str()).collect();
    // By a call on the family itself: a name that is only mentioned, or read, changes nothing.
    let used = |field: &str| {
        code.match_indices(&format!(".{field}")).any(|(at, found)| {
            let call = code[at + found.len()..].trim_start();
            CHANGES.iter().any(|change| call.starts_with(change))
        })
    };
    let fields = fields(&declared);
    assert!(fields.len() > 50, "{fields:?}");
    let idle: Vec<_> = fields.iter().filter(|(field, _)| !used(field)).collect();
    assert!(idle.is_empty(), "served and changed by nobody: {idle:?}");
}

#[test]
fn every_reason_of_upstreams_events_is_sent_or_named_with_a_reason() {
    let lines = include_str!("../../src/config/upstream/reasons.tsv").lines();
    let reasons = lines.map(|line| (line.split('\t').next().unwrap().to_owned(), String::new())).collect();
    check("events.md", &reasons);
}

#[test]
fn what_is_counted_has_upstreams_types_and_labels() {
    let ours: Vec<_> = [Metrics::default().heads(), ProbeMetrics::default().heads()].concat();
    let (mut names, mut wrong) = (BTreeSet::new(), Vec::new());
    for (name, kind, mut labels) in ours {
        assert!(names.insert(name), "{name} is declared twice");
        labels.sort_unstable();
        if name.starts_with("gantry_") {
            let text = std::fs::read_to_string(root().join("docs/ledger/metrics.md")).unwrap();
            assert!(text.contains(&format!("`{name}`")), "{name}: docs/ledger/metrics.md does not name it");
            continue;
        }
        let Some([_, _, of, with]) = metrics().into_iter().find(|[_, known, ..]| *known == name) else {
            wrong.push(format!("{name}: upstream has none of that name"));
            continue;
        };
        let fits = match of {
            "Counter" => kind == Kind::Counter,
            "Gauge" => kind == Kind::Gauge,
            "Histogram" => kind == Kind::Histogram,
            // Collected by hand; the list does not say as what.
            _ => true,
        };
        let mut with: Vec<&str> = with.split(',').filter(|label| !label.is_empty()).collect();
        with.sort_unstable();
        if !fits || labels != with {
            wrong.push(format!("{name}: {kind:?} {labels:?} is upstream's {of} {with:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
