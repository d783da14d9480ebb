//! The tour on containerd and on ours: what a new user of crictl sees is the same, but for what is listed.

use anyhow::{Context, Result};
use gantry_tests::containerd::{Containerd, Options, Tuning};
use gantry_tests::node::Node;
use gantry_tests::registry::Registry;
use gantry_tests::suite::{self, Subject};
use gantry_tests::tour::{self, Difference, Side};

/// Each with its reason.
const DIFFERENCES: &[Difference] = &[
    allowed("info", Side::Theirs, "eprecat", "containerd alone warns of cgroup v1"),
    allowed("info", Side::Theirs, "handler.features.user_namespaces: true", "of the second handler"),
    allowed(
        "info",
        Side::Theirs,
        "handler.features.recursive_read_only_mounts: true",
        "of the second handler",
    ),
    allowed("info", Side::Theirs, "handler.name: \"runc\"", "the default handler has a name there, too"),
    allowed(
        "images",
        Side::Ours,
        "image.spec.image: \"<image>\"",
        "CRI has the field; containerd leaves it out",
    ),
    allowed(
        "inspecti",
        Side::Ours,
        "status.image.spec.image: \"<image>\"",
        "CRI has the field; containerd leaves it out",
    ),
    allowed("inspecti", Side::Ours, "status.info[timeline]", "where the time went"),
    allowed("inspectp", Side::Ours, "status.timestamp", "CRI has the field; containerd leaves it out"),
    allowed(
        "start <web> again",
        Side::Both,
        "refused",
        "a client whose first answer was lost has its container",
    ),
    allowed(
        "ps",
        Side::Both,
        "container.image_ref",
        "containerd tells the id, and says itself that it should be the digest",
    ),
    allowed("stats", Side::Ours, "swap.", "containerd's statistics lack swap"),
    allowed("stats", Side::Ours, "writable_layer.timestamp", "containerd leaves it out"),
    allowed(
        "statsp",
        Side::Theirs,
        "cpu.usage_nano_cores",
        "the rate is the one since the last query, half a second before at least",
    ),
    allowed("metricdescs", Side::Ours, "container_pressure_", "containerd's metrics lack pressure"),
    allowed(
        "metricsp",
        Side::Ours,
        "web: container_threads GAUGE",
        "on cgroup v1 containerd's metrics lack it",
    ),
    allowed(
        "metricsp",
        Side::Ours,
        "web: container_ulimits_soft GAUGE",
        "containerd's is of its own spec, which has none",
    ),
    allowed("events", Side::Theirs, "<gone>: CREATED DELETED", "a failed start sends no event there"),
    allowed(
        "events",
        Side::Ours,
        "<gone>: CREATED STOPPED DELETED",
        "the container is EXITED, and a client should hear of it",
    ),
];

const fn allowed(step: &'static str, whose: Side, line: &'static str, why: &'static str) -> Difference {
    Difference { step, whose, line, why }
}

#[test]
fn the_tour_is_as_on_containerd() -> Result<()> {
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    let guarded = registry.guarded()?;
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
