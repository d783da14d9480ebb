//! A real server from a real distribution, under a real load.

use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use gantry_tests::{debian, http, load, place};

#[test]
fn nginx_from_debian_packages_serves_many_requests_without_an_error() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("debian/nginx", "v1", &debian::nginx_image()?.build()?)?;
    let node = Node::start()?;
    node.pull(&image).context("PullImage")?;
    let before = node.snapshot()?;
    let pod = Pod::run(&node, "nginx")?;
    let id = pod.start(&pod::container_config("nginx", &image, &[]))?;
    let addr = pod.addr(80)?;
    let page = poll("nginx to answer", Duration::from_secs(30), || {
        http::get(addr, "/").map_err(|error| format!("{error:#}"))
    });
    let page = page.with_context(|| pod.log("nginx").unwrap_or_default())?;
    assert_eq!((page.status, page.text().as_str()), (200, debian::nginx_page()));

    load::requests(addr, 10_000)?;

    // SIGTERM is nginx's fast shutdown, with exit code 0.
    let request = cri::StopContainerRequest { container_id: id.clone(), timeout: 10 };
    node.cri().stop_container(request).context("StopContainer")?;
    assert_eq!(pod::container_status(&node, &id)?.exit_code, 0);
    pod.remove()?;
    node.assert_clean(&before)
}
