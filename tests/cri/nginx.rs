//! A real server from a real distribution, under a real load.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::node::Node;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use gantry_tests::{debian, http, place};

/// The number of an `ab` line like `Failed requests:        0`.
fn number(report: &str, name: &str) -> Result<u64> {
    let line = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let line = line.with_context(|| format!("ab tells no {name}:\n{report}"))?;
    Ok(line.trim().parse()?)
}

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

    let output = Command::new("ab")
        .args(["-q", "-n", "10000", "-c", "50", &format!("http://{addr}/")])
        .stdin(Stdio::null())
        .output()
        .context("start ab: apt-get install apache2-utils")?;
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{report}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(number(&report, "Complete requests")?, 10_000, "{report}");
    assert_eq!(number(&report, "Failed requests")?, 0, "{report}");
    assert!(!report.contains("Non-2xx"), "{report}");

    // SIGTERM is nginx's fast shutdown, with exit code 0.
    let request = cri::StopContainerRequest { container_id: id.clone(), timeout: 10 };
    node.cri().stop_container(request).context("StopContainer")?;
    assert_eq!(pod::container_status(&node, &id)?.exit_code, 0);
    pod.remove()?;
    node.assert_clean(&before)
}
