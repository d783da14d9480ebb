//! Pods on two nodes, kind's own and a machine beside it, and the ways to them: a Service by name and by the nodes' ports,
//! and what kubectl does in a pod. Owns the looks; never the machine. Called by the tiers `join-vm` and `vagrant`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll;

use super::bed::Bed;
use super::web;

pub(crate) const MANIFEST: &str = include_str!("pods.yaml");
/// Of [`MANIFEST`].
pub(crate) const COUNT: usize = 4;
/// For what an emulated machine does in a minute where it has its processors to itself.
pub(crate) const WAIT: Duration = Duration::from_secs(600);

/// The two nodes, seen from the tier.
#[derive(Clone, Copy)]
pub(crate) struct Nodes<'a> {
    pub(crate) bed: &'a Bed,
    /// The machine's name in the cluster.
    pub(crate) machine: &'a str,
    /// Where it is in the cluster's network.
    pub(crate) address: &'a str,
    /// What a shell script prints in there, as root.
    pub(crate) run: &'a dyn Fn(&str) -> Result<String>,
    /// For the tier's own files.
    pub(crate) folder: &'a Path,
}

impl Nodes<'_> {
    /// The Deployment, with its image in that archive for kind's node; the machine has it or pulls it.
    pub(crate) fn deploy(&self, archive: &Path) -> Result<()> {
        let bed = self.bed;
        let archive = archive.to_str().context("a path")?;
        bed.run(&["kind", "load", "image-archive", archive, "--name", bed.name()])?;
        let manifest = self.folder.join("pods.yaml");
        fs::write(&manifest, MANIFEST)?;
        bed.kubectl(&["apply", "--filename", manifest.to_str().context("a path")?])?;
        bed.kubectl(&["rollout", "status", "deployment/web", "--timeout=600s"])?;
        for node in [self.machine, &bed.control_plane()] {
            let count = on(bed, node)?.len();
            ensure!(count == COUNT / 2, "{count} pods run on {node}, not {}", COUNT / 2);
        }
        Ok(())
    }

    /// Each pod asks the Service by its name.
    pub(crate) fn by_name(&self) -> Result<()> {
        web::all_answer(self.bed, COUNT)
    }

    /// Each node's port, asked on each node.
    pub(crate) fn by_node_port(&self) -> Result<()> {
        let bed = self.bed;
        let form = "jsonpath={.spec.ports[0].nodePort}";
        let port = bed.kubectl(&["get", "service", "web", "--output", form])?;
        for address in [self.address.to_owned(), bed.control_plane_address()?] {
            let ask = format!(
                "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do curl -sS -m 5 http://{address}:{port}; done"
            );
            bed.within(
                WAIT,
                "all pods to answer the control plane",
                &["docker", "exec", &bed.control_plane(), "sh", "-c", &ask],
                |said| web::answered(said) == COUNT,
            )?;
            poll("all pods to answer the machine", WAIT, || match (self.run)(&ask) {
                Ok(said) if web::answered(&said) == COUNT => Ok(()),
                Ok(said) => Err(said),
                Err(error) => Err(format!("{error:#}")),
            })?;
        }
        Ok(())
    }

    /// exec, logs, cp there and back, and port-forward, of a pod on the machine.
    pub(crate) fn talk(&self) -> Result<()> {
        let bed = self.bed;
        let pods = on(bed, self.machine)?;
        let pod = pods.first().context("no pod is on the machine")?;
        let name = bed.kubectl(&["exec", pod, "--", "hostname"])?;
        ensure!(&name == pod, "exec in {pod} is in {name}");
        let logs = bed.kubectl(&["logs", pod])?;
        ensure!(logs == "serving", "logs of {pod}: {logs}");
        self.copy(pod)?;
        self.forward(pod)
    }

    fn copy(&self, pod: &str) -> Result<()> {
        let (there, back) = (self.folder.join("there"), self.folder.join("back"));
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        fs::write(&there, &bytes)?;
        let inside = format!("{pod}:/tmp/copied");
        self.bed.kubectl(&["cp", there.to_str().context("a path")?, &inside])?;
        self.bed.kubectl(&["cp", &inside, back.to_str().context("a path")?])?;
        ensure!(fs::read(&back)? == bytes, "cp there and back has changed the file");
        Ok(())
    }

    /// In the control plane's container: it has kubectl and curl, and a loopback of its own.
    fn forward(&self, pod: &str) -> Result<()> {
        let forward = format!(
            "kubectl port-forward pod/{pod} 18080:8080 >/tmp/forward 2>&1 & forward=$!
             for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
                 said=$(curl -sS -m 5 http://127.0.0.1:18080) && break
                 sleep 1
             done
             kill $forward
             cat /tmp/forward >&2
             echo \"$said\""
        );
        let config = "KUBECONFIG=/etc/kubernetes/admin.conf";
        let container = self.bed.control_plane();
        let said = self.bed.run(&["docker", "exec", "--env", config, &container, "sh", "-c", &forward])?;
        ensure!(said == pod, "port-forward to {pod} leads to {said:?}");
        Ok(())
    }

    /// The machine is ready in that boot, and so are its system's pods.
    pub(crate) fn await_ready(&self, boot: &str) -> Result<()> {
        let form = "jsonpath={.status.nodeInfo.bootID} {.status.conditions[?(@.type==\"Ready\")].status}";
        let wanted = format!("{boot} True");
        let words = ["kubectl", "get", "node", self.machine, "--output", form];
        self.bed.within(WAIT, "the node to be ready", &words, |said| said == wanted)?;
        let field = format!("--field-selector=spec.nodeName={}", self.machine);
        let form = "jsonpath={.items[*].status.containerStatuses[0].ready}";
        let selector = "--selector=k8s-app in (kube-proxy, kind-router)";
        let words =
            ["kubectl", "get", "pods", "--namespace", "kube-system", &field, selector, "--output", form];
        self.bed
            .within(WAIT, "kube-proxy and the network's agent", &words, |said| said == "true true")
            .map(drop)
    }

    /// Both pods of the machine run again, each restarted that often.
    pub(crate) fn await_restarts(&self, count: u32) -> Result<()> {
        let field = format!("--field-selector=spec.nodeName={}", self.machine);
        let form = "jsonpath={range .items[*]}{.status.containerStatuses[0].ready} \
                    {.status.containerStatuses[0].restartCount} {end}";
        let words = ["kubectl", "get", "pods", "--selector=app=web", &field, "--output", form];
        let wanted = format!("true {count} true {count}");
        self.bed
            .within(WAIT, "the machine's pods to run again", &words, |said| said.trim() == wanted)
            .map(drop)
    }
}

/// The names of the pods on a node.
fn on(bed: &Bed, node: &str) -> Result<Vec<String>> {
    let field = format!("--field-selector=spec.nodeName={node}");
    let form = "jsonpath={.items[*].metadata.name}";
    let names = bed.kubectl(&["get", "pods", "--selector=app=web", &field, "--output", form])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// A line for each pod of a node: its name, container and restarts.
pub(crate) fn containers(bed: &Bed, node: &str) -> Result<String> {
    let field = format!("--field-selector=spec.nodeName={node}");
    let form = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    bed.kubectl(&["get", "pods", &field, "--output", form])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_the_image_that_is_loaded_and_as_many_pods_as_are_asked_for() {
        assert!(MANIFEST.contains(&format!("image: {}\n", web::IMAGE)));
        assert!(MANIFEST.contains(&format!("replicas: {COUNT}\n")));
    }
}
