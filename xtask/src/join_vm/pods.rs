//! Pods on both nodes, and the ways to them: a Service by name and by the nodes' ports, and what kubectl does in a pod.
//! Called by the tier.

use std::fs;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll;

use super::machine::{Machine, brought};
use super::network::{container, control_plane};
use super::{CLUSTER, NODE, Stage, WAIT};
use crate::kind::{Bed, web};

const WEB: &str = include_str!("web.yaml");
/// Of [`WEB`].
const COUNT: usize = 4;

pub(super) fn deploy(stage: &mut Stage<'_>) -> Result<()> {
    let bed = stage.bed;
    let archive = brought(&stage.folder).join("web.tar");
    bed.run(&["kind", "load", "image-archive", archive.to_str().context("a path")?, "--name", CLUSTER])?;
    let manifest = stage.folder.join("web.yaml");
    fs::write(&manifest, WEB)?;
    bed.kubectl(&["apply", "--filename", manifest.to_str().context("a path")?])?;
    bed.kubectl(&["rollout", "status", "deployment/web", "--timeout=600s"])?;
    for node in [NODE, &container()] {
        let count = on(bed, node)?.len();
        ensure!(count == COUNT / 2, "{count} pods run on {node}, not {}", COUNT / 2);
    }
    Ok(())
}

/// The names of the pods on a node.
fn on(bed: &Bed, node: &str) -> Result<Vec<String>> {
    let field = format!("--field-selector=spec.nodeName={node}");
    let form = "jsonpath={.items[*].metadata.name}";
    let names = bed.kubectl(&["get", "pods", "--selector=app=web", &field, "--output", form])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// A line for each pod of a node: its name, container and restarts.
pub(super) fn containers(bed: &Bed, node: &str) -> Result<String> {
    let field = format!("--field-selector=spec.nodeName={node}");
    let form = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    bed.kubectl(&["get", "pods", "--selector=app=web", &field, "--output", form])
}

pub(super) fn by_name(stage: &mut Stage<'_>) -> Result<()> {
    web::all_answer(stage.bed, COUNT)
}

pub(super) fn by_node_port(stage: &mut Stage<'_>) -> Result<()> {
    let bed = stage.bed;
    let port = bed.kubectl(&["get", "service", "web", "--output", "jsonpath={.spec.ports[0].nodePort}"])?;
    let control = control_plane(bed)?;
    let machine = stage.machine()?;
    for address in [machine.address.clone(), control] {
        let ask =
            format!("for n in 1 2 3 4 5 6 7 8 9 10 11 12; do curl -sS -m 5 http://{address}:{port}; done");
        bed.within(
            WAIT,
            "all pods to answer the control plane",
            &["docker", "exec", &container(), "sh", "-c", &ask],
            |said| web::answered(said) == COUNT,
        )?;
        all_answer(machine, &ask)?;
    }
    Ok(())
}

fn all_answer(machine: &Machine<'_>, ask: &str) -> Result<()> {
    poll("all pods to answer the machine", WAIT, || match machine.run(ask) {
        Ok(said) if web::answered(&said) == COUNT => Ok(()),
        Ok(said) => Err(said),
        Err(error) => Err(format!("{error:#}")),
    })
}

/// On a pod of the machine.
pub(super) fn talk(stage: &mut Stage<'_>) -> Result<()> {
    let bed = stage.bed;
    let pods = on(bed, NODE)?;
    let pod = pods.first().context("no pod is on the machine")?;
    let name = bed.kubectl(&["exec", pod, "--", "hostname"])?;
    ensure!(&name == pod, "exec in {pod} is in {name}");
    let logs = bed.kubectl(&["logs", pod])?;
    ensure!(logs == "serving", "logs of {pod}: {logs}");
    let (there, back) = (stage.folder.join("there"), stage.folder.join("back"));
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(&there, &bytes)?;
    let inside = format!("{pod}:/tmp/copied");
    bed.kubectl(&["cp", there.to_str().context("a path")?, &inside])?;
    bed.kubectl(&["cp", &inside, back.to_str().context("a path")?])?;
    ensure!(fs::read(&back)? == bytes, "cp there and back has changed the file");
    // In the control plane's container: it has kubectl and curl, and a loopback of its own.
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
    let said = bed.run(&["docker", "exec", "--env", config, &container(), "sh", "-c", &forward])?;
    ensure!(&said == pod, "port-forward to {pod} leads to {said:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_the_image_that_is_loaded_and_as_many_pods_as_are_asked_for() {
        assert!(WEB.contains(&format!("image: {}\n", web::IMAGE)));
        assert!(WEB.contains(&format!("replicas: {COUNT}\n")));
    }
}
