//! The image that most tests run, and the shape most tests have: a registry, a node with the image
//! pulled, a snapshot. Owns no test. Called by every tier that runs pods.

use anyhow::{Context, Result};

use crate::image::{Image, Layer};
use crate::leakcheck::Snapshot;
use crate::node::Node;
use crate::place;
use crate::registry::Registry;

/// The page in the third layer of the web image.
pub const PAGE: &str = "a page from the third layer\n";

/// busybox, our workload, and a configuration layer.
///
/// # Errors
/// When the workload is not built or busybox is not installed.
pub fn web_image() -> Result<Image> {
    let workload = place::bin_dir()?.join("gantry-workload");
    let workload = std::fs::read(&workload).with_context(|| workload.display().to_string())?;
    Ok(Image {
        layers: vec![
            Layer::busybox()?,
            Layer::default().file("workload", 0o755, workload),
            Layer::default()
                .dir("srv", 0o755)
                .file("srv/index.html", 0o644, PAGE)
                .file("srv/secret", 0o600, "root's own")
                .file("etc/motd", 0o644, "hi"),
        ],
        entrypoint: vec!["/workload".into()],
        cmd: vec!["web".into(), "8080".into(), "/srv/index.html".into()],
        env: vec!["PATH=/bin".into(), "FROM_IMAGE=yes".into()],
        user: String::new(),
        workdir: "/srv".into(),
    })
}

/// A node with the web image pulled.
#[derive(Debug)]
pub struct Ready {
    pub node: Node,
    pub registry: Registry,
    pub image: String,
    pub before: Snapshot,
}

/// Starts the registry and the node, pulls, looks around.
///
/// # Errors
/// When this is not a place for it, or something does not start.
pub fn ready() -> Result<Ready> {
    place::require_own_namespaces()?;
    ready_on(Node::start()?)
}

/// The same on a node that was started otherwise.
///
/// # Errors
/// As above.
pub fn ready_on(node: Node) -> Result<Ready> {
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    node.pull(&image).context("PullImage")?;
    node.await_durable()?;
    let before = node.snapshot()?;
    Ok(Ready { node, registry, image, before })
}
