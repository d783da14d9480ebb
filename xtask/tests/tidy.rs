//! The rules of CONTRIBUTING.md that a machine can check. Owns the lists; each rule is a test and
//! names every offender. Never changes a file. Run by `cargo xtask test --tier static`.

#![expect(clippy::unwrap_used, reason = "a test program: every panic is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/commands.rs"]
mod commands;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/functions.rs"]
mod functions;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/pure.rs"]
mod pure;
#[path = "tidy/tokens.rs"]
mod tokens;
#[path = "tidy/traps.rs"]
mod traps;
#[path = "tidy/words.rs"]
mod words;

const CRATES: [&str; 11] =
    ["agent", "base", "cgroup", "cli", "cni", "fuzz", "proto", "shim", "systemd", "tests", "xtask"];

fn root() -> PathBuf {
    // Not env!: checkouts that share a target folder share this binary.
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).parent().unwrap().to_owned()
}

fn walk(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !matches!(path.file_name().and_then(|name| name.to_str()), Some("target" | ".git")) {
                walk(&path, ending, found);
            }
        } else if path.extension().is_some_and(|found| found == ending) {
            found.push(path);
        }
    }
}

/// Every Rust file as path from the root and text.
fn sources() -> BTreeMap<String, String> {
    let root = root();
    let mut paths = Vec::new();
    for name in CRATES {
        walk(&root.join(name), "rs", &mut paths);
    }
    assert!(paths.len() > 20, "only {} Rust files were found below {}", paths.len(), root.display());
    paths
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).unwrap();
            (name, text)
        })
        .collect()
}

fn assert_none(rule: &str, offenders: &[String]) {
    assert!(offenders.is_empty(), "{rule}:\n  {}", offenders.join("\n  "));
}

/// Code without line comments: what is said about a thing is no use of it.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line.split("//").next().unwrap_or(line)))
}

/// The part of a file before its tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

#[test]
fn files_are_short() {
    let offenders: Vec<String> = sources()
        .iter()
        .filter_map(|(name, text)| {
            let lines = text.lines().count();
            (lines > 600).then(|| format!("{name}: {lines} lines"))
        })
        .collect();
    assert_none("a file holds at most 600 lines", &offenders);
}

#[test]
fn files_open_with_what_they_own() {
    let offenders: Vec<String> =
        sources().into_iter().filter(|(_, text)| !text.starts_with("//! ")).map(|(name, _)| name).collect();
    assert_none("a file opens with `//!`: what it owns, what it never does, who calls it", &offenders);
}

#[test]
fn files_are_named_after_what_they_hold() {
    let banned =
        ["mod.rs", "util.rs", "utils.rs", "helper.rs", "helpers.rs", "common.rs", "manager.rs", "misc.rs"];
    let offenders: Vec<String> = sources()
        .into_keys()
        .filter(|name| name.rsplit('/').next().is_some_and(|file| banned.contains(&file)))
        .collect();
    assert_none("foo.rs and foo/, no mod.rs, and no name that could hold anything", &offenders);
}

#[test]
fn unsafe_code_is_in_sys_alone() {
    let mut offenders = Vec::new();
    for (name, text) in sources() {
        if name == "shim/src/sys.rs" || name.starts_with("shim/sys/src/") || name == "xtask/tests/tidy.rs" {
            continue;
        }
        for (number, line) in code(&text) {
            if line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl") {
                offenders.push(format!("{name}:{number}"));
            }
        }
    }
    assert_none("unsafe code stands in shim/sys and in shim/src/sys.rs only", &offenders);
}

#[test]
fn the_static_programs_have_no_async_runtime_no_tls_and_no_http() {
    for package in ["gantry-monitor", "gantry-unpack"] {
        let args = [
            "tree",
            "--locked",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--package",
            package,
        ];
        let output = Command::new(env!("CARGO")).args(args).current_dir(root()).output().unwrap();
        assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
        let tree = String::from_utf8(output.stdout).unwrap();
        let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(names.contains(&package) && names.contains(&"rustix"), "{names:?}");
        for banned in ["tokio", "rustls", "aws-lc-rs", "http", "hyper", "reqwest", "tonic"] {
            assert!(!names.contains(&banned), "{package} depends on {banned}");
        }
    }
}

#[test]
fn the_agent_knows_protobuf_in_its_edges_alone() {
    let allowed = [
        "agent/src/runtime/cri",
        "agent/src/operator",
        "agent/src/probe/grpc.rs",
        "agent/server/src/cri.rs",
        "agent/server/src/stats/runtime.rs",
        "agent/src/runtime_ext/gantry.rs",
        "agent/src/devices/checkpoint",
        "agent/src/devices/plugin.rs",
        "agent/src/devices/registration.rs",
        "agent/src/devices/tests.rs",
        "agent/src/plugins/client.rs",
        "agent/src/csi/driver.rs",
        "agent/src/csi/fake.rs",
        "agent/src/dra/driver.rs",
        "agent/src/dra/health.rs",
        "agent/src/dra/testing.rs",
        "agent/src/dra/tests.rs",
        "agent/src/dra/watch.rs",
        "agent/src/plugins/tests.rs",
        "agent/src/podresources",
        "agent/src/pod/worker/tests/traced.rs",
        "agent/server/src/tests/traced.rs",
    ];
    let mut offenders = Vec::new();
    for (name, text) in sources() {
        let names = |word| code(without_tests(&text)).any(|(_, line)| line.contains(word));
        let inside = name.starts_with("agent/");
        let outside_of = |edges: &[&str]| inside && !edges.iter().any(|edge| name.starts_with(edge));
        if (outside_of(&allowed) && names("gantry_proto"))
            || (outside_of(&["agent/src/runtime_ext/containerd"]) && names("containerd_client"))
        {
            offenders.push(name);
        }
    }
    assert_none(
        "wire types stay in agent/src/runtime/cri, agent/server/src/cri.rs and stats/runtime.rs, agent/src/operator, agent/src/runtime_ext, the plugins' clients and servers, the gRPC probe, and the test of spans",
        &offenders,
    );
}

#[test]
fn paths_in_the_architecture_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut seen = 0;
    let mut offenders = Vec::new();
    for quoted in text.split('`').skip(1).step_by(2) {
        let first = quoted.split('/').next().unwrap_or_default();
        let local = CRATES.contains(&first) || matches!(first, "docs" | "vagrant" | ".ci");
        if local && quoted.contains('/') {
            seen += 1;
            if !root().join(quoted).exists() {
                offenders.push(quoted.to_owned());
            }
        }
    }
    assert!(seen > 10, "ARCHITECTURE.md names {seen} paths: is the code map gone?");
    assert_none("every path named in ARCHITECTURE.md exists", &offenders);
}

#[test]
fn decisions_have_a_status_and_consequences() {
    let mut paths = Vec::new();
    walk(&root().join("docs/adr"), "md", &mut paths);
    assert!(!paths.is_empty(), "docs/adr holds no decision");
    let offenders: Vec<String> = paths
        .into_iter()
        .filter(|path| !path.ends_with("README.md"))
        .filter(|path| {
            let text = fs::read_to_string(path).unwrap();
            !text.contains("Status:") || !text.contains("## Consequences")
        })
        .map(|path| path.display().to_string())
        .collect();
    assert_none("an ADR has a Status and Consequences", &offenders);
}

#[test]
fn nothing_is_put_off_without_an_issue_and_no_test_is_switched_off() {
    let mut offenders = Vec::new();
    for (name, text) in sources() {
        if name == "xtask/tests/tidy.rs" {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            let put_off = (line.contains("TODO") || line.contains("FIXME")) && !line.contains('#');
            if put_off || line.contains("#[ignore") {
                offenders.push(format!("{name}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    assert_none("TODO carries an issue's number, and #[ignore] is not a way out", &offenders);
}
