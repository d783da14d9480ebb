//! Which crate may depend on which of ours, held against each `Cargo.toml`.

use std::fs;

/// Tests and xtask stand above all; nobody depends on them but each other.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        "agent",
        &[
            "gantry-base",
            "gantry-cgroup",
            "gantry-failpoint",
            "gantry-grpc",
            "gantry-instructions",
            "gantry-kube-client",
            "gantry-metrics",
            "gantry-model",
            "gantry-numa",
            "gantry-proto",
            "gantry-server",
            "gantry-systemd",
            "gantry-trace",
        ],
    ),
    ("agent/grpc", &["gantry-base", "gantry-metrics", "gantry-proto", "gantry-trace"]),
    ("agent/kubeclient", &["gantry-base", "gantry-instructions", "gantry-metrics", "gantry-model"]),
    ("agent/metrics", &[]),
    ("agent/model", &["gantry-systemd"]),
    ("agent/numa", &["gantry-base", "gantry-model"]),
    (
        "agent/server",
        &[
            "gantry-base",
            "gantry-cgroup",
            "gantry-grpc",
            "gantry-metrics",
            "gantry-model",
            "gantry-proto",
            "gantry-trace",
        ],
    ),
    ("base", &[]),
    ("base/failpoint", &[]),
    ("base/instructions", &[]),
    ("base/trace", &["gantry-proto"]),
    ("cgroup", &["gantry-base"]),
    ("cni", &["gantry-base"]),
    ("proto", &[]),
    (
        "shim",
        &[
            "gantry-base",
            "gantry-cgroup",
            "gantry-failpoint",
            "gantry-proto",
            "gantry-cni",
            "gantry-image",
            "gantry-monitor",
            "gantry-shim-testing",
            "gantry-sys",
            "gantry-systemd",
            "gantry-trace",
            "gantry-unpack",
        ],
    ),
    (
        "shim/image",
        &["gantry-base", "gantry-failpoint", "gantry-shim-testing", "gantry-sys", "gantry-unpack"],
    ),
    ("shim/inflate", &[]),
    (
        "shim/monitor",
        &[
            "gantry-base",
            "gantry-failpoint",
            "gantry-instructions",
            "gantry-proto",
            "gantry-shim-testing",
            "gantry-sys",
        ],
    ),
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
            "gantry-grpc",
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
            "gantry-trace",
        ],
    ),
    ("tests/workload", &[]),
    ("xtask", &["gantry-needs", "gantry-tests"]),
    ("xtask/needs", &[]),
];

#[test]
fn dependencies_point_one_way() {
    let mut offenders = Vec::new();
    for (name, allowed) in ALLOWED {
        let manifest = fs::read_to_string(super::root().join(name).join("Cargo.toml")).unwrap();
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
    super::assert_none(
        "all → base; agent → server, kubeclient, grpc, metrics, model, cgroup, proto, systemd, trace; server → grpc, metrics, model, cgroup, proto, trace; kubeclient → metrics, model; grpc → metrics, proto, trace; model → systemd; shim → image, monitor, unpack, sys, cgroup, proto, cni, systemd, trace; only cli knows both",
        &offenders,
    );
}
