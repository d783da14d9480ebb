//! Links and nftables rulesets, in this network namespace and in every other one that a process
//! lives in or a mount holds. Owns the visit: a fresh thread for each namespace, which ends there.
//! Changes nothing. Called by `leakcheck`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::mounts::mounts;
use crate::proc;

/// What one network namespace holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NetworkSnapshot {
    pub(super) links: Vec<String>,
    pub(super) rules: BTreeSet<String>,
}

/// The names of this network namespace's links. /sys/class/net would show those of the namespace
/// that /sys was mounted in; this follows the thread.
///
/// # Errors
/// Without /proc.
pub fn links() -> Result<Vec<String>> {
    let path = "/proc/thread-self/net/dev";
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    Ok(text.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect())
}

/// This namespace's.
pub(super) fn here() -> Result<NetworkSnapshot> {
    Ok(NetworkSnapshot { links: links()?, rules: ruleset()? })
}

/// Those of all other namespaces within reach, by name. One that goes away meanwhile is left out.
pub(super) fn elsewhere() -> Result<BTreeMap<String, NetworkSnapshot>> {
    let mut found = BTreeMap::new();
    for (name, path) in namespaces()? {
        let Ok(file) = std::fs::File::open(&path) else { continue };
        let visit = std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("enter {}", path.display()))?;
            here()
        });
        found.insert(name, visit.join().map_err(|_| anyhow!("a look into a network panicked"))??);
    }
    Ok(found)
}

/// Every other network namespace and a path to it.
fn namespaces() -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for mount in mounts()?.into_iter().filter(|mount| mount.root.starts_with("net:[")) {
        found.insert(mount.root, mount.point);
    }
    for process in proc::all()? {
        let path = proc::folder(process.pid).join("ns/net");
        if let Ok(name) = std::fs::read_link(&path) {
            found.entry(name.to_string_lossy().into_owned()).or_insert(path);
        }
    }
    let own = std::fs::read_link("/proc/self/ns/net").context("read /proc/self/ns/net")?;
    found.remove(own.to_string_lossy().as_ref());
    Ok(found)
}

/// This thread's ruleset, without counters and handles: equal when its rules are.
fn ruleset() -> Result<BTreeSet<String>> {
    // Where sbin is not in a user's PATH.
    let program = Path::new("/usr/sbin/nft");
    let program = if program.is_file() { program } else { Path::new("nft") };
    let output = Command::new(program)
        .args(["--stateless", "--numeric", "list", "ruleset"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| gantry_needs::remedy("nft"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "nft list ruleset: {}: {said}", output.status);
    Ok(flatten(&String::from_utf8_lossy(&output.stdout)))
}

/// One line for each thing, behind what it stands in; equal lines are numbered.
fn flatten(text: &str) -> BTreeSet<String> {
    let mut inside: Vec<&str> = Vec::new();
    let mut lines = BTreeSet::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line == "}" {
            inside.pop();
            continue;
        }
        let opened = line.strip_suffix('{').map(str::trim);
        let path = [&inside[..], &[opened.unwrap_or(line)]].concat().join(" / ");
        super::add_another(&mut lines, &path);
        inside.extend(opened);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ruleset_is_told_by_what_each_line_stands_in() {
        let text = "table ip nat {\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { 10.0.0.1,\n\t\t\t\
                    10.0.0.2 }\n\t}\n\n\tchain a {\n\t\taccept\n\t\taccept\n\t}\n}\ntable ip6 nat {\n}\n";
        let lines: Vec<String> = flatten(text).into_iter().collect();
        assert_eq!(
            lines,
            [
                "table ip nat",
                "table ip nat / chain a",
                "table ip nat / chain a / accept",
                "table ip nat / chain a / accept #2",
                "table ip nat / set s",
                "table ip nat / set s / 10.0.0.2 }",
                "table ip nat / set s / elements = { 10.0.0.1,",
                "table ip nat / set s / type ipv4_addr",
                "table ip6 nat",
            ]
        );
    }
}
