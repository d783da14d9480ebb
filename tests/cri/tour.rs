//! The tour of a new user of crictl on ours alone; `tests/peer` compares it with containerd's.

use anyhow::{Result, ensure};
use gantry_tests::node::Node;
use gantry_tests::registry::Registry;
use gantry_tests::suite::{self, Subject};
use gantry_tests::tour;

#[test]
fn a_new_user_of_crictl_gets_through_the_tour() -> Result<()> {
    let node = Node::start()?;
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    let guarded = registry.serve_with_password()?;
    let before = node.snapshot()?;
    let subject = Subject {
        handler: "",
        socket: &node.socket(),
        cgroup_tag: node.roots().tag(),
        within: None,
        pinned: &images.pause,
        guarded: &guarded,
    };
    let transcript = tour::run(subject, &images)?;
    // What a step prints when it has done what it is there for; the rest is compared with the peer's.
    for line in [
        "version.runtime_name: \"<runtime>\"",
        "condition.type: \"NetworkReady\"",
        "image is up to date for <image>",
        "stdout: started",
        "stderr: warning",
        "stdout: \"out\\ntour\\n0\\n\" stderr: \"err\\n\"",
        "stdout: [hello] stderr: [err] end: command terminated with exit code 4",
        "stdout: [heard a word]",
        "resources.linux.memory_limit_in_bytes: 100663296",
        "web: container_cpu_usage_seconds_total COUNTER tour,default,web,<web>,<registry>/suite/basic:1",
        "<web>: CREATED STARTED STOPPED DELETED",
        "<pod>: CREATED STARTED STOPPED DELETED",
    ] {
        ensure!(transcript.lines().any(|own| own.trim() == line), "no line {line:?} in:\n{transcript}");
    }
    node.assert_clean(&before)
}
