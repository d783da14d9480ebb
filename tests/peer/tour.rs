//! The tour on containerd and on ours: what a new user of crictl sees is the same, but for what is listed.

use anyhow::{Context, Result};
use gantry_tests::containerd::{Containerd, ContainerdOptions, Tuning};
use gantry_tests::node::Node;
use gantry_tests::registry::Registry;
use gantry_tests::suite::{self, Subject};
use gantry_tests::tour::{self, Difference, TourSide};

/// Each with its reason.
const DIFFERENCES: &[Difference] = &[
    allow("info", TourSide::Theirs, "eprecat", "containerd alone warns of cgroup v1"),
    allow("info", TourSide::Theirs, "handler.features.user_namespaces: true", "of the second handler"),
    allow(
        "info",
        TourSide::Theirs,
        "handler.features.recursive_read_only_mounts: true",
        "of the second handler",
    ),
    allow("info", TourSide::Theirs, "handler.name: \"runc\"", "the default handler has a name there, too"),
    allow(
        "images",
        TourSide::Ours,
        "image.spec.image: \"<image>\"",
        "CRI has the field; containerd leaves it out",
    ),
    allow(
        "inspecti",
        TourSide::Ours,
        "status.image.spec.image: \"<image>\"",
        "CRI has the field; containerd leaves it out",
    ),
    allow("inspecti", TourSide::Ours, "status.info[timeline]", "where the time went"),
    allow("inspectp", TourSide::Ours, "status.timestamp", "CRI has the field; containerd leaves it out"),
    allow(
        "start <web> again",
        TourSide::Both,
        "refused",
        "a client whose first answer was lost has its container",
    ),
    allow(
        "ps",
        TourSide::Both,
        "container.image_ref",
        "containerd tells the id, and says itself that it should be the digest",
    ),
    allow("stats", TourSide::Ours, "swap.", "containerd's statistics lack swap"),
    allow("stats", TourSide::Ours, "writable_layer.timestamp", "containerd leaves it out"),
    allow(
        "statsp",
        TourSide::Theirs,
        "cpu.usage_nano_cores",
        "the rate is the one since the last query, half a second before at least",
    ),
    allow("metricdescs", TourSide::Ours, "container_pressure_", "containerd's metrics lack pressure"),
    allow(
        "metricsp",
        TourSide::Ours,
        "web: container_threads GAUGE",
        "on cgroup v1 containerd's metrics lack it",
    ),
    allow(
        "metricsp",
        TourSide::Ours,
        "web: container_ulimits_soft GAUGE",
        "containerd's is of its own spec, which has none",
    ),
    allow("events", TourSide::Theirs, "<gone>: CREATED DELETED", "a failed start sends no event there"),
    allow(
        "events",
        TourSide::Ours,
        "<gone>: CREATED STOPPED DELETED",
        "the container is EXITED, and a client should hear of it",
    ),
];

const fn allow(step: &'static str, whose: TourSide, line: &'static str, why: &'static str) -> Difference {
    Difference { step, whose, line, why }
}

#[test]
fn the_tour_is_as_on_containerd() -> Result<()> {
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    let guarded = registry.serve_with_password()?;
    let containerd = Containerd::start(ContainerdOptions {
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
