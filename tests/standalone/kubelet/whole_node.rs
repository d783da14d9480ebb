//! `gantry node`: a runtime and a kubelet in one process.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::cri::Cri;
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use rustix::process::Signal;

use super::{Kubelet, SharedRootMount, flags, healthy, remove_kubepods};

fn start(roots: &Roots, kubelet: &[String]) -> Result<Kubelet> {
    let mut command = Command::new(place::bin_dir()?.join("gantry"));
    let socket = format!("--socket=unix://{}", roots.path("cri.sock").display());
    command.arg("node").args(roots.flags()?).args([socket, "--".to_owned()]).args(kubelet);
    Kubelet::spawn(roots, &mut command)
}

/// Each container as another client of the runtime sees it.
fn containers(roots: &Roots) -> Result<Vec<String>, String> {
    let list = || -> Result<Vec<String>> {
        let cri = Cri::new(&roots.path("cri.sock"))?;
        let listed = cri.list_containers(gantry_proto::cri::ListContainersRequest::default())?;
        Ok(listed
            .containers
            .iter()
            .map(|container| format!("{} {}", container.id, container.state))
            .collect())
    };
    list().map_err(|error| format!("{error:#}"))
}

#[test]
fn a_node_is_one_process_and_its_pods_outlive_it() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let before = Snapshot::take(&Scope { folders: Vec::new(), ..roots.scope() })?;
    let shared = SharedRootMount(&roots);
    let flags = flags(&roots, "")?;
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - {{name: web, image: '{image}'}}\n"
    );
    std::fs::write(roots.path("manifests/web.yaml"), manifest)?;
    let mut node = start(&roots, &flags)?;
    healthy(&node)?;
    let running = poll("the static pod to run", Duration::from_secs(90), || {
        let all = containers(&roots)?;
        let is_up = all.len() == 1 && all.iter().all(|container| container.ends_with(" 1"));
        if is_up { Ok(all) } else { Err(format!("{all:?}\n{}", node.log())) }
    })?;

    node.signal(Signal::TERM)?;
    assert!(node.ends()?.success(), "{}", node.log());
    assert!(!roots.path("cri.sock").exists(), "the socket of a runtime that has ended");
    let mut node = start(&roots, &flags)?;
    healthy(&node)?;
    assert_eq!(containers(&roots).ok(), Some(running.clone()), "{}", node.log());
    node.signal(Signal::KILL)?;
    node.ends()?;
    let node = start(&roots, &flags)?;
    healthy(&node)?;
    assert_eq!(containers(&roots).ok(), Some(running), "{}", node.log());

    std::fs::remove_file(roots.path("manifests/web.yaml"))?;
    poll("the static pod to go", Duration::from_secs(90), || {
        let left = containers(&roots)?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", node.log())) }
    })?;
    drop(node);
    drop(shared);
    drop(registry);
    remove_kubepods(&roots)?;
    before.await_clean(&Scope { folders: Vec::new(), ..roots.scope() })
}

#[test]
fn a_node_whose_half_cannot_start_ends_with_1_and_says_why() -> Result<()> {
    place::require_own_namespaces()?;
    let roots = Roots::new()?;
    let _shared = SharedRootMount(&roots);
    let good = flags(&roots, "")?;
    let mut bad = good.clone();
    bad.push("--nonsense".to_owned());
    let mut node = start(&roots, &bad)?;
    assert_eq!(node.ends()?.code(), Some(1));
    assert!(node.log().contains("unknown flag: --nonsense"), "{}", node.log());
    assert!(!roots.path("root").exists(), "no runtime starts for a kubelet that cannot");

    let _taken = std::os::unix::net::UnixListener::bind(roots.path("cri.sock")).context("take the socket")?;
    let mut node = start(&roots, &good)?;
    assert_eq!(node.ends()?.code(), Some(1));
    assert!(node.log().contains("cri.sock"), "{}", node.log());
    Ok(())
}
