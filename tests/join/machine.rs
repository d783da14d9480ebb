//! The machine that joins: this one, with overlays on `/etc` and `/opt` and a thread in place of systemd. Owns both and
//! their end, and says what is on the machine; never knows a cluster. Called by the specs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gantry_tests::cluster::process::{NodeProcess, ProcessSpec};
use gantry_tests::cluster::programs;
use gantry_tests::place;

/// Folders of the host that a join changes.
const OVERLAID: [&str; 2] = ["/etc", "/opt"];
/// What a leave must give back, files and folders.
const LOOKED_AT: [&str; 5] =
    ["/etc", "/opt", "/var/lib/kubelet", "/var/lib/gantry/join", "/var/lib/gantry/join.json"];
const SYSCTLS: [&str; 3] = ["net/ipv4/ip_forward", "kernel/panic", "vm/overcommit_memory"];

/// What kubeadm asks of systemd is for its one unit.
const SYSTEMCTL: &str = r#"#!/bin/sh
case "$1 $2" in "start kubelet" | "restart kubelet" | "stop kubelet") ;; *) exit 0 ;; esac
echo "$1" >FOLDER/asked.new && mv FOLDER/asked.new FOLDER/asked
while [ -e FOLDER/asked ]; do sleep 0.05; done
"#;

/// See the module.
pub(crate) struct JoinMachine {
    folder: PathBuf,
    init: Option<JoinHandle<Result<()>>>,
    over: Arc<AtomicBool>,
}

/// What is at a path: kind and mode, and what is in it.
pub(crate) type Snapshot = BTreeMap<PathBuf, (u32, Vec<u8>)>;

impl JoinMachine {
    /// Lays the overlays and starts what stands for systemd. Before a cluster, which mounts into `/etc`.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        place::require_own_namespaces()?;
        for target in OVERLAID {
            let name = target.trim_start_matches('/');
            let [upper, work] = ["upper", "work"].map(|part| folder.join("machine").join(name).join(part));
            for path in [&upper, &work] {
                fs::create_dir_all(path).with_context(|| path.display().to_string())?;
            }
            let options =
                format!("lowerdir={target},upperdir={},workdir={}", upper.display(), work.display());
            command("mount", &["-t", "overlay", "overlay", "-o", &options, target])?;
        }
        let bin = folder.join("machine/bin");
        fs::create_dir_all(&bin)?;
        let gantry = place::bin_dir()?.join("gantry");
        for (name, program) in
            [("gantry", gantry.clone()), ("kubelet", gantry), ("kubeadm", programs::path("kubeadm")?)]
        {
            symlink(&program, bin.join(name)).with_context(|| name.to_owned())?;
        }
        let systemctl = bin.join("systemctl");
        fs::write(&systemctl, SYSTEMCTL.replace("FOLDER", &folder.join("machine").display().to_string()))?;
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755))?;
        let over = Arc::new(AtomicBool::new(false));
        let init = Init { folder: folder.join("machine"), over: over.clone(), kubelet: None };
        let init = Some(std::thread::spawn(move || init.run()));
        Ok(Self { folder: folder.to_owned(), init, over })
    }

    /// As a machine is that has never been a node.
    pub(crate) fn prepare(&self) -> Result<()> {
        fs::write("/proc/sys/net/ipv4/ip_forward", "0").context("net.ipv4.ip_forward")?;
        command("nft", &["add", "table", "ip", "filter"])?;
        command("nft", &["add", "chain", "ip", "filter", "MINE"])?;
        let hooked = "{ type filter hook input priority 0; }";
        command("nft", &["add", "chain", "ip", "filter", "INPUT", hooked])
    }

    /// What kube-proxy and a network's agent would have left.
    pub(crate) fn as_a_cluster_leaves_it(&self) -> Result<()> {
        let rules = "
            add chain ip filter KUBE-FIREWALL
            add rule ip filter KUBE-FIREWALL drop
            add rule ip filter INPUT ip daddr 192.0.2.1 jump KUBE-FIREWALL
            add table ip nat
            add chain ip nat KUBE-MARK-MASQ
            add chain ip nat KUBE-SERVICES
            add rule ip nat KUBE-SERVICES ip daddr 192.0.2.1 counter jump KUBE-MARK-MASQ
            add chain ip nat PREROUTING { type nat hook prerouting priority -100; }
            add rule ip nat PREROUTING counter jump KUBE-SERVICES
            add table ip6 kube-proxy
            add chain ip6 kube-proxy services";
        let file = self.folder.join("machine/rules.nft");
        fs::write(&file, rules)?;
        command("nft", &["-f", file.to_str().context("a path")?])?;
        command("ip", &["route", "add", "10.85.7.0/24", "via", "10.87.0.2"])?;
        fs::write("/etc/cni/net.d/10-later.conflist", "{}").context("a network's configuration")
    }

    /// The name that it has as a node.
    pub(crate) fn node(&self) -> String {
        rustix::system::uname().nodename().to_string_lossy().to_lowercase()
    }

    /// What `gantry …` prints.
    pub(crate) fn gantry(&self, args: &[&str]) -> Result<String> {
        let output = self.run(args)?;
        let said = text(&output);
        let log = || gantry_tests::node::tail(&self.folder.join("machine/kubelet.log"));
        ensure!(output.status.success(), "gantry {}: {}\n{said}\n{}", args.join(" "), output.status, log());
        Ok(said)
    }

    /// What one prints that fails.
    pub(crate) fn fails(&self, args: &[&str]) -> Result<String> {
        let output = self.run(args)?;
        let said = text(&output);
        ensure!(!output.status.success(), "gantry {} did not fail:\n{said}", args.join(" "));
        Ok(said)
    }

    fn run(&self, args: &[&str]) -> Result<Output> {
        let bin = self.folder.join("machine/bin");
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new(bin.join("gantry"))
            .args(args)
            .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", bin.display()))
            .stdin(Stdio::null())
            .output()
            .context("start gantry")
    }

    /// Ends the kubelet, if one runs, and takes the overlays away.
    pub(crate) fn end(mut self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.init.take().map(JoinHandle::join);
        ended.transpose().map_err(|_| anyhow::anyhow!("what stands for systemd panicked"))?.transpose()?;
        command("nft", &["flush", "ruleset"])?;
        OVERLAID.iter().try_for_each(|target| command("umount", &["--lazy", target]))
    }
}

impl Drop for JoinMachine {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// In place of systemd.
struct Init {
    folder: PathBuf,
    over: Arc<AtomicBool>,
    kubelet: Option<NodeProcess>,
}

impl Init {
    fn run(mut self) -> Result<()> {
        let asked = self.folder.join("asked");
        while !self.over.load(Ordering::Relaxed) {
            if let Ok(verb) = fs::read_to_string(&asked) {
                let done = self.serve(verb.trim());
                fs::remove_file(&asked)?;
                done?;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.stop()
    }

    fn serve(&mut self, verb: &str) -> Result<()> {
        self.stop()?;
        if verb != "stop" {
            self.kubelet = Some(NodeProcess::start(kubelet(&self.folder)?, &self.folder)?);
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.kubelet.take().map_or(Ok(()), |mut kubelet| kubelet.stop().map(drop))
    }
}

/// As `10-kubeadm.conf` has it.
fn kubelet(folder: &Path) -> Result<ProcessSpec> {
    let flags = fs::read_to_string("/var/lib/kubelet/kubeadm-flags.env").unwrap_or_default();
    let flags = flags.trim().trim_start_matches("KUBELET_KUBEADM_ARGS=").trim_matches('"').to_owned();
    let args = [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
        "--v=2",
    ];
    let args = args.into_iter().chain(flags.split_whitespace()).map(str::to_owned);
    Ok(ProcessSpec::new("kubelet", folder.join("bin/kubelet"), args))
}

/// Everything that a leave must give back.
pub(crate) fn snapshot() -> Result<Snapshot> {
    let mut found = Snapshot::new();
    for root in LOOKED_AT {
        walk(Path::new(root), &mut found)?;
    }
    for name in SYSCTLS {
        let path = Path::new("/proc/sys").join(name);
        found.insert(path.clone(), (0, fs::read(path)?));
    }
    for (name, args) in [("nft", vec!["list", "ruleset"]), ("ip", vec!["route"])] {
        let output = Command::new(name).args(args).output().with_context(|| format!("start {name}"))?;
        // A network's bridge stays, and with it the route of its address.
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let kept: String =
            lines.split_inclusive('\n').filter(|line| !line.contains("dev cni0 proto kernel")).collect();
        found.insert(name.into(), (0, kept.into_bytes()));
    }
    for root in fs::read_dir("/sys/fs/cgroup")?.chain(std::iter::empty()) {
        let root = root?.path();
        for path in [root.join("kubepods"), root.join("kubepods.slice"), root] {
            if path.to_string_lossy().contains("kubepods") && path.is_dir() {
                found.insert(path, (0, Vec::new()));
            }
        }
    }
    Ok(found)
}

fn walk(path: &Path, found: &mut Snapshot) -> Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    let content = match metadata.file_type() {
        kind if kind.is_file() => fs::read(path).with_context(|| path.display().to_string())?,
        kind if kind.is_symlink() => fs::read_link(path)?.into_os_string().into_encoded_bytes(),
        _ => Vec::new(),
    };
    found.insert(path.to_owned(), (metadata.mode(), content));
    if metadata.is_dir() {
        for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
            walk(&entry?.path(), found)?;
        }
    }
    Ok(())
}

/// What is in one and not, or not so, in the other.
pub(crate) fn difference(before: &Snapshot, after: &Snapshot) -> String {
    let show = |sign: char, path: &Path, (mode, content): &(u32, Vec<u8>)| {
        let start: String = String::from_utf8_lossy(content).chars().take(2000).collect();
        format!("{sign} {} {mode:o} {start}\n", path.display())
    };
    let gone =
        before.iter().filter(|(path, what)| after.get(*path) != Some(what)).map(|(p, w)| show('-', p, w));
    let come =
        after.iter().filter(|(path, what)| before.get(*path) != Some(what)).map(|(p, w)| show('+', p, w));
    gone.chain(come).collect()
}

fn command(program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
