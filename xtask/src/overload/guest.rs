//! The node's machine: programs and configuration on its disk, what init does there, its serial line. Both nodes have the
//! same kubelet configuration, which is upstream's default but for what is reserved, soft thresholds, and a short transition
//! period. Owns qemu, which ends with it; never talks to the API server. Called by `overload`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gantry_tests::cluster::{images, programs};
use gantry_tests::peers::Programs;
use gantry_tests::place::bin_dir;
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{OverloadNode, disk, load};
use crate::cpio::Cpio;
use crate::vm::{self, Hardware, VmKind};
use crate::{build, sh};

/// Where the node's own files are on its disk.
const HOME: &str = "/var/overload";
/// Begins a line for this program.
const MARK: &str = "overload: ";
/// How long the machine may take to write its logs and go.
const END: Duration = Duration::from_secs(900);

/// What init runs. The services' lives are systemd's: as in the units, a runtime is at -999 and comes back after five
/// seconds; a kubelet chooses its own number.
const SCRIPT: &str = r#"export PATH=/var/overload/bin:$PATH
mkdir -p /logs && mount -t ext4 /dev/vdb /logs || exit 1
mount --make-rshared /
ip address add 10.0.2.15/24 dev eth0 && ip link set eth0 up && ip route add default via 10.0.2.2 || exit 1
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 3072 >/proc/sys/kernel/pid_max
echo 0 >/proc/sys/vm/oom_dump_tasks
echo -1000 >/proc/self/oom_score_adj
keep() {
  name=$1 score=$2; shift 2
  while :; do
    echo "overload: $name starts"
    sh -c 'echo $0 >/proc/self/oom_score_adj; exec "$@"' "$score" "$@" >>/logs/$name.log 2>&1 </dev/null
    echo "overload: $name ended with $?"
    sleep 5
  done
}
keep runtime -999 RUNTIME &
keep kubelet 0 KUBELET &
TASK"#;

/// While pods run, and at the end.
pub(super) const UNDER_LOAD: &str = r#"while sleep 5; do
  { date; head -n 5 /proc/meminfo; cat /proc/loadavg /proc/pressure/memory; df -P /var; df -iP /var; } >>/logs/vitals.log
done &
read asked </dev/ttyS0
dmesg >/logs/dmesg.log
for pid in $(pidof gantry containerd kubelet); do
  echo "overload: pid $(cat /proc/$pid/comm) $(cat /proc/$pid/oom_score_adj) $(grep VmRSS /proc/$pid/status)"
done
wget -qO /logs/metrics.txt http://127.0.0.1:10255/metrics
grep oom-kill: /logs/dmesg.log | sed 's/^/overload: kernel /'
sync
"#;

/// What the machine told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Ends of kubelet and runtime: how they were told.
    pub(super) ended: Vec<String>,
    /// Whom the kernel killed for lack of memory: process, and what was full.
    pub(super) killed: Vec<String>,
    /// kubelet and runtime at the end: name, score, memory.
    pub(super) daemons: Vec<String>,
}

impl Told {
    fn read(&mut self, line: &str) {
        let Some(said) = line.strip_prefix(MARK) else { return };
        if said.contains(" ended with ") {
            self.ended.push(said.to_owned());
        } else if let Some(daemon) = said.strip_prefix("pid ") {
            self.daemons.push(daemon.split_whitespace().collect::<Vec<_>>().join(" "));
        } else if let Some((_, kill)) = said.split_once("oom-kill:") {
            self.killed.push(victim(kill));
        }
    }
}

/// Whom the kernel chose and what was full, of its line `constraint=…,oom_memcg=…,task=…`.
fn victim(kill: &str) -> String {
    let field = |name: &str| {
        let found = kill.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_default()
    };
    let full = match field("oom_memcg").matches('/').count() {
        0 => "the machine",
        1 => "all pods",
        2 => "its class",
        _ => "its pod",
    };
    format!("{} ({full})", field("task"))
}

/// A running machine; killed on drop.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Starts it, any number of times, with the disks as they are.
    command: Command,
    name: &'static str,
    qemu: Child,
    serial: ChildStdin,
    reader: Option<JoinHandle<()>>,
    told: Arc<Mutex<(Told, Vec<String>)>>,
    var: PathBuf,
    logs: PathBuf,
}

/// What a machine is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GuestTask {
    /// A shell's, beside runtime and kubelet. It ends when the serial line says so.
    pub(crate) script: &'static str,
    pub(crate) minutes: u64,
}

impl Guest {
    /// Makes the disks and starts the machine, whose files are below `folder`.
    ///
    /// # Errors
    /// When a program is missing.
    pub(crate) fn boot(
        node: OverloadNode,
        task: GuestTask,
        folder: &Path,
        registry: &Registry,
        out: &Path,
    ) -> Result<Self> {
        let folder = folder.join("machine");
        let tree = folder.join("tree");
        let mut cpio = Cpio::default();
        for program in ["/usr/sbin/nft", "/usr/sbin/ip", "/usr/bin/nsenter"] {
            cpio.copy(Path::new(program), program, 0o755).with_context(|| gantry_needs::remedy(program))?;
            vm::add_libraries(&mut cpio, Path::new(program))?;
        }
        fill(node, &tree, folder.parent().unwrap_or(&folder), registry, &mut cpio)?;
        let (var, logs) = (disk::var(&tree, &folder)?, disk::logs(&folder)?);
        fs::remove_dir_all(&tree).context("remove what is on the disk now")?;
        let card = ["-netdev", "user,id=out", "-device", "virtio-net-pci,netdev=out,romfile="];
        let mut devices: Vec<String> = vm::disk::words("var", &var).into_iter().collect();
        devices.extend(vm::disk::words("logs", &logs));
        devices.extend(card.map(str::to_owned));
        let hardware =
            Hardware { processors: 2, memory_mib: 2048, deadline_seconds: task.minutes * 60 + 3600, devices };
        let mut command = vm::node(cpio, &script(node, task.script), VmKind::Small, &hardware, &folder)?;
        let log = fs::File::create(out.join("qemu.log"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let (told, name) = (Arc::default(), node.word());
        let (qemu, serial, reader) = start(&mut command, name, &told)?;
        Ok(Self { command, name, qemu, serial, reader: Some(reader), told, var, logs })
    }

    /// Takes the machine's power away and gives it back: what it had not written to its disks is lost.
    ///
    /// # Errors
    /// When it cannot be killed or started.
    pub(crate) fn cut_power(&mut self) -> Result<()> {
        self.kill()?;
        if let Some(reader) = self.reader.take() {
            // It ends with the line.
            let _ = reader.join();
        }
        let (qemu, serial, reader) = start(&mut self.command, self.name, &self.told)?;
        (self.qemu, self.serial, self.reader) = (qemu, serial, Some(reader));
        Ok(())
    }

    /// Kills qemu with the `timeout` that started it: they are a group of their own.
    fn kill(&mut self) -> Result<()> {
        if self.qemu.try_wait()?.is_some() {
            return Ok(());
        }
        let group =
            i32::try_from(self.qemu.id()).ok().and_then(Pid::from_raw).context("the machine's pid")?;
        kill_process_group(group, Signal::KILL).context("kill the machine")?;
        self.qemu.wait()?;
        Ok(())
    }

    /// Writes a line to the machine's script.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn ask(&mut self, word: &str) -> Result<()> {
        self.serial.write_all(format!("{word}\n").as_bytes()).context("the machine's serial line")
    }

    /// All that it has said, over each of its lives.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Its `/var`, once it has ended.
    pub(crate) fn var(&self) -> PathBuf {
        self.var.clone()
    }

    /// Fails when the machine has ended by itself.
    ///
    /// # Errors
    /// Then.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.qemu.try_wait()? {
            Some(status) => bail!("the machine ended with {status}\n{}", self.tail()),
            None => Ok(()),
        }
    }

    /// The end of what it said.
    pub(crate) fn tail(&self) -> String {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let from = told.1.len().saturating_sub(30);
        told.1.iter().skip(from).cloned().collect::<Vec<_>>().join("\n")
    }

    /// Ends it, and keeps its logs.
    ///
    /// # Errors
    /// When it does not go, or its disk cannot be read.
    pub(crate) fn end(mut self, out: &Path) -> Result<Told> {
        self.ask("end")?;
        let gone = poll("the machine to go", END, || match self.qemu.try_wait() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("it still runs".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        if gone.is_err() {
            self.kill()?;
        }
        if let Some(reader) = self.reader.take() {
            // It ends with the line.
            let _ = reader.join();
        }
        vm::disk::read(&self.logs, &out.join("logs"))?;
        gone?;
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        fs::write(out.join("console.log"), told.1.join("\n"))?;
        Ok(told.0.clone())
    }
}

/// A life of the machine: its process, its serial line, and who reads that.
fn start(
    command: &mut Command,
    name: &'static str,
    told: &Arc<Mutex<(Told, Vec<String>)>>,
) -> Result<(Child, ChildStdin, JoinHandle<()>)> {
    let mut qemu = command.spawn().with_context(|| gantry_needs::remedy("qemu-system-x86_64"))?;
    let serial = qemu.stdin.take().context("the serial line in")?;
    let lines = qemu.stdout.take().context("the serial line out")?;
    let kept = Arc::clone(told);
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            println!("{name} | {line}");
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.0.read(&line);
            kept.1.push(line);
        }
    });
    Ok((qemu, serial, reader))
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Where it has ended, that is refused.
        let _ = self.kill();
    }
}

/// Programs and configuration, below `tree`, which is `/var`.
fn fill(node: OverloadNode, tree: &Path, cluster: &Path, registry: &Registry, cpio: &mut Cpio) -> Result<()> {
    let home = tree.join("overload");
    for name in ["bin", "cni/bin", "cni/net.d", "certs.d", "manifests"] {
        fs::create_dir_all(home.join(name))?;
    }
    let mut add = |from: &Path, name: &str| -> Result<()> {
        let to = home.join(name);
        sh::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&to).arg(from))?;
        vm::add_libraries(cpio, from)
    };
    match node {
        OverloadNode::Gantry => {
            let own = bin_dir()?;
            for name in ["gantry"].iter().chain(&build::BESIDE) {
                add(&own.join(name), &format!("bin/{name}"))?;
            }
            fs::hard_link(home.join("bin/gantry"), home.join("bin/kubelet"))?;
        }
        OverloadNode::Upstream => {
            let peers = Programs::built()?;
            for name in ["containerd", "containerd-shim-runc-v2", "runc"] {
                add(&peers.path(name), &format!("bin/{name}"))?;
            }
            for name in ["bridge", "host-local", "loopback"] {
                add(&peers.path("cni").join(name), &format!("cni/bin/{name}"))?;
            }
            add(&programs::path("kubelet")?, "bin/kubelet")?;
            fs::write(home.join("containerd.toml"), CONTAINERD.replace("PAUSE", load::PAUSE))?;
        }
    }
    fs::write(home.join("kubelet.yaml"), serde_json::to_vec_pretty(&kubelet(node))?)?;
    fs::write(home.join("cni/net.d/10-overload.conflist"), serde_json::to_vec_pretty(&conflist())?)?;
    let own = (load::HOST, registry.addr().port());
    for (host, port) in images::MIRRORED.map(|host| (host, images::PORT)).into_iter().chain([own]) {
        let hosts = home.join("certs.d").join(host);
        fs::create_dir_all(&hosts)?;
        // The machine's way to this one's loopback.
        fs::write(hosts.join("hosts.toml"), format!("server = \"http://10.0.2.2:{port}\"\n"))?;
    }
    for (from, to) in [
        ("pki/ca.crt", "ca.crt"),
        ("pki/kubelet.crt", "kubelet.crt"),
        ("pki/kubelet.key", "kubelet.key"),
        ("kubeconfig/node.conf", "node.conf"),
    ] {
        let from = cluster.join(from);
        fs::copy(&from, home.join(to)).with_context(|| from.display().to_string())?;
    }
    Ok(())
}

fn script(node: OverloadNode, task: &str) -> String {
    let (runtime, socket) = match node {
        OverloadNode::Gantry => (
            format!(
                "gantry runtime --cni-conf-dir={HOME}/cni/net.d --registry-hosts-dir={HOME}/certs.d \
                 --programs-dir={HOME}/bin"
            ),
            "/run/gantry/gantry.sock",
        ),
        OverloadNode::Upstream => {
            (format!("containerd --config {HOME}/containerd.toml"), "/run/containerd/containerd.sock")
        }
    };
    let kubelet = format!(
        "kubelet --config={HOME}/kubelet.yaml --kubeconfig={HOME}/node.conf --hostname-override={} --node-ip=10.0.2.15 --v=2",
        gantry_tests::cluster::NODE
    );
    // A kubelet whose runtime is not there yet ends, which is no fault of either.
    let kubelet = format!("sh -c 'until [ -S {socket} ]; do sleep 1; done; exec {kubelet}'");
    SCRIPT.replace("RUNTIME", &runtime).replace("KUBELET", &kubelet).replace("TASK", task)
}

fn kubelet(node: OverloadNode) -> serde_json::Value {
    let socket = match node {
        OverloadNode::Gantry => "/run/gantry/gantry.sock",
        OverloadNode::Upstream => "/run/containerd/containerd.sock",
    };
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": { "x509": { "clientCAFile": format!("{HOME}/ca.crt") } },
        "tlsCertFile": format!("{HOME}/kubelet.crt"),
        "tlsPrivateKeyFile": format!("{HOME}/kubelet.key"),
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": format!("unix://{socket}"),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "10%",
            "nodefs.inodesFree": "5%",
            "imagefs.available": "15%",
            "imagefs.inodesFree": "5%",
            "pid.available": "30%",
        },
        "evictionSoft": { "memory.available": "200Mi" },
        "evictionSoftGracePeriod": { "memory.available": "30s" },
        "evictionMaxPodGracePeriod": 5,
        "evictionPressureTransitionPeriod": "30s",
        "kubeReserved": { "memory": "200Mi" },
        "podPidsLimit": 700,
        "readOnlyPort": 10255,
        "resolvConf": "/etc/resolv.conf",
        "staticPodPath": format!("{HOME}/manifests"),
    })
}

fn conflist() -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "overload",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": "10.85.0.0/22" }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

const CONTAINERD: &str = r#"version = 3
disabled_plugins = ["io.containerd.nri.v1.nri"]

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "PAUSE"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "/var/overload/certs.d"

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/var/overload/cni/bin"]
conf_dir = "/var/overload/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "/var/overload/bin/runc"
SystemdCgroup = false
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_daemons_and_victims_of_the_kernel_are_told() {
        let mut told = Told::default();
        for line in [
            "overload: runtime starts",
            "overload: runtime ended with 137",
            "overload: kernel [  9.1] oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/kubepods,task_memcg=/kubepods/podx/y,task=workload,pid=8,uid=0",
            "overload: kernel [  9.2] oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/,task=kubelet,pid=9,uid=0",
            "overload: pid kubelet -999 VmRSS:\t   81234 kB",
            "something else ended with 1",
        ] {
            told.read(line);
        }
        assert_eq!(told.ended, ["runtime ended with 137"]);
        assert_eq!(told.killed, ["workload (all pods)", "kubelet (the machine)"]);
        assert_eq!(told.daemons, ["kubelet -999 VmRSS: 81234 kB"]);
    }
}
