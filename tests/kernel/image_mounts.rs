//! Images that a container mounts: what it sees of them, what keeps them, and what is refused.

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::image::{Image, Layer};
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};

use crate::images::{Ready, ready};

/// Two layers, of which the upper one hides, replaces and links.
fn data() -> Image {
    let lower = Layer::default()
        .dir("data", 0o755)
        .file("data/kept", 0o644, "kept\n")
        .file("data/gone", 0o644, "gone\n")
        .dir("opaque", 0o755)
        .file("opaque/old", 0o644, "old\n");
    let upper = Layer::default()
        .file("data/new", 0o644, "new\n")
        .file("data/.wh.gone", 0o644, "")
        .dir("opaque", 0o755)
        .file("opaque/.wh..wh..opq", 0o644, "")
        .symlink("inside", "/data")
        .symlink("up", "../../../../../../etc")
        .symlink("out", "/proc/self/root/etc");
    Image { layers: vec![lower, upper], cmd: vec!["/none".into()], ..Image::default() }
}

fn push(ready: &Ready, name: &str, image: &Image) -> Result<String> {
    let reference = ready.registry.push(name, "v1", &image.build()?)?;
    ready.node.pull(&reference)?;
    Ok(reference)
}

fn mount(image: &str, sub_path: &str, at: &str) -> cri::Mount {
    cri::Mount {
        container_path: at.into(),
        readonly: true,
        image: Some(cri::ImageSpec { image: image.into(), ..Default::default() }),
        image_sub_path: sub_path.into(),
        ..Default::default()
    }
}

fn config(ready: &Ready, name: &str, script: &str, mounts: Vec<cri::Mount>) -> cri::ContainerConfig {
    let mut config = pod::container_config(name, &ready.image, &["/bin/sh", "-c", script]);
    config.mounts = mounts;
    config
}

fn layer_folders(node: &Node) -> Result<usize> {
    Ok(std::fs::read_dir(node.root().join("layers"))?.count())
}

fn remove_image(node: &Node, image: &str) -> Result<()> {
    let image = Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() });
    node.cri().remove_image(cri::RemoveImageRequest { image })?;
    Ok(())
}

#[test]
fn an_image_is_mounted_whole_or_in_part_and_never_written_to() -> Result<()> {
    let ready = ready()?;
    let two = push(&ready, "demo/two", &data())?;
    let single = Image { layers: data().layers.into_iter().take(1).collect(), ..data() };
    let one = push(&ready, "demo/one", &single)?;
    let before = ready.node.snapshot()?;
    let pod = Pod::run(&ready.node, "images")?;
    let mounts =
        vec![mount(&two, "", "/two"), mount(&two, "inside", "/part"), mount(&one, "data/", "/two/opaque")];
    let script = "cd /two; echo * data/*; cat /part/kept; ls /two/opaque
        for f in /two/x /two/data/kept /part/x /two/opaque/x; do touch $f 2>&1 | grep -q Read-only && echo refused; done
        mount | grep -c ' /two \\| /part \\| /two/opaque '";
    let id = pod.start(&config(&ready, "look", script, mounts))?;
    let status = pod::await_exit(&ready.node, &id)?;
    let log = pod.log("look")?;
    assert_eq!(status.exit_code, 0, "{log}");
    let expected = "data inside opaque out up data/kept data/new\nkept\ngone\nkept\nrefused\nrefused\n\
                    refused\nrefused\n3\n";
    assert_eq!(log, expected);
    let told = status.mounts.get(1).context("no second mount")?;
    assert_eq!(told.image.as_ref().map(|image| image.image.as_str()), Some(two.as_str()));
    assert_eq!((told.image_sub_path.as_str(), told.host_path.as_str()), ("inside", ""));
    pod.remove()?;
    ready.node.assert_clean(&before)
}

#[test]
fn what_is_not_in_the_image_is_refused_at_once_and_leaves_nothing() -> Result<()> {
    let ready = ready()?;
    let two = push(&ready, "demo/two", &data())?;
    let before = ready.node.snapshot()?;
    let pod = Pod::run(&ready.node, "images")?;
    let refusal = |image: &str, sub_path: &str| {
        let config = config(&ready, "refused", "true", vec![mount(image, sub_path, "/vol")]);
        pod.create(&config).expect_err("it was made").message().to_owned()
    };
    // The links lead to what the node has and the image has not.
    for sub_path in ["none", "data/gone", "up", "out", "out/ssl"] {
        let said = refusal(&two, sub_path);
        let words = format!("ImageVolumeMountFailed: failed to ensure image subpath \"{sub_path}\" in ");
        assert!(said.starts_with(&words) && said.ends_with("no such file or directory"), "{said}");
    }
    let said = refusal(&two, "data/new");
    assert!(said.contains("only directory subpath is supported"), "{said}");
    let said = refusal("demo/none:v1", "");
    assert!(
        said.starts_with("ImageVolumeMountFailed: failed to resolve image \"demo/none:v1\": not found"),
        "{said}"
    );
    pod.remove()?;
    ready.node.assert_clean(&before)
}

#[test]
fn rt_1_11_an_image_stays_while_a_container_mounts_it_whoever_is_killed() -> Result<()> {
    let mut ready = ready()?;
    let without = layer_folders(&ready.node)?;
    let two = push(&ready, "demo/two", &data())?;
    let with = layer_folders(&ready.node)?;
    assert!(with > without);
    let script = "cat /vol/data/new; sleep 1000";
    let (sandbox, runs, waits) = {
        let pod = Pod::run(&ready.node, "holds")?;
        let runs = pod.start(&config(&ready, "runs", script, vec![mount(&two, "", "/vol")]))?;
        let waits =
            pod.create(&config(&ready, "waits", "cat /vol/new", vec![mount(&two, "data", "/vol")]))?;
        (pod.id.clone(), runs, waits)
    };
    remove_image(&ready.node, &two)?;
    ready.node.restart()?;
    let node = &ready.node;
    assert_eq!(layer_folders(node)?, with, "two containers need them");
    node.cri().start_container(cri::StartContainerRequest { container_id: waits.clone() })?;
    assert_eq!(pod::await_exit(node, &waits)?.exit_code, 0);
    let read = cri::ExecSyncRequest {
        container_id: runs.clone(),
        cmd: ["/bin/cat", "/vol/data/new"].map(str::to_owned).to_vec(),
        timeout: 10,
    };
    assert_eq!(node.cri().exec_sync(read)?.stdout, b"new\n");
    node.cri().stop_container(cri::StopContainerRequest { container_id: runs.clone(), timeout: 0 })?;
    node.cri().remove_container(cri::RemoveContainerRequest { container_id: runs })?;
    assert_eq!(layer_folders(node)?, with, "one still does");
    node.cri().remove_container(cri::RemoveContainerRequest { container_id: waits })?;
    assert_eq!(layer_folders(node)?, without);
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() })?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox })?;
    ready.node.assert_clean(&ready.before)
}
