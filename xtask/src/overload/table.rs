//! The nodes side by side, in Markdown. Pure. Called by `overload`.

use std::collections::BTreeMap;

use super::judge::{faults, is_lost};
use super::seen::{Overload, PodSeen};

const CLASSES: [&str; 3] = ["Guaranteed", "Burstable", "BestEffort"];

/// A figure of a class: what it is called, and how it is read from the class's pods on a node that is Ready or not.
type Figure = (&'static str, fn(&[&PodSeen], bool) -> String);

const FIGURES: [Figure; 6] = [
    ("pods made", |pods, _| pods.len().to_string()),
    ("keepers lost", |pods, ready| {
        let keepers = pods.iter().filter(|pod| pod.keeper);
        format!("{} of {}", keepers.clone().filter(|pod| is_lost(pod, ready)).count(), keepers.count())
    }),
    ("evicted, by signal", |pods, _| by(pods.iter().filter_map(|pod| pod.signal()))),
    ("failed otherwise", |pods, _| {
        let failed = pods.iter().filter(|pod| pod.phase == "Failed" && pod.signal().is_none());
        by(failed.map(|pod| if pod.reason.is_empty() { "without a reason" } else { &pod.reason }))
    }),
    ("containers OOM killed", |pods, _| {
        pods.iter().map(|pod| pod.oom_killed.len()).sum::<usize>().to_string()
    }),
    ("restarts", |pods, _| pods.iter().map(|pod| pod.restarts).sum::<u64>().to_string()),
];

/// Counts of each, in one cell.
fn by<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    let all: usize = counts.values().sum();
    let each: Vec<String> = counts.iter().map(|(word, count)| format!("{word} {count}")).collect();
    if all == 0 { "0".to_owned() } else { format!("{all}: {}", each.join(", ")) }
}

/// All of it.
pub(super) fn markdown(minutes: u64, columns: &[(&str, Overload)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let mut text =
        format!("| {minutes} minutes | {} |\n|---{}|\n", names.join(" | "), "|---".repeat(names.len()));
    let mut row = |head: &str, cell: &dyn Fn(&Overload) -> String| {
        let cells: Vec<String> = columns.iter().map(|(_, seen)| cell(seen)).collect();
        text.push_str(&format!("| {head} | {} |\n", cells.join(" | ")));
    };
    for class in CLASSES {
        for (head, figure) in FIGURES {
            row(&format!("{class}: {head}"), &|seen| {
                figure(&seen.pods.values().filter(|pod| pod.class == class).collect::<Vec<_>>(), seen.ready)
            });
        }
    }
    row("node Ready at the end", &|seen| if seen.ready { "yes".into() } else { "no".into() });
    row("seconds not Ready", &|seen| seen.not_ready_seconds.to_string());
    for pressure in ["MemoryPressure", "DiskPressure", "PIDPressure"] {
        row(&format!("seconds of {pressure}"), &|seen| {
            seen.pressures.get(pressure).copied().unwrap_or_default().to_string()
        });
    }
    row("ends of kubelet and runtime", &|seen| by(seen.guest.ended.iter().map(String::as_str)));
    row("killed by the kernel", &|seen| by(seen.guest.killed.iter().map(String::as_str)));
    row("daemons at the end", &|seen| seen.guest.daemons.join("; "));
    row("conditions that do not hold", &|seen| faults(seen).len().to_string());
    for (name, seen) in columns {
        for fault in faults(seen) {
            text.push_str(&format!("\n- {name}: {fault}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_rows_and_counts_are_by_word() {
        let pod = |reason: &str, message: &str| PodSeen {
            class: "BestEffort".into(),
            phase: "Failed".into(),
            reason: reason.into(),
            message: message.into(),
            ..PodSeen::default()
        };
        let low = "The node was low on resource: inodes. Threshold";
        let pods = [
            ("a".to_owned(), pod("Evicted", low)),
            ("b".to_owned(), pod("Evicted", "The node had condition: [DiskPressure].")),
            ("c".to_owned(), pod("Evicted", low)),
        ];
        let seen = Overload { pods: pods.into(), ..Overload::default() };
        let text = markdown(15, &[("gantry", seen.clone()), ("upstream", seen)]);
        assert!(text.starts_with("| 15 minutes | gantry | upstream |\n|---|---|---|\n"), "{text}");
        for line in [
            "| BestEffort: evicted, by signal | 2: inodes 2 | 2: inodes 2 |",
            "| BestEffort: failed otherwise | 1: Evicted 1 | 1: Evicted 1 |",
            "| Guaranteed: pods made | 0 | 0 |",
            "| node Ready at the end | no | no |",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
