//! A real server from a real distribution, under a real load, through a host port.

use std::net::Ipv4Addr;

use anyhow::Result;
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;
use gantry_tests::{debian, http, load, place};

const HOST_PORT: u16 = 18080;

fn manifest(image: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: nginx}}
spec:
  restartPolicy: Never
  containers:
  - name: nginx
    image: "{image}"
    ports: [{{containerPort: 80, hostPort: {HOST_PORT}}}]
    readinessProbe: {{httpGet: {{path: /health, port: 80}}, periodSeconds: 1}}
"#
    )
}

#[test]
fn nginx_serves_ten_thousand_requests_by_host_port() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("debian/nginx", "v1", &debian::nginx_image()?.build()?)?;
    let roots = Roots::new()?;
    // The built-in network has host ports.
    std::fs::remove_file(roots.path("net.d/10-test.conflist"))?;
    let scope = Scope { folders: Vec::new(), bridges: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut run = Standalone::start(roots, &manifest(&image))?;
    run.await_pods("nginx to be ready", 60, |pods| {
        (pods.first()?.pointer("/containers/0/ready")? == true).then_some(())
    })?;
    let addr = (Ipv4Addr::LOCALHOST, HOST_PORT).into();
    let page = http::get(addr, "/")?;
    assert_eq!((page.status, page.text().as_str()), (200, debian::nginx_page()));
    load::requests(addr, 10_000)?;
    // SIGTERM is nginx's fast shutdown, with exit code 0.
    let stopped = run.gantry_ok("stop", &["nginx"])?;
    assert!(stopped.contains("exit code 0 (Completed)"), "{stopped}");
    assert!(run.await_end()?.success(), "{}", run.stderr());
    before.await_clean(&scope)
}
