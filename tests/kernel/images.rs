//! The images that the tests run, and the shape most tests have: a registry, a node with the image
//! pulled, a snapshot. Owns no test. Called by every file of this tier.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use gantry_tests::image::{Image, Layer};
use gantry_tests::leakcheck::Snapshot;
use gantry_tests::node::Node;
use gantry_tests::place;
use gantry_tests::registry::Registry;

/// The page in the third layer of the web image.
pub(crate) const PAGE: &str = "a page from the third layer\n";

/// busybox, our workload, and a configuration layer.
pub(crate) fn web_image() -> Result<Image> {
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
pub(crate) struct Ready {
    pub(crate) node: Node,
    pub(crate) registry: Registry,
    pub(crate) image: String,
    pub(crate) before: Snapshot,
}

/// Starts the registry and the node, pulls, looks around.
pub(crate) fn ready() -> Result<Ready> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let node = Node::start()?;
    node.pull(&image).context("PullImage")?;
    let before = node.snapshot()?;
    Ok(Ready { node, registry, image, before })
}

/// `key value` lines of the workload's `id` as a map.
pub(crate) fn facts(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(' ').or(Some((line, ""))))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
