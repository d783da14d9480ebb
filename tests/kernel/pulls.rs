//! Images as CRI shows them, and their coming and going: https, removal under a container, progress.

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::image::{Image, Layer};
use gantry_tests::node::Node;
use gantry_tests::paused_registry::PausedRegistry;
use gantry_tests::place;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use std::time::Duration;

use crate::images::{ready, web_image};

const PATIENCE: Duration = Duration::from_secs(60);

fn spec(image: &str) -> Option<cri::ImageSpec> {
    Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() })
}

fn status(node: &Node, image: &str) -> Result<cri::ImageStatusResponse> {
    let request = cri::ImageStatusRequest { image: spec(image), verbose: true };
    Ok(node.cri().image_status(request)?)
}

fn remove(node: &Node, image: &str) -> Result<()> {
    node.cri().remove_image(cri::RemoveImageRequest { image: spec(image) })?;
    Ok(())
}

fn layer_folders(node: &Node) -> Result<usize> {
    Ok(std::fs::read_dir(node.root().join("layers"))?.count())
}

fn measure_usage(node: &Node) -> Result<(u64, u64)> {
    let info = node.cri().image_fs_info(cri::ImageFsInfoRequest::default())?;
    let [usage] = info.image_filesystems.as_slice() else {
        anyhow::bail!("{info:?}");
    };
    assert_eq!(usage.fs_id.as_ref().context("no mount point")?.mountpoint, node.root().display().to_string());
    assert!(usage.timestamp > 0);
    let value = |value: &Option<cri::UInt64Value>| value.as_ref().map_or(0, |value| value.value);
    Ok((value(&usage.used_bytes), value(&usage.inodes_used)))
}

#[test]
fn https_with_an_authority_of_the_hosts_toml() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let (secured, node) = (registry.serve_tls()?, Node::start()?);
    let host = secured.host();
    let image = format!("{host}/demo/web:v1");
    // Loopback is spoken to in plain HTTP until the node is told otherwise.
    assert!(node.pull(&image).is_err());
    let server = format!("server = \"https://{host}\"\n");
    node.registry_config(&host, &server, &[])?;
    let error = node.pull(&image).expect_err("nobody vouches for the server");
    for words in ["certificate is not trusted", "hosts.toml", host.as_str()] {
        assert!(error.message().contains(words), "{words} in {}", error.message());
    }
    node.registry_config(&host, &format!("{server}ca = \"ca.pem\"\n"), &[("ca.pem", &secured.authority)])?;
    let id = node.pull(&image)?;
    assert_eq!(status(&node, &image)?.image.context("not there")?.id, id);
    remove(&node, &image)?;
    node.registry_config(&host, &format!("{server}skip_verify = true\n"), &[])?;
    assert_eq!(node.pull(&image)?, id);
    // A server of plain HTTP where TLS is expected is told from one that is down.
    let plain = registry.host();
    node.registry_config(&plain, &format!("server = \"https://{plain}\"\n"), &[])?;
    let error = node.pull(&format!("{plain}/demo/web:v1")).expect_err("it speaks no TLS");
    assert!(error.message().contains("does not speak https"), "{}", error.message());
    Ok(())
}

#[test]
fn rt_1_11_an_image_can_go_while_its_container_runs_and_starts() -> Result<()> {
    let ready = ready()?;
    let node = &ready.node;
    let mut node_again = None;
    let before = layer_folders(node)?;
    assert!(before >= 3);
    let id = status(node, &ready.image)?.image.context("not there")?.id;
    {
        let pod = Pod::run(node, "pins")?;
        let script = ["/bin/sh", "-c", "cat /srv/index.html; exit 5"];
        let container = pod.create(&pod::container_config("late", &ready.image, &script))?;
        remove(node, &id)?;
        remove(node, &id)?;
        assert!(status(node, &ready.image)?.image.is_none());
        assert!(node.cri().list_images(cri::ListImagesRequest::default())?.images.is_empty());
        assert_eq!(layer_folders(node)?, before, "the container needs them");
        let (pod_id, config) = (pod.id.clone(), container);
        node_again = Some((pod_id, config)).or(node_again);
    }
    let Some((pod_id, container)) = node_again else { anyhow::bail!("no container") };
    let mut node = ready.node;
    node.restart()?;
    assert_eq!(layer_folders(&node)?, before, "the next runtime knows that, too");
    node.cri().start_container(cri::StartContainerRequest { container_id: container.clone() })?;
    assert_eq!(pod::await_exit(&node, &container)?.exit_code, 5);
    node.cri().remove_container(cri::RemoveContainerRequest { container_id: container })?;
    assert_eq!(layer_folders(&node)?, 0);
    node.cri().stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: pod_id.clone() })?;
    node.cri().remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: pod_id })?;
    node.pull(&ready.image).context("pull it again")?;
    assert_eq!(layer_folders(&node)?, before);
    node.assert_clean(&ready.before)
}

#[test]
fn fs_info_follows_layers_and_what_containers_write() -> Result<()> {
    let ready = ready()?;
    let (node, image) = (&ready.node, ready.image.as_str());
    let (bytes, inodes) = measure_usage(node)?;
    assert!(bytes > 1 << 20 && inodes > 10, "{bytes} bytes, {inodes} inodes");
    let pod = Pod::run(node, "writes")?;
    let script = "dd if=/dev/zero of=/big bs=1M count=8; touch /a /b /c";
    let id = pod.start(&pod::container_config("writer", image, &["/bin/sh", "-c", script]))?;
    assert_eq!(pod::await_exit(node, &id)?.exit_code, 0);
    let (more, files) = measure_usage(node)?;
    assert!(more >= bytes + (8 << 20) && files >= inodes + 4, "{more} bytes, {files} inodes");
    pod.remove()?;
    assert_eq!(measure_usage(node)?, (bytes, inodes));
    remove(node, image)?;
    assert_eq!(measure_usage(node)?, (0, 0));
    node.assert_clean(&ready.before)
}

#[test]
fn a_pull_under_way_shows_its_layers() -> Result<()> {
    place::require_own_namespaces()?;
    let noise: Vec<u8> = (0..2_000_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let layers = vec![Layer::default().file("small", 0o644, "x"), Layer::default().file("big", 0o644, noise)];
    let built = Image { layers, ..Image::default() }.build()?;
    let (held, node) = (PausedRegistry::serve(&built)?, Node::start()?);
    let image = held.reference();
    let before = node.snapshot()?;
    let pulled = std::thread::scope(|scope| -> Result<String> {
        let pull = scope.spawn(|| {
            let client = gantry_tests::cri::Cri::new(&node.roots().path("cri.sock"))?;
            let request = cri::PullImageRequest { image: spec(&image), ..Default::default() };
            anyhow::Ok(client.pull_image(request)?.image_ref)
        });
        let half = poll("half of the last layer", PATIENCE, || {
            let answer = status(&node, &image).map_err(|error| error.to_string())?;
            assert!(answer.image.is_none());
            let text = answer.info.get("pull").cloned().unwrap_or_default();
            let pull: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let last = &pull["layers"][1];
            let is_half = last["downloaded"].as_u64() == last["total"].as_u64().map(|total| total / 2);
            if is_half && last["total"].is_u64() { Ok(pull.clone()) } else { Err(text) }
        });
        held.release();
        let pulled = pull.join().expect("the pulling thread")?;
        let half = half?;
        assert_eq!(half["layers"][1]["stage"], "downloading");
        assert_eq!(half["layers"][1]["digest"], built.layers[1].digest.as_str());
        Ok(pulled)
    })?;
    let answer = status(&node, &image)?;
    assert_eq!(answer.image.context("not there")?.id, pulled);
    assert!(!answer.info.contains_key("pull"), "it is over");
    let info: serde_json::Value = serde_json::from_str(&answer.info["info"])?;
    assert_eq!(info["imageSpec"]["os"], "linux");
    assert!(info["chainID"].as_str().is_some_and(|id| id.starts_with("sha256:")));
    remove(&node, &image)?;
    node.assert_clean(&before)
}
