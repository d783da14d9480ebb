//! The tier `vagrant`: a kind cluster, then `vagrant up` in the folder `vagrant`, as docs/join.md has it, with an emulated
//! processor. A Deployment on both nodes, the ways to it, `kubectl top`, halt and up, and `destroy`, after which the cluster
//! is without the machine; then a cluster whose control plane is a machine, too. Owns the order of the steps, which follow one another. Called by the tiers.

mod machine;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::addons;
use gantry_tests::cluster::programs::{self, Set};

use self::machine::{CONTROL_PLANE, MACHINE, Ssh, Vagrant};
use crate::kind::pods::{Nodes, WAIT};
use crate::kind::registry::{Filling, RunningRegistry};
use crate::kind::{self, Bed, timed, web};
use crate::summary::Counts;
use crate::{dist, sh, vagrant_box};

/// kind's own default, as of the `Vagrantfile`.
const CLUSTER: &str = "kind";

/// One step of the tier.
type VagrantStep = (&'static str, fn(&mut VagrantFixture<'_>) -> Result<()>);

const STEPS: [VagrantStep; 13] = [
    ("vagrant: validate, also for VirtualBox", validate),
    ("vagrant: up joins the machine, and its node becomes ready", up),
    ("vagrant: a Deployment on both nodes", deploy),
    ("vagrant: its Service answers by name in a pod of each node", |fixture| {
        fixture.nodes(|it| it.by_name())
    }),
    ("vagrant: its NodePort answers on each node, asked on each", |fixture| {
        fixture.nodes(|it| it.by_node_port())
    }),
    ("vagrant: exec, logs, cp there and back, port-forward", |fixture| fixture.nodes(|it| it.talk())),
    ("vagrant: kubectl top of the machine and of its pods", top),
    ("vagrant: ssh", ssh),
    ("vagrant: halt and up: the node and its pods come back", halt_and_up),
    ("vagrant: destroy leaves the cluster without the machine", destroy),
    ("vagrant: CLUSTER=vm brings up a control plane and a node that joins it", own_up),
    ("vagrant: CLUSTER=vm: a Deployment on both, and its Service by name", own_deploy),
    ("vagrant: CLUSTER=vm: destroy", own_destroy),
];

/// What the steps share.
struct VagrantFixture<'a> {
    bed: &'a Bed,
    vagrant: Vagrant<'a>,
    served: RunningRegistry,
    /// Of this tier's own files.
    folder: PathBuf,
    /// From `vagrant up` on.
    ssh: Option<Ssh<'a>>,
    /// The machine in the cluster's network.
    address: String,
}

impl VagrantFixture<'_> {
    fn nodes<T>(&self, look: impl FnOnce(&Nodes<'_>) -> Result<T>) -> Result<T> {
        let ssh = self.ssh.as_ref().context("the machine is not up")?;
        let run = |script: &str| ssh.run(script);
        let (address, folder) = (&self.address, &self.folder);
        look(&Nodes { bed: self.bed, machine: MACHINE, address, run: &run, folder })
    }
}

/// All of it, or the steps whose names hold `filter`: those of `CLUSTER=vm` need none of the others. A step whose
/// predecessor has failed is not tried.
pub(crate) fn tests(filter: Option<&str>) -> Result<Counts> {
    sh::require_root("a kind cluster")?;
    let deb = dist::package()?;
    let unpacked = tempfile::tempdir()?;
    let own = dist::unpack(&deb, unpacked.path())?;
    let boxed = vagrant_box::make()?;
    web::fetch()?;
    let made = kind::node_image(&own)?;
    programs::build(&[Set::Metrics])?;
    let store = sh::target_dir().join("vagrant-images");
    Filling::start(&store, &own)?.push_control_plane(&own)?;
    kind::on_cluster("vagrant", CLUSTER, &[&made], |bed| {
        let staged = RunningRegistry::start(bed, &store).and_then(|served| {
            served.mirror(bed, &bed.control_plane())?;
            let vagrant = Vagrant::start(bed, &deb, &boxed, &served.url)?;
            let address = bed.vagrant_script(&["address", CLUSTER, "1"])?;
            let address = address.split('/').next().unwrap_or(&address).to_owned();
            let folder = bed.folder.join("files");
            fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
            Ok(VagrantFixture { bed, vagrant, served, folder, ssh: None, address })
        });
        match staged {
            Ok(fixture) => run(fixture, filter.unwrap_or_default()),
            Err(error) => Counts::check("vagrant: registry and libvirtd", Err(error)),
        }
    })
}

fn run(mut fixture: VagrantFixture<'_>, filter: &str) -> Counts {
    let mut counts = Counts::default();
    for (name, step) in STEPS.iter().filter(|(name, _)| name.contains(filter)) {
        if counts.failed == 0 {
            counts += timed(name, || step(&mut fixture));
        }
    }
    if counts.failed > 0 {
        let look = "journalctl --no-pager --lines 60 --unit gantry --unit kubelet; ip address; ip route; free; \
                    uptime; gantry ps -A; tail --lines 20 /var/log/pods/kube-system_*/*/*.log";
        let said = fixture.ssh.as_ref().map(|ssh| ssh.run(look));
        println!("{}", said.transpose().map_or_else(|error| format!("{error:#}"), Option::unwrap_or_default));
    }
    counts
}

fn validate(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    fixture.vagrant.run(&["validate"])?;
    // VirtualBox itself is not installed here.
    fixture.vagrant.run(&["validate", "--ignore-provider"])
}

fn up(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    fixture.vagrant.run(&["up"])?;
    let ssh = fixture.vagrant.ssh(MACHINE)?;
    let boot = ssh.run("cat /proc/sys/kernel/random/boot_id")?;
    fixture.ssh = Some(ssh);
    fixture.nodes(|it| it.await_ready(&boot))?;
    println!("{}", fixture.bed.kubectl(&["get", "nodes", "--output", "wide"])?);
    Ok(())
}

fn deploy(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    let archive = web::archive(&fixture.folder)?;
    println!("the machine pulls by {}", fixture.served.url);
    fixture.nodes(|it| it.deploy(&archive))?;
    println!("{}", fixture.bed.kubectl(&["get", "pods", "--output", "wide"])?);
    Ok(())
}

/// metrics-server asks both kubelets.
fn top(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    let bed = fixture.bed;
    let manifest = fixture.folder.join("metrics-server.json");
    fs::write(&manifest, addons::metrics(addons::KubeletTrust::Any).to_string())?;
    bed.kubectl(&["apply", "--filename", manifest.to_str().context("a path")?])?;
    let nodes = ["kubectl", "top", "node", MACHINE, "--no-headers"];
    println!("{}", bed.within(WAIT, "figures of the machine", &nodes, |said| said.starts_with(MACHINE))?);
    let pods = ["kubectl", "top", "pods", "--selector=app=web", "--no-headers"];
    let all = |said: &str| said.lines().count() == kind::pods::COUNT;
    println!("{}", bed.within(WAIT, "figures of all pods", &pods, all)?);
    Ok(())
}

fn ssh(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    let said = fixture.vagrant.read(&["ssh", MACHINE, "-c", "hostname; sudo gantry ps"])?;
    println!("{said}");
    ensure!(said.starts_with(MACHINE), "the machine is called {said}");
    Ok(())
}

fn halt_and_up(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    fixture.vagrant.run(&["halt"])?;
    fixture.vagrant.run(&["up"])?;
    let ssh = fixture.vagrant.ssh(MACHINE)?;
    let boot = ssh.run("cat /proc/sys/kernel/random/boot_id")?;
    fixture.ssh = Some(ssh);
    fixture.nodes(|it| {
        it.await_ready(&boot)?;
        it.await_restarts(1)?;
        it.by_name()
    })
}

fn destroy(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    fixture.vagrant.run(&["destroy", "--force"])?;
    fixture.ssh = None;
    let bed = fixture.bed;
    let left = bed.kubectl(&["get", "nodes", "--output", "name"])?;
    ensure!(left == format!("node/{}", bed.control_plane()), "the cluster has {left}");
    no_machines(fixture)
}

fn no_machines(fixture: &VagrantFixture<'_>) -> Result<()> {
    let machines = fixture.bed.run(&["virsh", "--connect", "qemu:///system", "list", "--all", "--name"])?;
    ensure!(machines.is_empty(), "libvirt still has {machines}");
    Ok(())
}

fn own_up(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    let network = fixture.folder.join("network.yaml");
    fs::write(&network, kind::network_manifest("10.244.0.0/16"))?;
    // Who has CLUSTER=vm has no kind cluster, whose control plane takes a share of an emulated machine's processor.
    fixture.bed.run(&["docker", "stop", &fixture.bed.control_plane()])?;
    fixture.vagrant.use_own_control_plane(&network);
    let up = fixture.vagrant.run(&["up"]);
    // It tells why `up` failed, where that is so.
    fixture.ssh = Some(fixture.vagrant.ssh(CONTROL_PLANE)?);
    up?;
    kubectl(fixture, "wait --for=condition=Ready nodes --all --timeout=600s")?;
    println!("{}", kubectl(fixture, "get nodes --output wide")?);
    let nodes = kubectl(fixture, "get nodes --output name")?;
    let wanted = format!("node/{MACHINE}\nnode/{CONTROL_PLANE}");
    ensure!(nodes == wanted, "the cluster has {nodes}");
    Ok(())
}

fn own_deploy(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    // Pods run on the control plane only without it.
    kubectl(fixture, &format!("taint nodes {CONTROL_PLANE} node-role.kubernetes.io/control-plane-"))?;
    kubectl(fixture, &format!("apply --filename - <<'YAML'\n{}\nYAML", kind::pods::MANIFEST))?;
    kubectl(fixture, "rollout status deployment/web --timeout=600s")?;
    println!("{}", kubectl(fixture, "get pods --all-namespaces --output wide")?);
    let pods = kubectl(fixture, "get pods --selector=app=web --output name")?;
    for pod in pods.lines() {
        let ask = format!("exec {pod} -- sh -c {}", sh::quoted(web::ASK));
        gantry_tests::poll::poll("all pods to answer", WAIT, || match kubectl(fixture, &ask) {
            Ok(said) if web::answered(&said) == kind::pods::COUNT => Ok(()),
            Ok(said) => Err(said),
            Err(error) => Err(format!("{error:#}")),
        })?;
    }
    Ok(())
}

fn own_destroy(fixture: &mut VagrantFixture<'_>) -> Result<()> {
    fixture.vagrant.run(&["destroy", "--force"])?;
    fixture.ssh = None;
    no_machines(fixture)
}

/// On the control plane's machine.
fn kubectl(fixture: &VagrantFixture<'_>, words: &str) -> Result<String> {
    let ssh = fixture.ssh.as_ref().context("the machine is not up")?;
    ssh.run(&format!("KUBECONFIG=/etc/kubernetes/admin.conf kubectl {words}"))
}
