//! The Go suite over CRI; what it expects was proved on containerd (`tests/peer`).

use anyhow::{Context, Result};
use gantry_tests::node::{Node, Programs, Roots};
use gantry_tests::registry::Registry;
use gantry_tests::suite::{self, Subject};
use gantry_tests::{criu, place};
use serde_json::json;

/// Checks of what the complete CRI will bring, refused by name until then.
const NOT_YET: &[&str] = &[];

#[test]
fn go_suite_on_gantry() -> Result<()> {
    // The suite looks at a node without criu, whatever this machine has.
    let programs = Programs { variables: vec![criu::none()], ..Programs::built()? };
    let mut node = Node::start_with(Roots::new()?, programs)?;
    let mut bridge = node.bridge_plugin()?;
    bridge["ipMasq"] = true.into();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    node.set_network(&json!([bridge, portmap]))?;
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    let guarded = registry.serve_with_password()?;
    let runc = format!("--handlers=runc:type=oci,path={}", place::bin_dir()?.join("runc").display());
    node.restart_with(&[format!("--pinned-images={}", images.pause), runc])?;
    // Pulled first: the layers of images that stay are no leak.
    for image in &images.all {
        node.pull(image).with_context(|| format!("pull {image}"))?;
    }
    node.pull(&images.pause)?;
    let before = node.snapshot()?;
    let subject = Subject {
        socket: &node.socket(),
        cgroup_tag: node.roots().tag(),
        within: None,
        pinned: &images.pause,
        handler: &std::env::var(suite::HANDLER).unwrap_or_default(),
        guarded: &guarded,
    };
    suite::run_but(subject, &images, NOT_YET)?;
    node.assert_clean(&before)
}
