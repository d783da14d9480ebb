//! CPUs of its own for a pod, from the configuration to the cgroups: a real kernel, and a kubelet that is replaced.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri::ListContainersRequest;
use gantry_tests::leakcheck::{Scope, Snapshot, tagged_cgroups};
use gantry_tests::node::{Node, Roots};
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;

use super::{Kubelet, SharedRootMount, flags, healthy, remove_kubepods};

const LONG: Duration = Duration::from_secs(90);

/// What the kernel lets the container of that name run on, and how long of each period; None while it is not there.
fn cgroup_of(node: &Node, name: &str) -> Result<Option<(String, String)>> {
    let all = node.cri().list_containers(ListContainersRequest::default())?.containers;
    let named = |c: &gantry_proto::cri::Container| c.metadata.as_ref().is_some_and(|own| own.name == name);
    let Some(container) = all.into_iter().find(named) else { return Ok(None) };
    let folders = tagged_cgroups(node.roots().tag())?;
    let own: Vec<&PathBuf> =
        folders.iter().filter(|folder| folder.display().to_string().contains(&container.id)).collect();
    let read = |files: [&str; 2]| {
        let mut paths = own.iter().flat_map(|folder| files.map(|file| folder.join(file)));
        paths.find_map(|path| std::fs::read_to_string(path).ok()).map(|text| text.trim().to_owned())
    };
    let cpus = read(["cpuset.cpus", "cpuset.cpus.effective"]);
    Ok(cpus.zip(read(["cpu.cfs_quota_us", "cpu.max"])))
}

fn online() -> Result<Vec<u32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u32>()?..=last.parse()?);
    }
    Ok(all)
}

fn write_pod(roots: &Roots, image: &str, name: &str, resources: &str) -> Result<()> {
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - \
         {{name: {name}, image: '{image}', resources: {resources}}}\n"
    );
    std::fs::write(roots.path("manifests").join(format!("{name}.yaml")), manifest).context("write a manifest")
}

fn await_gone(node: &Node, kubelet: &Kubelet) -> Result<()> {
    poll("the pods to go", LONG, || {
        let left = node.cri().list_containers(ListContainersRequest::default());
        let left = left.map_err(|error| format!("{error:#}"))?.containers;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", kubelet.log())) }
    })
}

#[test]
fn a_guaranteed_pod_has_a_cpu_to_itself_until_it_ends() -> Result<()> {
    place::require_own_namespaces()?;
    let cpus = online()?;
    ensure!(cpus.len() > 1, "this test wants two CPUs, and the machine has one");
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let node = Node::start()?;
    let roots = node.roots();
    let before = Snapshot::take(&Scope { folders: Vec::new(), ..roots.scope() })?;
    let shared = SharedRootMount(roots);
    let reserved = cpus.first().context("no CPU")?;
    let more = format!("cpuManagerPolicy: static\nreservedSystemCPUs: \"{reserved}\"\n");
    let flags = flags(roots, &more)?;
    let kubelet = Kubelet::start(roots, &flags, &[])?;
    healthy(&kubelet)?;
    let write = |name: &str, resources: &str| write_pod(roots, &image, name, resources);
    let await_cgroup = |kubelet: &Kubelet, name: &str, is_wanted: &dyn Fn(&str, &str) -> bool| {
        poll(&format!("the cgroup of {name}"), LONG, || match cgroup_of(&node, name) {
            Ok(Some((cpus, quota))) if is_wanted(&cpus, &quota) => Ok(cpus),
            found => Err(format!("{found:?}\n{}", kubelet.log())),
        })
    };
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online")?.trim().to_owned();
    write("shares", "{}")?;
    await_cgroup(&kubelet, "shares", &|cpus, _| cpus == all)?;
    write("owns", "{limits: {cpu: 1, memory: 64Mi}}")?;
    let own =
        await_cgroup(&kubelet, "owns", &|_, quota| quota.starts_with("-1") || quota.starts_with("max"))?;
    let number: u32 = own.parse().with_context(|| format!("{own} is not one CPU"))?;
    assert_ne!(number, *reserved);
    let has_not = |cpus: &str, _: &str| cpus != all && !cpus.split(',').any(|part| part == own);
    let rest = await_cgroup(&kubelet, "shares", &has_not)?;

    // The next kubelet knows.
    drop(kubelet);
    let kubelet = Kubelet::start(roots, &flags, &[])?;
    healthy(&kubelet)?;
    await_cgroup(&kubelet, "owns", &|cpus, _| cpus == own)?;
    await_cgroup(&kubelet, "shares", &|cpus, _| cpus == rest)?;
    std::fs::remove_file(roots.path("manifests/owns.yaml"))?;
    await_cgroup(&kubelet, "shares", &|cpus, _| cpus == all)?;
    std::fs::remove_file(roots.path("manifests/shares.yaml"))?;
    await_gone(&node, &kubelet)?;
    drop(kubelet);
    drop(shared);
    drop(registry);
    remove_kubepods(roots)?;
    before.await_clean(&Scope { folders: Vec::new(), ..roots.scope() })
}
