//! The first half: pods that run, that have ended, that ended while the runtime was down, and one
//! so late that the disk may never hear of it.

mod agent;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::image::{Image, Layer};
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::proc;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;

use crate::{Container, RuntimeBefore, Which};

/// A pod of one container; its ids.
fn start(node: &Node, name: &str, image: &str, command: &[&str]) -> Result<(String, String)> {
    let pod = Pod::run(node, name)?;
    let container = pod.start(&pod::container_config(name, image, command))?;
    Ok((pod.id, container))
}

#[test]
fn pods_are_left_for_the_other_half() -> Result<()> {
    let registry = Registry::start()?;
    let web = web_image()?;
    let image = registry.push("reboot/web", "v1", &web.build()?)?;
    let mut layers = web.layers.clone();
    layers.push(Layer::default().file("late", 0o644, vec![7; 3_000_000]));
    let late = registry.push("reboot/late", "v1", &Image { layers, ..web.clone() }.build()?)?;

    let mut node = Node::start_on(Which::Cri.roots()?)?;
    node.pull(&image).context("PullImage")?;
    let runs = start(&node, "runs", &image, &["/workload", "count", "42"])?;
    let ended = start(&node, "ended", &image, &["/workload", "exit", "3"])?;
    assert_eq!(pod::await_exit(&node, &ended.1)?.exit_code, 3);
    let down = start(&node, "down", &image, &["/workload", "count", "7", "8"])?;
    node.kill()?;
    proc::await_end_of("count 7 8")?;
    node.restart()?;
    assert_eq!(pod::await_exit(&node, &down.1)?.exit_code, 7);

    // A pull that died between its folder and the index's record. 26 characters, as theirs have.
    let stray = node.root().join("layers/strayabcdefghijklmnopqrstu");
    std::fs::create_dir(&stray)?;
    std::fs::write(stray.join("x"), "nobody's")?;
    let made = RuntimeBefore {
        image,
        layers: web.layers.len(),
        late: late.clone(),
        sandboxes: [&runs, &ended, &down].map(|(sandbox, _)| sandbox.clone()).to_vec(),
        containers: vec![
            Container { id: runs.1, exit_code: None },
            Container { id: ended.1, exit_code: Some(3) },
            Container { id: down.1, exit_code: Some(7) },
        ],
        stray,
    };
    std::fs::write(Which::Cri.handed_over(), serde_json::to_vec_pretty(&made)?)?;
    // What follows is younger than this: a power cut may or may not take it along.
    rustix::fs::sync();

    node.pull(&late).context("PullImage of the late one")?;
    let late = start(&node, "late", &late, &["/workload", "count", "1"])?;
    let request = cri::ContainerStatusRequest { container_id: late.1, verbose: false };
    node.cri().container_status(request).context("ContainerStatus of the late one")?;
    // Running when the machine goes down, as a node is.
    std::mem::forget(node);
    Ok(())
}
