//! The tour on containerd and on ours: what a new user of crictl sees is the same, but for what is listed.

use anyhow::{Context, Result};
use gantry_tests::containerd::{Containerd, Options, Tuning};
use gantry_tests::node::Node;
use gantry_tests::registry::Registry;
use gantry_tests::suite::{self, Subject};
use gantry_tests::tour::{self, Difference, Side};

/// Each with its reason.
const DIFFERENCES: &[Difference] = &[
    allow("info", Side::Theirs, "eprecat", "containerd alone warns of cgroup v1"),
    allow("info", Side::Theirs, "handler.features.user_namespaces: true", "of the second handler"),
    allow("info", Side::Theirs, "handler.features.recursive_read_only_mounts: true", "of the second handler"),
    allow("info", Side::Theirs, "handler.name: \"runc\"", "the default handler has a name there, too"),
    allow(
        "images",
        Side::Ours,
        "image.spec.image: \"<image>\"",
        "CRI has the field; containerd leaves it out",
    ),
    allow(
        "inspecti",
        Side::Ours,
        "status.image.spec.image: \"<image>\"",
        "CRI has the field; containerd leaves it out",
    ),
    allow("inspecti", Side::Ours, "status.info[timeline]", "where the time went"),
    allow("inspectp", Side::Ours, "status.timestamp", "CRI has the field; containerd leaves it out"),
    allow(
        "start <web> again",
        Side::Both,
        "refused",
        "a client whose first answer was lost has its container",
    ),
    allow(
        "ps",
        Side::Both,
        "container.image_ref",
        "containerd tells the id, and says itself that it should be the digest",
    ),
    allow("stats", Side::Ours, "swap.", "containerd's statistics lack swap"),
    allow("stats", Side::Ours, "writable_layer.timestamp", "containerd leaves it out"),
    allow(
        "statsp",
        Side::Theirs,
        "cpu.usage_nano_cores",
        "the rate is the one since the last query, half a second before at least",
    ),
    allow("metricdescs", Side::Ours, "container_pressure_", "containerd's metrics lack pressure"),
    allow(
        "metricsp",
        Side::Ours,
        "web: container_threads GAUGE",
        "on cgroup v1 containerd's metrics lack it",
    ),
    allow(
        "metricsp",
        Side::Ours,
        "web: container_ulimits_soft GAUGE",
        "containerd's is of its own spec, which has none",
    ),
    allow("events", Side::Theirs, "<gone>: CREATED DELETED", "a failed start sends no event there"),
    allow(
        "events",
        Side::Ours,
        "<gone>: CREATED STOPPED DELETED",
        "the container is EXITED, and a client should hear of it",
    ),
];

const fn allow(step: &'static str, whose: Side, line: &'static str, why: &'static str) -> Difference {
    Difference { step, whose, line, why }
}

#[test]
fn the_tour_is_as_on_containerd() -> Result<()> {
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    let guarded = registry.serve_with_password()?;
    let containerd = Containerd::start(Options {
        registry: &registry,
        pause: &images.pause,
        portmap: true,
        tuning: Tuning::NONE,
    })?;
    let before = containerd.snapshot()?;
    let subject = Subject {
        handler: "",
        socket: &containerd.socket(),
        cgroup_tag: containerd.tag(),
        within: Some(containerd.pid()),
        pinned: &images.pause,
        guarded: &guarded,
    };
    let theirs = tour::run(subject, &images).with_context(|| containerd.log_tail())?;
    before.await_clean(&containerd.scope())?;
    drop(containerd);
    let node = Node::start()?;
    let before = node.snapshot()?;
    let subject = Subject {
        handler: "",
        socket: &node.socket(),
        cgroup_tag: node.roots().tag(),
        within: None,
        pinned: &images.pause,
        guarded: &guarded,
    };
    let ours = tour::run(subject, &images)?;
    node.assert_clean(&before)?;
    tour::compare(&ours, &theirs, DIFFERENCES).with_context(|| format!("{theirs}\n=====\n{ours}"))
}
