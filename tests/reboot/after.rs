//! The second half: a new boot on the old disk.

mod agent;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::{ContainerState, PodSandboxState};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::{Node, Roots};
use gantry_tests::pod::{self, Pod};

use crate::{RuntimeBefore, Which};

/// Paths of the files in a folder and those below it.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

/// Each lease's owner, as host-local writes it: the sandbox and the interface. A file without one
/// is what a power cut leaves of a lease: whether its address is free again shows in the end.
fn leases(roots: &Roots) -> Result<BTreeSet<String>> {
    let mut owners = BTreeSet::new();
    for path in files(&roots.path("leases"))? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name != "lock" && !name.starts_with("last_reserved_ip") {
            let text = std::fs::read_to_string(&path)?;
            owners.extend(text.split_whitespace().next().map(str::to_owned));
        }
    }
    Ok(owners)
}

fn sandboxes(node: &Node) -> Result<Vec<cri::PodSandbox>> {
    Ok(node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default()).context("ListPodSandbox")?.items)
}

fn remove_all(node: &Node) -> Result<()> {
    for sandbox in sandboxes(node)? {
        let id = sandbox.id;
        node.cri()
            .stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() })
            .context("StopPodSandbox")?;
        node.cri()
            .remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id: id })
            .context("RemovePodSandbox")?;
    }
    Ok(())
}

fn assert_dead(node: &Node, made: &RuntimeBefore) -> Result<()> {
    let listed = sandboxes(node)?;
    for sandbox in &listed {
        assert_eq!(sandbox.state, i32::from(PodSandboxState::SandboxNotready), "{sandbox:?}");
    }
    let ids: BTreeSet<String> = listed.into_iter().map(|sandbox| sandbox.id).collect();
    for id in &made.sandboxes {
        assert!(ids.contains(id), "{id} is lost: {ids:?}");
    }
    for container in &made.containers {
        let status = pod::container_status(node, &container.id)?;
        assert_eq!(status.state, i32::from(ContainerState::ContainerExited), "{status:?}");
        if let Some(code) = container.exit_code {
            assert_eq!(status.exit_code, code, "{status:?}");
        }
        assert!(status.finished_at >= status.started_at && status.started_at > 0, "{status:?}");
    }
    let owners = leases(node.roots())?;
    assert!(owners.is_subset(&ids), "leases of {owners:?}, but the sandboxes are {ids:?}");
    Ok(())
}

/// The folders of the images that are listed, and no others.
fn assert_layers(node: &Node, made: &RuntimeBefore) -> Result<()> {
    assert!(!made.stray.exists(), "{} is still there", made.stray.display());
    let images = node.cri().list_images(cri::ListImagesRequest::default()).context("ListImages")?.images;
    let names: Vec<&String> = images.iter().flat_map(|image| &image.repo_tags).collect();
    assert!(names.contains(&&made.image), "{names:?}");
    let wanted = made.layers + usize::from(names.contains(&&made.late));
    let folder = node.root().join("layers");
    let folders: Vec<_> = std::fs::read_dir(&folder)?.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(folders.len(), wanted, "{folders:?} of {names:?}");
    Ok(())
}

/// Every address there is can be had again; then all pods are removed.
fn assert_all_addresses_are_free(node: &Node) -> Result<()> {
    let names: Vec<String> = (1..=Roots::KEPT_ADDRESSES).map(|number| format!("full{number}")).collect();
    let pods = names.iter().map(|name| Pod::run(node, name)).collect::<Result<Vec<_>>>();
    let addresses =
        pods.context("an address leaked")?.iter().map(Pod::ip).collect::<Result<BTreeSet<_>>>()?;
    assert_eq!(addresses.len(), names.len(), "{addresses:?}");
    remove_all(node)
}

/// Nothing on the disk is of a pod.
fn assert_no_pods(node: &Node) -> Result<()> {
    assert_eq!(leases(node.roots())?, BTreeSet::new());
    assert_eq!(files(&node.roots().path("cache"))?, Vec::<PathBuf>::new());
    for name in ["sandboxes", "containers"] {
        assert_eq!(files(&node.root().join(name))?, Vec::<PathBuf>::new());
    }
    Ok(())
}

/// The end of a node: this boot is as if it had never been.
fn end(mut node: Node, before: &Snapshot) -> Result<()> {
    // The files are those of an earlier boot.
    let scope = Scope { folders: Vec::new(), ..node.roots().scope() };
    node.kill()?;
    before.await_clean(&scope)?;
    node.roots().tidy()
}

#[test]
fn old_pods_are_not_ready_and_nothing_leaks() -> Result<()> {
    let made: RuntimeBefore = serde_json::from_slice(&std::fs::read(Which::Cri.handed_over())?)?;
    let roots = Which::Cri.roots()?;
    let before = Snapshot::take(&Scope { folders: Vec::new(), ..roots.scope() })?;
    // Without these there would be nothing to be lost or to leak.
    assert!(made.stray.is_dir(), "{} did not survive", made.stray.display());
    let owners = leases(&roots)?;
    assert!(made.sandboxes.iter().all(|id| owners.contains(id)), "{owners:?} of {:?}", made.sandboxes);
    let node = Node::start_on(roots)?;
    assert_dead(&node, &made)?;
    assert_layers(&node, &made)?;

    // The registry is gone, so this is what the disk has.
    let pod = Pod::run(&node, "new")?;
    let id = pod.start(&pod::container_config("new", &made.image, &["/workload", "exit", "5"]))?;
    assert_eq!(pod::await_exit(&node, &id)?.exit_code, 5);
    pod.remove()?;

    remove_all(&node)?;
    assert_no_pods(&node)?;
    assert_all_addresses_are_free(&node)?;
    end(node, &before)
}
