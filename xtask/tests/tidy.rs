//! The rules of CONTRIBUTING.md that a machine can check. Owns the lists; each rule is a test and
//! names every offender. Never changes a file. Run by `cargo xtask test --tier static`.

#![expect(clippy::unwrap_used, reason = "a test program: every panic is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/tokens.rs"]
mod tokens;
#[path = "tidy/words.rs"]
mod words;

const CRATES: [&str; 11] =
    ["agent", "base", "cgroup", "cli", "cni", "fuzz", "proto", "shim", "systemd", "tests", "xtask"];

/// Files that decide and do nothing else: everything they know comes in as an argument.
const PURE: &[&str] = &[
    "agent/kubeclient/src/backoff.rs",
    "agent/kubeclient/src/strategic_merge.rs",
    "agent/metrics/src/text.rs",
    "agent/model/src/admitted.rs",
    "agent/model/src/cgroup.rs",
    "agent/model/src/cgroup/limits.rs",
    "agent/model/src/cgroup/names.rs",
    "agent/model/src/expand.rs",
    "agent/model/src/failure.rs",
    "agent/model/src/field_path.rs",
    "agent/model/src/go_duration.rs",
    "agent/model/src/lib.rs",
    "agent/model/src/log_line.rs",
    "agent/model/src/mount.rs",
    "agent/model/src/names.rs",
    "agent/model/src/observation.rs",
    "agent/model/src/pod.rs",
    "agent/model/src/pod/env.rs",
    "agent/model/src/pod/placement.rs",
    "agent/model/src/pod/probe.rs",
    "agent/model/src/pod/qos.rs",
    "agent/model/src/pod/security.rs",
    "agent/model/src/pod/token.rs",
    "agent/model/src/pod/volume.rs",
    "agent/model/src/quantity.rs",
    "agent/model/src/requests.rs",
    "agent/server/src/container_logs/options.rs",
    "agent/server/src/query.rs",
    "agent/server/src/route.rs",
    "agent/server/src/scrape/resource.rs",
    "agent/server/src/stats/rates.rs",
    "agent/server/src/stats/summary.rs",
    "agent/src/admission.rs",
    "agent/src/admission/fit.rs",
    "agent/src/admission/labels.rs",
    "agent/src/admission/sysctls.rs",
    "agent/src/api/node_selector.rs",
    "agent/src/runtime_ext/containerd/layers.rs",
    "agent/src/runtime_ext/oom_counts.rs",
    "agent/src/runtime_ext/pulls/progress.rs",
    "agent/src/config/defaults.rs",
    "agent/src/config/fields.rs",
    "agent/src/config/flag.rs",
    "agent/src/config/flag/help.rs",
    "agent/src/config/flag/table.rs",
    "agent/src/config/flag/value.rs",
    "agent/src/config/gates.rs",
    "agent/src/config/image_verification.rs",
    "agent/src/config/labels.rs",
    "agent/src/config/refused.rs",
    "agent/src/config/settings.rs",
    "agent/src/config/taint.rs",
    "agent/src/config/validate.rs",
    "agent/src/dns.rs",
    "agent/src/events.rs",
    "agent/src/events/sink/correlate.rs",
    "agent/src/images/glob.rs",
    "agent/src/images/keyring.rs",
    "agent/src/manifest/api.rs",
    "agent/src/manifest/container.rs",
    "agent/src/manifest/env.rs",
    "agent/src/manifest/faults.rs",
    "agent/src/manifest/field.rs",
    "agent/src/manifest/meta.rs",
    "agent/src/manifest/network.rs",
    "agent/src/manifest/object.rs",
    "agent/src/manifest/placement.rs",
    "agent/src/manifest/places.rs",
    "agent/src/manifest/pod.rs",
    "agent/src/manifest/probe.rs",
    "agent/src/manifest/resources.rs",
    "agent/src/manifest/security.rs",
    "agent/src/manifest/suggest.rs",
    "agent/src/manifest/volume.rs",
    "agent/src/pod/configure/env_file.rs",
    "agent/src/pod/configure/services.rs",
    "agent/src/pod/configure/user.rs",
    "agent/src/pod/worker_state.rs",
    "agent/src/pod/worker_state/hooks.rs",
    "agent/src/pod/worker_state/outcome.rs",
    "agent/src/pod/last.rs",
    "agent/src/pod/phase.rs",
    "agent/src/pod/phase/column.rs",
    "agent/src/pod/phase/conditions.rs",
    "agent/src/pod/phase/container.rs",
    "agent/src/pod/plan.rs",
    "agent/src/pod/plan/action.rs",
    "agent/src/pod/plan/containers.rs",
    "agent/src/pod/plan/ended.rs",
    "agent/src/pod/plan/init.rs",
    "agent/src/pod/plan/probes.rs",
    "agent/src/pod/plan/restart_all.rs",
    "agent/src/pod/plan/sandbox.rs",
    "agent/src/pod/plan/stop.rs",
    "agent/src/pod/plan/termination_message.rs",
    "agent/src/pod/probing.rs",
    "agent/src/pod/restart.rs",
    "agent/src/pod/status.rs",
    "agent/src/pod/teardown.rs",
    "agent/src/probe/request.rs",
    "agent/src/registration/amount.rs",
    "agent/src/registration/compose.rs",
    "agent/src/registration/conditions.rs",
    "agent/src/static_pods/choice.rs",
    "agent/src/static_pods/describe.rs",
    "agent/src/static_pods/rules.rs",
    "agent/src/status/convert.rs",
    "agent/src/status/convert/amounts.rs",
    "agent/src/status/convert/conditions.rs",
    "agent/src/status/convert/containers.rs",
    "agent/src/status/merge.rs",
    "agent/src/timeline/chart.rs",
    "agent/src/timeline/compare.rs",
    "agent/src/timeline/html.rs",
    "agent/src/timeline/html/describe.rs",
    "agent/src/timeline/pair.rs",
    "agent/src/timeline/render.rs",
    "agent/src/timeline/svg.rs",
    "agent/src/volumes/downward.rs",
    "agent/src/volumes/hosts_file.rs",
    "cli/src/join/document.rs",
    "cli/src/join/facts.rs",
    "cli/src/join/plan.rs",
    "cli/src/join/step.rs",
    "cli/src/leave/plan.rs",
    "cni/src/bridge/plan.rs",
    "cni/src/host_local/alloc.rs",
    "shim/inflate/src/code.rs",
    "shim/inflate/src/fast.rs",
    "shim/src/cdi/check.rs",
    "shim/src/cdi/file.rs",
    "shim/src/cdi/mount.rs",
    "shim/src/cdi/name.rs",
    "shim/src/cdi/version.rs",
    "shim/src/handler/document.rs",
    "shim/monitor/src/monitor/unclaimed_exits.rs",
    "shim/src/seccomp/bpf.rs",
    "shim/src/seccomp/syscalls.rs",
    "shim/src/spec/apparmor.rs",
    "shim/src/capabilities.rs",
    "shim/src/spec/container.rs",
    "shim/src/spec/profiles.rs",
    "shim/src/spec/resources.rs",
    "shim/src/spec/sandbox.rs",
    "shim/src/spec/selinux.rs",
    "shim/src/spec/user.rs",
    "shim/src/spec/userns.rs",
    "shim/src/cgroup/rate.rs",
    "systemd/src/slice.rs",
    "systemd/src/wire.rs",
    "systemd/src/wire/read.rs",
    "systemd/src/wire/write.rs",
];

/// What a pure file may not name.
const IMPURE: [&str; 9] = [
    "tokio",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::process",
    "std::env",
    "SystemTime::now",
    "Instant::now",
    "rustix",
];

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
fn dependencies_point_one_way() {
    // tests and xtask stand above all; nobody depends on them but each other.
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        (
            "agent",
            &[
                "gantry-base",
                "gantry-cgroup",
                "gantry-grpc",
                "gantry-kube-client",
                "gantry-metrics",
                "gantry-model",
                "gantry-proto",
                "gantry-server",
                "gantry-systemd",
            ][..],
        ),
        ("agent/grpc", &["gantry-base", "gantry-metrics"]),
        ("agent/kubeclient", &["gantry-base", "gantry-metrics", "gantry-model"]),
        ("agent/metrics", &[]),
        ("agent/model", &["gantry-systemd"]),
        (
            "agent/server",
            &[
                "gantry-base",
                "gantry-cgroup",
                "gantry-grpc",
                "gantry-metrics",
                "gantry-model",
                "gantry-proto",
            ],
        ),
        ("base", &[]),
        ("cgroup", &["gantry-base"]),
        ("cni", &["gantry-base"]),
        ("proto", &[]),
        (
            "shim",
            &[
                "gantry-base",
                "gantry-cgroup",
                "gantry-proto",
                "gantry-cni",
                "gantry-image",
                "gantry-monitor",
                "gantry-shim-testing",
                "gantry-sys",
                "gantry-systemd",
                "gantry-unpack",
            ],
        ),
        ("shim/image", &["gantry-base", "gantry-shim-testing", "gantry-sys", "gantry-unpack"]),
        ("shim/inflate", &[]),
        ("shim/monitor", &["gantry-base", "gantry-proto", "gantry-shim-testing", "gantry-sys"]),
        ("shim/sys", &["gantry-inflate"]),
        ("shim/testing", &[]),
        ("shim/unpack", &["gantry-base", "gantry-inflate", "gantry-shim-testing", "gantry-sys"]),
        ("systemd", &[]),
        (
            "cli",
            &[
                "gantry-agent",
                "gantry-base",
                "gantry-cgroup",
                "gantry-image",
                "gantry-kube-client",
                "gantry-metrics",
                "gantry-model",
                "gantry-shim",
                "gantry-unpack",
                "gantry-cni",
                "gantry-proto",
                "gantry-systemd",
            ],
        ),
        (
            "tests",
            &[
                "gantry-agent",
                "gantry-model",
                "gantry-needs",
                "gantry-proto",
                "gantry-server",
                "gantry-systemd",
            ],
        ),
        ("tests/workload", &[]),
        ("xtask", &["gantry-needs", "gantry-tests"]),
        ("xtask/needs", &[]),
    ]);
    let mut offenders = Vec::new();
    for (name, allowed) in allowed {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        for line in manifest.lines() {
            let Some(dependency) = line.split(['.', '=', ' ']).next() else { continue };
            if dependency.starts_with("gantry-")
                && line.contains(['=', '{'])
                && !allowed.contains(&dependency)
            {
                offenders.push(format!("{name} depends on {dependency}"));
            }
        }
    }
    assert_none(
        "all → base; agent → server, kubeclient, grpc, metrics, model, cgroup, proto, systemd; server → grpc, metrics, model, cgroup, proto; kubeclient → metrics, model; grpc → metrics; model → systemd; shim → image, monitor, unpack, sys, cgroup, proto, cni, systemd; only cli knows both",
        &offenders,
    );
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
fn pure_files_know_nothing_of_the_world() {
    let sources = sources();
    let mut offenders = Vec::new();
    for pure in PURE {
        let Some(text) = sources.get(*pure) else {
            offenders.push(format!("{pure} does not exist: mend the list in xtask/tests/tidy.rs"));
            continue;
        };
        for (number, line) in code(without_tests(text)) {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                offenders.push(format!("{pure}:{number} names {word}"));
            }
        }
    }
    assert_none("a plan takes time, ids and facts as arguments", &offenders);
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
        "agent/src/plugins/tests.rs",
        "agent/src/podresources.rs",
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
        "wire types stay in agent/src/runtime/cri, agent/server/src/cri.rs and stats/runtime.rs, agent/src/operator, agent/src/runtime_ext, the plugins' clients and servers, and the gRPC probe",
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
