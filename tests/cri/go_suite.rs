//! The Go suite over CRI, first on the peer: a check that fails there expects too much.

use anyhow::{Context, Result};
use gantry_tests::containerd::{Containerd, Options};
use gantry_tests::node::Node;
use gantry_tests::registry::Registry;
use gantry_tests::suite;

#[test]
fn go_suite_on_containerd() -> Result<()> {
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    let containerd = Containerd::start(Options { registry: &registry, pause: &images.pause, portmap: true })?;
    let before = containerd.snapshot()?;
    suite::run(&containerd.socket(), &images, containerd.tag()).with_context(|| containerd.log_tail())?;
    before.await_clean(&containerd.scope())
}

#[test]
fn go_suite_on_gantry() -> Result<()> {
    let node = Node::start()?;
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    // Pulled first: the layers of images that stay are no leak.
    for image in &images.all {
        node.pull(image).with_context(|| format!("pull {image}"))?;
    }
    let before = node.snapshot()?;
    suite::run(&node.roots().path("cri.sock"), &images, node.roots().tag())?;
    node.assert_clean(&before)
}
