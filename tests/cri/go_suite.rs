//! The Go suite over CRI; what it expects was proved on containerd (`tests/peer`).

use anyhow::{Context, Result};
use gantry_tests::node::Node;
use gantry_tests::registry::Registry;
use gantry_tests::suite;
use serde_json::json;

/// Checks of what the complete CRI will bring, refused by name until then.
const NOT_YET: &[&str] = &[];

#[test]
fn go_suite_on_gantry() -> Result<()> {
    let node = Node::start()?;
    let mut bridge = node.bridge_plugin()?;
    bridge["ipMasq"] = true.into();
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    node.set_network(&json!([bridge, portmap]))?;
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    // Pulled first: the layers of images that stay are no leak.
    for image in &images.all {
        node.pull(image).with_context(|| format!("pull {image}"))?;
    }
    let before = node.snapshot()?;
    suite::run_but(&node.roots().path("cri.sock"), &images, node.roots().tag(), NOT_YET)?;
    node.assert_clean(&before)
}
