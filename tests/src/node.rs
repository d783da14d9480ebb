//! A node of one's own: `gantry runtime` with every root in a temporary folder, its own cgroup
//! tag and its own bridge. Owns the process and the roots; kills and restarts it on request, and
//! sweeps up when a test failed. Called by the kernel tier.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use gantry_proto::cri;
use rustix::process::Pid;
use tempfile::TempDir;

use crate::cri::Cri;
use crate::leakcheck::{self, Scope, Snapshot};
use crate::place;
use crate::poll::poll;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// For the folder of a node that has ended.
const FOLDER_GOES: Duration = Duration::from_secs(10);
/// For a runtime that is about to.
const ENDS: Duration = Duration::from_secs(20);
/// What a reboot empties.
const VOLATILE: [&str; 4] = ["state", "netns", "cri.sock", "agent"];

/// Folders and names of one node, whoever runs it.
#[derive(Debug)]
pub struct Roots {
    folder: PathBuf,
    /// Where [`VOLATILE`] is.
    run: PathBuf,
    tag: String,
    bridge: String,
    /// None where all of it is to outlive this process.
    temporary: Option<TempDir>,
}

impl Roots {
    /// Makes the folders and a CNI configuration with a bridge and a /24 of its own.
    ///
    /// # Errors
    /// When this is the host's own place ([`place::require_own_namespaces`]) or the disk is full.
    pub fn new() -> Result<Self> {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = tempfile::Builder::new().prefix("gantry-").tempdir()?;
        let folder = temporary.path().to_owned();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let random = name.trim_start_matches("gantry-");
        // No dash: in the name of a slice it is a step down.
        let tag = format!("gantry_test_{random}_{number}");
        let bridge = format!("gt{number}");
        Roots { run: folder.clone(), folder, tag, bridge, temporary: Some(temporary) }
            .made(&serde_json::json!({ "subnet": format!("10.99.{}.0/24", number % 256) }))
    }

    /// Roots that outlive this process, and a reboot too as far as `folder` is on a disk and `run`
    /// is not. Those of an earlier boot are taken as they are. `number` tells nodes that are there at
    /// once apart. There are [`Roots::KEPT_ADDRESSES`] addresses, so that one that leaked is soon
    /// missed.
    ///
    /// # Errors
    /// As [`Roots::new`].
    pub fn kept(folder: &Path, run: &Path, number: u8) -> Result<Self> {
        let (folder, run) = (folder.to_owned(), run.to_owned());
        std::fs::create_dir_all(&run)?;
        let tag = format!("gantry_test_kept{number}");
        // The first one is the gateway's.
        let last = 1 + Self::KEPT_ADDRESSES;
        let subnet = format!("10.99.{number}.0/24");
        let range = serde_json::json!({ "subnet": subnet, "rangeEnd": format!("10.99.{number}.{last}") });
        Roots { folder, run, tag, bridge: format!("gtkept{number}"), temporary: None }.made(&range)
    }

    /// Takes away what a node of [`Roots::kept`] leaves by design when its last pod is gone.
    ///
    /// # Errors
    /// When a cgroup is not empty.
    pub fn tidy(&self) -> Result<()> {
        leakcheck::remove_bridges(std::slice::from_ref(&self.bridge));
        leakcheck::remove_node_cgroups(&self.tag)
    }

    /// How many pods may have an address on [`Roots::kept`].
    pub const KEPT_ADDRESSES: usize = 5;

    fn made(self, range: &serde_json::Value) -> Result<Self> {
        place::require_own_namespaces()?;
        let roots = self;
        for name in ["cni", "net.d", "logs", "netns", "leases", "cache"] {
            std::fs::create_dir_all(roots.path(name))?;
        }
        let conflist = serde_json::json!({
            "cniVersion": "1.1.0",
            "name": "test",
            "plugins": [{
                "type": "bridge",
                "bridge": roots.bridge,
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[range]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        });
        std::fs::write(roots.path("net.d/10-test.conflist"), serde_json::to_vec_pretty(&conflist)?)?;
        Ok(roots)
    }

    /// A path in the node's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        if VOLATILE.contains(&name) { self.run.join(name) } else { self.folder.join(name) }
    }

    /// The flags that `gantry runtime` and `gantry run` share.
    ///
    /// # Errors
    /// When the programs are not built.
    pub fn flags(&self) -> Result<Vec<String>> {
        Ok(self.flags_with(&place::bin_dir()?))
    }

    fn flags_with(&self, programs: &Path) -> Vec<String> {
        let at = |flag: &str, name: &str| format!("--{flag}={}", self.path(name).display());
        let mut flags = vec![
            at("root", "root"),
            at("state", "state"),
            at("cni-conf-dir", "net.d"),
            at("cni-cache-dir", "cache"),
            at("cni-data-dir", "leases"),
            at("netns-dir", "netns"),
            at("registry-hosts-dir", "certs.d"),
            at("cdi-spec-dirs", "cdi"),
            format!("--cgroup-root=/{}", self.tag),
            format!("--programs-dir={}", programs.display()),
        ];
        flags.extend(place::with_systemd().then(|| "--systemd-cgroup".to_owned()));
        flags
    }

    /// What must be clean when the node's pods are gone. The pulled images' layers stay, as does
    /// what a runtime keeps for itself, so files count only where pods leave them.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope {
            cgroup_tag: self.tag.clone(),
            folders: ["root", "state", "netns", "cache"].map(|name| self.path(name)).to_vec(),
            leases: self.path("leases"),
            bridges: vec![self.bridge.clone()],
            ..Scope::default()
        }
    }

    /// The text that every cgroup of this node has in its path.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }
}

impl Drop for Roots {
    fn drop(&mut self) {
        let Some(temporary) = self.temporary.take() else { return };
        leakcheck::sweep(&self.scope(), &self.folder);
        // An unpacker ends with its runtime, but not in the same instant. What stays all the same shows in the next
        // leak check.
        let _ =
            poll("the node's folder to go", FOLDER_GOES, || match std::fs::remove_dir_all(&self.folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.to_string()),
                _ => Ok(()),
            });
        drop(temporary);
    }
}

/// Which programs a node runs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Of the runtime.
    pub gantry: PathBuf,
    /// Of the monitor, pause and the unpacker.
    pub folder: PathBuf,
    /// Variables of the runtime beyond those of the test.
    pub variables: Vec<(String, PathBuf)>,
}

impl Programs {
    /// Those under test.
    ///
    /// # Errors
    /// When they are not built.
    pub fn built() -> Result<Self> {
        let folder = place::bin_dir()?;
        Ok(Programs { gantry: folder.join("gantry"), folder, variables: Vec::new() })
    }
}

/// A running `gantry runtime`.
#[derive(Debug)]
pub struct Node {
    child: Option<Child>,
    programs: Programs,
    cri: Cri,
    flags: Vec<String>,
    // Last: its drop sweeps what the process leaves.
    roots: Roots,
}

impl Node {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// When this is not a place for it, or it does not answer in 30 s.
    pub fn start() -> Result<Self> {
        Self::start_on(Roots::new()?)
    }

    /// Starts one on given roots and waits until it answers.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_on(roots: Roots) -> Result<Self> {
        Self::start_with(roots, Programs::built()?)
    }

    /// Starts other programs than those under test.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_with(roots: Roots, programs: Programs) -> Result<Self> {
        let cri = Cri::new(&roots.path("cri.sock"))?;
        let mut node = Node { child: None, programs, cri, flags: Vec::new(), roots };
        node.restart()?;
        Ok(node)
    }

    /// Starts the runtime again, of other programs from now on.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn restart_of(&mut self, programs: Programs) -> Result<()> {
        self.programs = programs;
        self.restart()
    }

    /// Starts the runtime again with more flags, from now on.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn restart_with(&mut self, flags: &[String]) -> Result<()> {
        self.flags = flags.to_vec();
        self.restart()
    }

    /// Gives the node another network; it counts from the next pod on.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_network(&self, plugins: &serde_json::Value) -> Result<()> {
        let conflist = serde_json::json!({"cniVersion": "1.1.0", "name": "test", "plugins": plugins});
        let path = self.roots.path("net.d/10-test.conflist");
        std::fs::write(path, serde_json::to_vec_pretty(&conflist)?)?;
        Ok(())
    }

    /// The plugin `bridge` of this node as a configuration, with a bridge and a range of its own.
    ///
    /// # Errors
    /// When the node's configuration cannot be read.
    pub fn bridge_plugin(&self) -> Result<serde_json::Value> {
        let text = std::fs::read(self.roots.path("net.d/10-test.conflist"))?;
        let list: serde_json::Value = serde_json::from_slice(&text)?;
        list.pointer("/plugins/0").cloned().context("a network without plugins")
    }

    /// Starts the runtime (again) on the same roots.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let log = self.open_log()?;
        let child = Command::new(&self.programs.gantry)
            .arg("runtime")
            .arg(format!("--socket=unix://{}", self.roots.path("cri.sock").display()))
            .args(self.roots.flags_with(&self.programs.folder))
            .envs(self.programs.variables.clone())
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start gantry runtime")?;
        let child = self.child.insert(child);
        let cri = &self.cri;
        let answer = poll("the runtime to answer", Duration::from_secs(30), || {
            if let Ok(Some(status)) = child.try_wait() {
                return Ok(Err(anyhow!("gantry runtime ended with {status}")));
            }
            cri.version(cri::VersionRequest::default()).map(Ok).map_err(|status| status.to_string())
        });
        answer.flatten().map(drop).with_context(|| self.log_tail())
    }

    /// Flags of one's own for the next start.
    pub fn set_flags(&mut self, flags: &[String]) {
        self.flags = flags.to_vec();
    }

    /// The runtime's process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<Pid> {
        let pid = self.child.as_ref().and_then(|child| i32::try_from(child.id()).ok());
        pid.and_then(Pid::from_raw).context("the runtime does not run")
    }

    /// kill -9 of the runtime; its pods run on.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("kill the runtime")?;
            child.wait().context("wait for the runtime")?;
        }
        Ok(())
    }

    /// Waits until the runtime ends by itself.
    ///
    /// # Errors
    /// When it goes on.
    pub fn wait_for_exit(&mut self) -> Result<ExitStatus> {
        let child = self.child.as_mut().context("the runtime does not run")?;
        let status = poll("the runtime to end", ENDS, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        })?;
        self.child = None;
        Ok(status)
    }

    /// The runtime's CRI.
    #[must_use]
    pub fn cri(&self) -> &Cri {
        &self.cri
    }

    /// The runtime's folder on disk.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.roots.path("root")
    }

    /// The runtime's folder that a reboot empties.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.roots.path("state")
    }

    /// The runtime's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.roots.path("cri.sock")
    }

    /// Where pods' logs go.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.roots.path("logs")
    }

    /// The node's folders.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// PullImage.
    ///
    /// # Errors
    /// The runtime's status, to be looked into.
    pub fn pull(&self, image: &str) -> Result<String, tonic::Status> {
        let image = Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() });
        let request = cri::PullImageRequest { image, ..Default::default() };
        self.cri.pull_image(request).map(|answer| answer.image_ref)
    }

    /// Waits until all images are on disk: a runtime that is killed while it asks the disk has to pull again.
    ///
    /// # Errors
    /// When that takes a minute.
    pub fn await_durable(&self) -> Result<()> {
        let journal = self.state().join("images");
        poll("the images to be durable", Duration::from_secs(60), || {
            match std::fs::read_dir(&journal).map(Iterator::count) {
                Ok(0) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    }

    /// Writes a registry's `hosts.toml`, and files beside it that it names.
    ///
    /// # Errors
    /// When the disk is full.
    pub fn registry_config(&self, host: &str, hosts: &str, files: &[(&str, &str)]) -> Result<()> {
        let folder = self.roots.path("certs.d").join(host);
        std::fs::create_dir_all(&folder)?;
        for (name, text) in files.iter().chain([&("hosts.toml", hosts)]) {
            std::fs::write(folder.join(name), text)?;
        }
        Ok(())
    }

    /// What is there now, to compare with at the end.
    ///
    /// # Errors
    /// Without /proc.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(&self.scope())
    }

    fn scope(&self) -> Scope {
        let own = self.child.as_ref().and_then(|child| i32::try_from(child.id()).ok());
        Scope { own: own.into_iter().collect(), ..self.roots.scope() }
    }

    /// Waits until nothing is left beyond `before`.
    ///
    /// # Errors
    /// Lists what is left, and the end of the runtime's log.
    pub fn assert_clean(&self, before: &Snapshot) -> Result<()> {
        before.await_clean(&self.scope()).with_context(|| self.log_tail())
    }

    /// The value of a cgroup file of one container: the v1 name is tried, then the v2 name.
    ///
    /// # Errors
    /// When no cgroup folder of this node holds both the id and such a file.
    pub fn cgroup_value(&self, id: &str, v1: &str, v2: &str) -> Result<String> {
        let folders = leakcheck::tagged_cgroups(&self.roots.tag)?;
        let monitors = format!("{}-monitors", self.roots.tag);
        let own = folders
            .iter()
            .filter(|folder| folder.ends_with(id) && !folder.to_string_lossy().contains(&monitors));
        for folder in own {
            for name in [v1, v2] {
                if let Ok(text) = std::fs::read_to_string(folder.join(name)) {
                    return Ok(text.trim().to_owned());
                }
            }
        }
        anyhow::bail!("no cgroup of {id} has {v1} or {v2}; there are {folders:?}")
    }

    fn open_log(&self) -> Result<File> {
        let path = self.log_path();
        OpenOptions::new().create(true).append(true).open(&path).with_context(|| path.display().to_string())
    }

    fn log_path(&self) -> PathBuf {
        self.roots.path("runtime.log")
    }

    /// What the runtime has logged.
    ///
    /// # Errors
    /// When it was never started.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.log_path())?)
    }

    fn log_tail(&self) -> String {
        tail(&self.log_path())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            show(&self.log_tail());
        }
        // The sweep of the roots comes next, whether or not this worked.
        let _ = self.kill();
    }
}

/// The last lines of a log, for error messages.
#[must_use]
pub fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(40);
    format!("end of {}:\n{}", path.display(), lines[from..].join("\n"))
}

#[expect(clippy::print_stderr, reason = "shown beside the failed test that it explains")]
fn show(text: &str) {
    eprintln!("{text}");
}
