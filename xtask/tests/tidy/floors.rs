//! The floors of each crate: which of its top modules stands above which, as ARCHITECTURE.md lists them, held against
//! what the sources import (`imports`). A module imports from floors below its own, never from its own or one above.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{Import, Imports, imports};

/// Whose floors ARCHITECTURE.md lists.
pub(crate) const CRATES: [&str; 11] = [
    "agent/kubeclient/src",
    "agent/model/src",
    "agent/server/src",
    "agent/src",
    "cni/src",
    "shim/image/src",
    "shim/inflate/src",
    "shim/monitor/src",
    "shim/src",
    "shim/unpack/src",
    "systemd/src",
];

/// Crate by crate: its floors from the top down, each with its modules.
pub(crate) type Floors = BTreeMap<String, Vec<Vec<String>>>;

/// Reads the blocks that open with "```floors CRATE".
pub(crate) fn listed(architecture: &str) -> Floors {
    let mut floors = Floors::new();
    let mut open: Option<&str> = None;
    for line in architecture.lines() {
        if line.starts_with("```") {
            open = line.strip_prefix("```floors ");
        } else if let Some(name) = open {
            floors
                .entry(name.to_owned())
                .or_default()
                .push(line.split_whitespace().map(str::to_owned).collect());
        }
    }
    floors
}

/// What is wrong with one crate, a line for each fault.
pub(crate) fn faults(name: &str, floors: &[Vec<String>], read: &Imports) -> Vec<String> {
    let mut faults = unlisted(name, floors, &read.modules);
    let height = heights(floors);
    let mut wrong: BTreeMap<(&str, &str), Vec<&Import>> = BTreeMap::new();
    for import in &read.all {
        let (Some(from), Some(to)) = (height.get(import.from.as_str()), height.get(import.to.as_str()))
        else {
            if read.modules.contains(&import.to) {
                continue; // Said by `unlisted`.
            }
            faults.push(format!(
                "{}:{}: {} imports `{}` from the crate's root, which stands above all: give it a module",
                import.file, import.line, import.from, import.path
            ));
            continue;
        };
        if to >= from {
            wrong.entry((&import.from, &import.to)).or_default().push(import);
        }
    }
    for ((from, to), arrows) in &wrong {
        let below: Vec<&str> =
            floors[floors.len() - height[from]..].iter().flatten().map(String::as_str).collect();
        let way = if height[to] == height[from] { "beside it" } else { "above it" };
        for arrow in arrows {
            faults.push(format!(
                "{}:{}: {from} imports {}, which stands {way}; {from} may import {}",
                arrow.file,
                arrow.line,
                arrow.path,
                if below.is_empty() { "nothing of its crate".to_owned() } else { below.join(", ") }
            ));
        }
    }
    faults
}

/// Modules that no floor lists, and listed ones that are none or stand twice.
fn unlisted(name: &str, floors: &[Vec<String>], modules: &BTreeSet<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for module in floors.iter().flatten() {
        if !seen.insert(module) {
            faults.push(format!("ARCHITECTURE.md lists {module} twice among the floors of {name}"));
        }
        if !modules.contains(module) {
            faults.push(format!("ARCHITECTURE.md lists {module} among the floors of {name}: there is none"));
        }
    }
    faults.extend(modules.iter().filter(|module| !seen.contains(module)).map(|module| {
        format!("{name}/{module} stands on no floor: list it in ARCHITECTURE.md, above all that it imports")
    }));
    faults
}

/// How many floors are at or below a module's: the ground is 0.
fn heights(floors: &[Vec<String>]) -> BTreeMap<&str, usize> {
    floors
        .iter()
        .rev()
        .enumerate()
        .flat_map(|(height, floor)| floor.iter().map(move |module| (module.as_str(), height)))
        .collect()
}

/// How many modules import each other in a loop.
pub(crate) fn in_loops(read: &Imports) -> usize {
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in &read.all {
        arrows.entry(&import.from).or_default().insert(&import.to);
    }
    let comes_back = |module: &&String| {
        let mut ahead: Vec<&str> = arrows.get(module.as_str()).into_iter().flatten().copied().collect();
        let mut seen = BTreeSet::new();
        while let Some(next) = ahead.pop() {
            if seen.insert(next) {
                ahead.extend(arrows.get(next).into_iter().flatten());
            }
        }
        seen.contains(module.as_str())
    };
    read.modules.iter().filter(comes_back).count()
}

#[test]
fn modules_import_from_floors_below_their_own() {
    let architecture = std::fs::read_to_string(super::root().join("ARCHITECTURE.md")).unwrap();
    let listed = listed(&architecture);
    let sources = super::sources();
    let mut offenders = Vec::new();
    for name in CRATES {
        let read = imports(name, &sources);
        println!("{name}: {} modules, {} of them in loops", read.modules.len(), in_loops(&read));
        match listed.get(name) {
            Some(floors) => offenders.extend(faults(name, floors, &read)),
            None => offenders.push(format!("ARCHITECTURE.md has no floors of {name}")),
        }
    }
    super::assert_none("a module imports from floors below its own (ARCHITECTURE.md, Floors)", &offenders);
}

/// Crates whose modules ARCHITECTURE.md describes one by one.
const DESCRIBED: [&str; 3] = ["agent/server/src", "agent/src", "shim/src"];

#[test]
fn each_module_has_a_line_in_the_map() {
    let architecture = std::fs::read_to_string(super::root().join("ARCHITECTURE.md")).unwrap();
    let sources = super::sources();
    let mut missing = Vec::new();
    for name in DESCRIBED {
        for module in imports(name, &sources).modules {
            let row = format!("| `{name}/{module}.rs` | ");
            if architecture.lines().filter(|line| line.starts_with(&row)).count() != 1 {
                missing.push(format!("{name}/{module}.rs"));
            }
        }
    }
    super::assert_none("ARCHITECTURE.md has one line for each module", &missing);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arrows: &[(&str, &str)]) -> Imports {
        let import = |(from, to): &(&str, &str)| Import {
            from: (*from).to_owned(),
            to: (*to).to_owned(),
            file: format!("c/src/{from}.rs"),
            line: 7,
            path: (*to).to_owned(),
        };
        Imports {
            modules: ["pod", "runtime", "volumes", "model"].map(str::to_owned).into(),
            all: arrows.iter().map(import).collect(),
        }
    }

    fn judged(arrows: &[(&str, &str)]) -> Vec<String> {
        let floors = listed("```floors c/src\npod\nruntime volumes\nmodel\n```\n```text\nother\n```\n");
        faults("c/src", &floors["c/src"], &read(arrows))
    }

    const DOWN: [(&str, &str); 3] = [("pod", "runtime"), ("pod", "model"), ("volumes", "model")];

    #[test]
    fn arrows_down_are_right_and_one_up_or_sideways_is_named_with_what_is_allowed() {
        assert_eq!(judged(&DOWN), Vec::<String>::new());
        assert_eq!(
            judged(&[DOWN[0], ("volumes", "pod"), ("runtime", "volumes"), ("model", "pod")]),
            [
                "c/src/model.rs:7: model imports pod, which stands above it; model may import nothing of its crate",
                "c/src/runtime.rs:7: runtime imports volumes, which stands beside it; runtime may import model",
                "c/src/volumes.rs:7: volumes imports pod, which stands above it; volumes may import model",
            ]
        );
    }

    #[test]
    fn a_module_without_a_floor_and_a_floor_without_its_module_are_faults() {
        let floors = listed("```floors c/src\npod gone\nruntime pod\nmodel\n```\n");
        assert_eq!(faults("c/src", &floors["c/src"], &read(&[])).len(), 3);
        assert_eq!(
            judged(&[("model", "SEED")]),
            [
                "c/src/model.rs:7: model imports `SEED` from the crate's root, which stands above all: give it a module"
            ]
        );
    }

    #[test]
    fn modules_that_import_each_other_are_counted() {
        assert_eq!(in_loops(&read(&DOWN)), 0);
        assert_eq!(
            in_loops(&read(&[DOWN[0], ("runtime", "volumes"), ("volumes", "pod"), ("pod", "model")])),
            3
        );
    }
}
