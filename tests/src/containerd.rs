//! A containerd of one's own, the peer: every root in a temporary folder, its own cgroup tag, its
//! own bridge through the upstream CNI plugins. Owns the process, its shims and their end; never
//! touches another containerd. Called by the CRI tier and the bench.
//!
//! containerd and its shims live in a mount namespace of their own, where `/run` and `/var/lib` are
//! empty: two paths (`/run/containerd/s`, `/var/lib/cni`) cannot be configured. What it mounts is
//! gone with its last process, and its processes are known by that namespace.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use gantry_proto::cri;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::cri::Cri;
use crate::leakcheck::{self, Scope, Snapshot};
use crate::node::tail;
use crate::peers::Programs;
use crate::poll::poll;
use crate::registry::Registry;
use crate::{place, proc};

static COUNT: AtomicU32 = AtomicU32::new(0);

const INIT: &str = r#"for folder in $GANTRY_PEER_CGROUPS; do echo 0 >"$folder/cgroup.procs" || exit 125; done
mount -t tmpfs none /run && mount -t tmpfs none /var/lib && exec "$@""#;

/// A running containerd; ended, with all it started, on drop.
#[derive(Debug)]
pub struct Containerd {
    child: Child,
    /// Its mount namespace, which nothing else is in.
    namespace: PathBuf,
    cri: Cri,
    tag: String,
    bridge: String,
    folder: TempDir,
}

/// What to start it with.
#[derive(Debug, Clone, Copy)]
pub struct ContainerdOptions<'a> {
    /// Pulls go there in plain HTTP.
    pub registry: &'a Registry,
    /// The pause image's reference.
    pub pause: &'a str,
    /// Whether the portmap plugin follows the bridge.
    pub portmap: bool,
    /// Other settings than those that are usual.
    pub tuning: &'a Tuning,
}

/// Settings beyond the usual ones.
#[derive(Debug, Clone, Default)]
pub struct Tuning {
    /// Lines of the table of the CRI's images.
    pub images: String,
    /// Tables of the configuration.
    pub tables: String,
    /// Folders before those of PATH.
    pub path: Vec<PathBuf>,
    /// Variables.
    pub variables: Vec<(String, String)>,
    /// Cgroups that it enters.
    pub cgroups: Vec<PathBuf>,
}

impl Tuning {
    /// None.
    pub const NONE: &'static Tuning = &Tuning {
        images: String::new(),
        tables: String::new(),
        path: Vec::new(),
        variables: Vec::new(),
        cgroups: Vec::new(),
    };
}

impl Containerd {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// When this is not a place for it, it was not built, or it does not answer in 30 s.
    pub fn start(options: ContainerdOptions<'_>) -> Result<Self> {
        place::require_own_namespaces()?;
        let programs = Programs::built()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = tempfile::Builder::new().prefix("gantry-peer-").tempdir()?;
        // runc walks through it as the root of a pod's own users.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (tag, bridge) = (format!("{name}-{number}"), format!("gp{number}"));
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("net.d"))?;
        std::fs::write(
            at("net.d/10-peer.conflist"),
            serde_json::to_vec_pretty(&conflist(&bridge, number, &at("leases"), options.portmap))?,
        )?;
        std::fs::write(at("config.toml"), config(folder.path(), &programs, &options))?;
        write_registry(&at("certs.d"), &options.registry.host())?;
        let mut child = spawn(folder.path(), &programs, options.tuning)?;
        let cri = Cri::new(&at("containerd.sock"))?;
        let answer = poll("containerd to answer", Duration::from_secs(30), || {
            if let Ok(Some(status)) = child.try_wait() {
                return Ok(Err(anyhow!("containerd ended with {status}")));
            }
            ready(&cri).map(Ok)
        });
        let pid = i32::try_from(child.id()).context("a pid")?;
        let namespace = std::fs::read_link(proc::folder(pid).join("ns/mnt"));
        let log = at("log");
        // Made first, so that it is ended also when it did not answer.
        let containerd =
            Containerd { child, namespace: namespace.unwrap_or_default(), cri, tag, bridge, folder };
        answer.flatten().with_context(|| tail(&log))?;
        Ok(containerd)
    }

    /// Its CRI.
    #[must_use]
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// Its folder on disk: images and what they are unpacked to.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("containerd.sock")
    }

    /// Pulls from this `host:port` go there in plain HTTP, too.
    ///
    /// # Errors
    /// When its folder cannot be written.
    pub fn trust(&self, host: &str) -> Result<()> {
        write_registry(&self.folder.path().join("certs.d"), host)
    }

    /// The text that every cgroup of its pods has in its path, if they are made below `/TAG`.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Its process: in a mount namespace of its own.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What must be clean when its pods are gone.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope {
            cgroup_tag: self.tag.clone(),
            leases: self.folder.path().join("leases"),
            own: vec![i32::try_from(self.child.id()).unwrap_or(0)],
            bridges: vec![self.bridge.clone()],
            // Upstream's portmap leaves its empty tables behind by design; `Drop` takes them.
            rules: vec!["table ip cni_hostport".into(), "table ip6 cni_hostport".into()],
            ..Scope::default()
        }
    }

    /// What is there now.
    ///
    /// # Errors
    /// Without /proc.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(&self.scope())
    }

    /// The end of its log, for error messages.
    #[must_use]
    pub fn log_tail(&self) -> String {
        tail(&self.folder.path().join("log"))
    }

    /// Pids of everything it started that has not left its mount namespace: itself and its shims.
    fn processes(&self) -> Vec<i32> {
        let inside = |pid: i32| {
            std::fs::read_link(proc::folder(pid).join("ns/mnt")).is_ok_and(|link| link == self.namespace)
        };
        let own = std::fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
        if self.namespace == own || self.namespace.as_os_str().is_empty() {
            return Vec::new();
        }
        proc::all()
            .unwrap_or_default()
            .into_iter()
            .map(|process| process.pid)
            .filter(|&pid| inside(pid))
            .collect()
    }

    fn remove_pods(&self) -> Result<()> {
        for sandbox in self.cri.list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items {
            let pod_sandbox_id = sandbox.id;
            self.cri
                .stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() })?;
            self.cri.remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id })?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a pid")?;
        rustix::process::kill_process(pid, Signal::TERM).context("end containerd")?;
        let child = &mut self.child;
        poll("containerd to end", Duration::from_secs(10), || match child.try_wait() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("still there".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Best first, then by force: what is left shows in the next leak check.
        let _ = self.remove_pods();
        if self.end().is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let gone = poll("containerd's shims to end", Duration::from_secs(10), || {
            let left = self.processes();
            for &pid in &left {
                let _ = proc::kill(pid);
            }
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
        leakcheck::sweep(&self.scope(), self.folder.path());
        // By design portmap's tables outlive its pods; no nft, no table.
        for family in ["ip", "ip6"] {
            let _ = Command::new("nft")
                .args(["delete", "table", family, "cni_hostport"])
                .stderr(Stdio::null())
                .status();
        }
        drop(gone);
    }
}

fn spawn(folder: &Path, programs: &Programs, tuning: &Tuning) -> Result<Child> {
    let log = File::create(folder.join("log"))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let first: String = tuning.path.iter().map(|folder| format!("{}:", folder.display())).collect();
    let cgroups: String = tuning.cgroups.iter().map(|folder| format!("{} ", folder.display())).collect();
    Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", INIT, "sh"])
        .arg(programs.path("containerd"))
        .args(["--config", &folder.join("config.toml").to_string_lossy()])
        // The shim is looked for in PATH; portmap runs nft.
        .env("PATH", format!("{first}{}:{path}:/usr/sbin:/sbin", programs.folder().display()))
        .env("GANTRY_PEER_CGROUPS", cgroups)
        .envs(tuning.variables.clone())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("start containerd")
}

fn ready(cri: &Cri) -> Result<(), String> {
    let answer = cri.status(cri::StatusRequest { verbose: false }).map_err(|status| status.to_string())?;
    let conditions = answer.status.unwrap_or_default().conditions;
    // A third condition says that cgroup v1 is deprecated.
    let ready = ["RuntimeReady", "NetworkReady"];
    match conditions.iter().find(|one| ready.contains(&one.r#type.as_str()) && !one.status) {
        None => Ok(()),
        Some(condition) => Err(format!("{}: {} {}", condition.r#type, condition.reason, condition.message)),
    }
}

fn conflist(bridge: &str, number: u32, leases: &Path, portmap: bool) -> serde_json::Value {
    let mut plugins = vec![serde_json::json!({
        "type": "bridge",
        "bridge": bridge,
        "isGateway": true,
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "dataDir": leases,
            "ranges": [[{ "subnet": format!("10.98.{}.0/24", number % 256) }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        },
    })];
    if portmap {
        plugins.push(serde_json::json!({
            "type": "portmap",
            "backend": "nftables",
            "capabilities": { "portMappings": true },
        }));
    }
    serde_json::json!({ "cniVersion": "1.0.0", "name": "peer", "plugins": plugins })
}

/// Defaults but for the places; `restrict_oom_score_adj` because a node may lack
/// CAP_SYS_RESOURCE, and every pod would fail, and the drain because its default waits for ever for
/// a child that keeps an exec's pipe.
fn config(folder: &Path, programs: &Programs, options: &ContainerdOptions<'_>) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        r#"version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{socket}"

[debug]
level = "warn"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
{images}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "{certs}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
drain_exec_sync_io_timeout = "2s"
cdi_spec_dirs = ["{cdi}"]

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{net}"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
Root = "{runc_root}"
SystemdCgroup = false

{tables}"#,
        images = options.tuning.images,
        tables = options.tuning.tables,
        pause = options.pause,
        root = at("root"),
        state = at("state"),
        socket = at("containerd.sock"),
        cdi = at("cdi"),
        certs = at("certs.d"),
        cni = programs.path("cni").display(),
        net = at("net.d"),
        runc = programs.path("runc").display(),
        runc_root = at("runc"),
    )
}

fn write_registry(certs: &Path, host: &str) -> Result<()> {
    let folder = certs.join(host);
    std::fs::create_dir_all(&folder)?;
    let text = format!(
        "server = \"http://{host}\"\n\n[host.\"http://{host}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    );
    std::fs::write(folder.join("hosts.toml"), text).with_context(|| folder.display().to_string())
}
