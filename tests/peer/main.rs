//! The peer tier: the checks of the CRI tier on containerd, because a check that fails there expects
//! too much, and what the agent hears from containerd beyond CRI. Takes minutes, so it is part of `cargo xtask test --full` only.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

mod runtime_ext;
mod tour;

use anyhow::{Context, Result};
use gantry_tests::containerd::{Containerd, ContainerdOptions, Tuning};
use gantry_tests::registry::Registry;
use gantry_tests::suite::{self, Subject};

#[test]
fn go_suite_on_containerd() -> Result<()> {
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
    containerd.trust(&guarded.host())?;
    let subject = Subject {
        handler: "",
        socket: &containerd.socket(),
        cgroup_tag: containerd.tag(),
        within: Some(containerd.pid()),
        pinned: &images.pause,
        guarded: &guarded,
    };
    suite::run(subject, &images).with_context(|| containerd.log_tail())?;
    before.await_clean(&containerd.scope())
}
