//! An OCI runtime for a host that lacks capabilities itself, as a machine in a container does: runc with what this
//! process may not give taken out of its documents. Owns that edit; every word goes on to runc. Called by the dockerd of
//! `engine` as its default runtime, under `cargo xtask kind-oci-runtime`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::sh;

/// By number, of `linux/capability.h`.
const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// What this process may give to a container's.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Own {
    /// The bounding set, a bit for each number.
    capabilities: u64,
    oom_score_adj: i64,
    /// Hard limits of `/proc/self/limits`, by their names in the specification; none is unlimited.
    limits: Vec<(&'static str, Option<u64>)>,
}

impl Own {
    fn look() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
        Ok(Self {
            capabilities: bounding(&read("/proc/self/status")?).context("no CapBnd in /proc/self/status")?,
            oom_score_adj: read("/proc/self/oom_score_adj")?.trim().parse().context("oom_score_adj")?,
            limits: limits(&read("/proc/self/limits")?),
        })
    }

    fn has(&self, name: &str) -> bool {
        let number = CAPABILITIES.iter().position(|known| *known == name);
        // One that this list does not know yet is runc's to judge.
        number.is_none_or(|number| self.capabilities >> number & 1 == 1)
    }
}

/// Whether a process with this status can give every capability of this kernel.
pub(super) fn is_whole() -> Result<bool> {
    let last = fs::read_to_string("/proc/sys/kernel/cap_last_cap").context("read cap_last_cap")?;
    let last: u32 = last.trim().parse().context("cap_last_cap")?;
    let own = Own::look()?;
    Ok((0..=last).all(|number| own.capabilities >> number & 1 == 1))
}

fn bounding(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn limits(text: &str) -> Vec<(&'static str, Option<u64>)> {
    const NAMES: [(&str, &str); 4] = [
        ("Max open files", "RLIMIT_NOFILE"),
        ("Max processes", "RLIMIT_NPROC"),
        ("Max core file size", "RLIMIT_CORE"),
        ("Max locked memory", "RLIMIT_MEMLOCK"),
    ];
    let hard = |line: &str, title: &str| -> Option<Option<u64>> {
        let value = line.strip_prefix(title)?.split_whitespace().nth(1)?;
        if value == "unlimited" { Some(None) } else { value.parse().ok().map(Some) }
    };
    let of = |(title, name): (&str, &'static str)| {
        text.lines().find_map(|line| hard(line, title)).map(|limit| (name, limit))
    };
    NAMES.into_iter().filter_map(of).collect()
}

/// Takes what is not ours to give out of a process of the specification.
fn clamp(process: &mut Value, own: &Own) {
    if let Some(sets) = process.get_mut("capabilities").and_then(Value::as_object_mut) {
        for names in sets.values_mut().filter_map(Value::as_array_mut) {
            names.retain(|name| name.as_str().is_none_or(|name| own.has(name)));
        }
    }
    // Who raises priorities, limits and scores has this one.
    if own.has("CAP_SYS_RESOURCE") {
        return;
    }
    if process.get("oomScoreAdj").and_then(Value::as_i64).is_some_and(|wanted| wanted < own.oom_score_adj) {
        process["oomScoreAdj"] = json!(own.oom_score_adj);
    }
    // Not by index, which would put a null where there is nothing.
    let limits = process.get_mut("rlimits").and_then(Value::as_array_mut);
    for limit in limits.into_iter().flatten() {
        let known = own.limits.iter().find(|(name, _)| limit["type"] == *name);
        let Some((_, Some(most))) = known else { continue };
        for side in ["hard", "soft"] {
            if limit.get(side).and_then(Value::as_u64).is_some_and(|wanted| wanted > *most) {
                limit[side] = json!(most);
            }
        }
    }
}

/// The document that runc is about to read, and whether it is a whole container's.
fn document(words: &[OsString]) -> Option<(PathBuf, bool)> {
    let command = words.iter().find(|word| ["create", "run", "exec"].iter().any(|name| *word == name))?;
    match command.to_str()? {
        "exec" => Some((value(words, "--process", "-p")?, false)),
        _ => Some((value(words, "--bundle", "-b").unwrap_or_default().join("config.json"), true)),
    }
}

/// Of an option, as the next word or behind `=`.
fn value(words: &[OsString], long: &str, short: &str) -> Option<PathBuf> {
    let mut words = words.iter().map(OsString::as_os_str);
    while let Some(word) = words.next() {
        if word == OsStr::new(long) || word == OsStr::new(short) {
            return words.next().map(PathBuf::from);
        }
        if let Some(value) = word.to_str().and_then(|word| word.strip_prefix(long)?.strip_prefix('=')) {
            return Some(value.into());
        }
    }
    None
}

fn edit(path: &Path, whole: bool, own: &Own) -> Result<()> {
    let at = || path.display().to_string();
    let mut document: Value = serde_json::from_slice(&fs::read(path).with_context(at)?).with_context(at)?;
    let process = if whole { document.get_mut("process") } else { Some(&mut document) };
    clamp(process.with_context(|| format!("{} has no process", path.display()))?, own);
    fs::write(path, serde_json::to_vec(&document)?).with_context(at)
}

/// Edits, then becomes runc.
///
/// # Errors
/// When a document cannot be read, or runc is not there.
pub(crate) fn run(words: &[OsString]) -> Result<()> {
    if let Some((path, whole)) = document(words) {
        edit(&path, whole, &Own::look()?)?;
    }
    let mut runc = Command::new("runc");
    let error = runc.args(words).exec();
    Err(error).with_context(|| sh::missing(&runc))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Own {
        let limits = limits(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max processes             96551                96551                processes \n\
             Max open files            1024                 20000                files     \n\
             Max core file size        0                    unlimited            bytes     \n",
        );
        // All but CAP_SYS_RESOURCE, as on a host of containers.
        Own {
            capabilities: bounding("Name:\tsh\nCapBnd:\t000001fffeffffff\n").unwrap(),
            oom_score_adj: 0,
            limits,
        }
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn what_this_process_lacks_is_taken_out_and_clamped() {
        let mut process = json!({
            "capabilities": { "bounding": ["CAP_KILL", "CAP_SYS_RESOURCE", "CAP_NEW"], "ambient": ["CAP_SYS_RESOURCE"] },
            "oomScoreAdj": -500,
            "rlimits": [
                { "type": "RLIMIT_NOFILE", "hard": 1_048_576, "soft": 1024 },
                { "type": "RLIMIT_CORE", "hard": 18_446_744_073_709_551_615_u64, "soft": 1 },
            ],
        });
        clamp(&mut process, &own());
        let expected = json!({
            "capabilities": { "bounding": ["CAP_KILL", "CAP_NEW"], "ambient": [] },
            "oomScoreAdj": 0,
            "rlimits": [
                { "type": "RLIMIT_NOFILE", "hard": 20000, "soft": 1024 },
                { "type": "RLIMIT_CORE", "hard": 18_446_744_073_709_551_615_u64, "soft": 1 },
            ],
        });
        assert_eq!(process, expected);
    }

    #[test]
    fn who_has_every_capability_changes_nothing() {
        let all = Own { capabilities: u64::MAX, ..own() };
        let process = json!({ "capabilities": { "bounding": ["CAP_SYS_RESOURCE"] }, "oomScoreAdj": -999,
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": 1_048_576, "soft": 1_048_576 }] });
        let mut clamped = process.clone();
        clamp(&mut clamped, &all);
        assert_eq!(clamped, process);
    }

    #[test]
    fn the_document_is_the_bundles_or_the_one_that_exec_names() {
        let found = |line: &str| document(&words(line));
        let create = "--root /r --log /l --log-format json create --bundle /b --pid-file /p ID";
        assert_eq!(found(create), Some(("/b/config.json".into(), true)));
        assert_eq!(found("run --bundle=/b ID"), Some(("/b/config.json".into(), true)));
        assert_eq!(found("exec --process /p.json --detach ID"), Some(("/p.json".into(), false)));
        assert_eq!(found("--root /r delete ID"), None);
        assert_eq!(found("exec -t ID sh"), None);
    }

    #[test]
    fn a_file_is_edited_in_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, r#"{"process":{"oomScoreAdj":-1},"hostname":"x"}"#).unwrap();
        edit(&path, true, &own()).unwrap();
        let edited: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(edited, json!({ "process": { "oomScoreAdj": 0 }, "hostname": "x" }));
        assert!(edit(&folder.path().join("none"), true, &own()).is_err());
    }
}
