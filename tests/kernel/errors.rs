//! What goes wrong says so clearly and leaves nothing behind.

use anyhow::Result;
use gantry_proto::cri;
use gantry_tests::node::Node;
use gantry_tests::place;
use gantry_tests::pod::{self, Pod};
use gantry_tests::registry::{self, Registry};
use tonic::Code;

use crate::images::{ready, web_image};

/// A pull that must fail with all these words, and leave the node as it was.
fn assert_pull_fails(node: &Node, image: &str, words: &[&str]) -> Result<()> {
    let before = node.snapshot()?;
    let Err(error) = node.pull(image) else { anyhow::bail!("pulled {image}, which cannot be pulled") };
    let message = error.message().to_lowercase();
    for word in words {
        assert!(message.contains(&word.to_lowercase()), "{word:?} is not in {message:?}");
    }
    let images = node.cri().list_images(cri::ListImagesRequest::default())?.images;
    assert!(images.is_empty(), "{images:?}");
    node.assert_clean(&before)
}

#[test]
fn a_name_that_the_registry_does_not_know() -> Result<()> {
    place::require_own_namespaces()?;
    let (registry, node) = (Registry::start()?, Node::start()?);
    let image = format!("{}/no/such:v1", registry.host());
    assert_pull_fails(&node, &image, &["no/such", "not found"])
}

#[test]
fn a_name_that_is_none() -> Result<()> {
    let node = Node::start()?;
    for image in ["", "127.0.0.1:1/UPPER/case:x", "a b", "x@sha256:12", "127.0.0.1:1/x:"] {
        let error = node.pull(image).expect_err("pulled a name that is none");
        assert!(matches!(error.code(), Code::InvalidArgument | Code::Unknown), "{image:?}: {error:?}");
    }
    Ok(())
}

#[test]
fn a_registry_that_is_down() -> Result<()> {
    let node = Node::start()?;
    let addr = registry::free_port()?;
    assert_pull_fails(&node, &format!("{addr}/demo/web:v1"), &[&addr.to_string(), "refused"])
}

#[test]
fn a_layer_with_a_flipped_bit_takes_its_good_siblings_along() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let built = web_image()?.build()?;
    let image = registry.push("demo/web", "v1", &built)?;
    let node = Node::start()?;
    registry.corrupt(&built.layers[1].digest)?;
    assert_pull_fails(&node, &image, &[&built.layers[1].digest])?;
    // Mended, it can be pulled by the same runtime.
    registry.corrupt(&built.layers[1].digest)?;
    node.pull(&image)?;
    Ok(())
}

#[test]
fn a_config_with_a_flipped_bit() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let built = web_image()?.build()?;
    let image = registry.push("demo/web", "v1", &built)?;
    let node = Node::start()?;
    registry.corrupt(&built.config.digest)?;
    assert_pull_fails(&node, &image, &[&built.config.digest])
}

#[test]
fn a_container_of_an_image_that_is_not_there() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "none")?;
    let error =
        pod.create(&pod::container_config("none", "docker.io/library/none:v1", &[])).expect_err("created");
    assert_eq!(error.code(), Code::NotFound, "{error:?}");
    assert!(error.message().contains("none:v1"), "{error:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn ids_that_nobody_knows() -> Result<()> {
    let node = Node::start()?;
    let cri = node.cri();
    let id = "0123456789abcdef".to_owned();
    let unknown =
        cri.container_status(cri::ContainerStatusRequest { container_id: id.clone(), verbose: false });
    assert_eq!(unknown.expect_err("knew it").code(), Code::NotFound);
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id.clone(), verbose: false };
    assert_eq!(cri.pod_sandbox_status(request).expect_err("knew it").code(), Code::NotFound);
    // What is asked to end, and is not there, has ended.
    cri.stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() })?;
    cri.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: id.clone() })?;
    cri.stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 0 })?;
    cri.remove_container(cri::RemoveContainerRequest { container_id: id })?;
    Ok(())
}

#[test]
fn the_same_sandbox_twice_is_refused() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "twice")?;
    let config = pod::sandbox_config(&ready.node, "twice");
    let request = cri::RunPodSandboxRequest { config: Some(config), ..Default::default() };
    match ready.node.cri().run_pod_sandbox(request) {
        // A retry of a call whose answer was lost gets the sandbox that there is.
        Ok(answer) => assert_eq!(answer.pod_sandbox_id, pod.id),
        Err(error) => assert!(error.message().contains("twice"), "{error:?}"),
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn the_runtime_tells_what_it_is() -> Result<()> {
    let node = Node::start()?;
    let version = node.cri().version(cri::VersionRequest { version: "v1".into() })?;
    assert_eq!((version.runtime_name.as_str(), version.runtime_api_version.as_str()), ("gantry", "v1"));
    let conditions = node.cri().status(cri::StatusRequest::default())?.status.unwrap_or_default().conditions;
    for kind in ["RuntimeReady", "NetworkReady"] {
        assert!(conditions.iter().any(|one| one.r#type == kind && one.status), "{kind}: {conditions:?}");
    }
    node.cri().runtime_config(cri::RuntimeConfigRequest::default())?;
    Ok(())
}
