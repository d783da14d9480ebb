//! The machine: the disk of `cargo xtask vagrant-box` under qemu (emulated: it needs no /dev/kvm), with the two network
//! cards that Vagrant gives it, and commands in it by ssh. Owns its files and its process; never knows what is tried on
//! it. Called by the tier's steps.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll_every;
use gantry_tests::proc;

use super::network::Place;
use super::{NODE, WAIT};
use crate::kind::Bed;
use crate::sh;
use crate::vagrant_box::Files;

/// A namespace of its own has it for itself.
const SSH_PORT: u16 = 2222;
const PAUSE: Duration = Duration::from_secs(2);
/// As `vagrant_box/Vagrantfile` has it.
const KERNEL: &str = "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 no_timer_check";

/// Where a machine has the files of [`brought`] from the first.
pub(super) const THERE: &str = "/root/tier";

/// Of a machine's folder: the files that come with its disk. By ssh they would take minutes.
pub(super) fn brought(folder: &Path) -> PathBuf {
    folder.join("brought")
}

/// A machine that runs.
#[derive(Debug)]
pub(super) struct QemuMachine<'a> {
    bed: &'a Bed,
    /// nsenter, whose child qemu ends with it.
    qemu: Child,
    /// What qemu is told.
    words: Vec<String>,
    folder: PathBuf,
    /// The one of the second card, where the cluster's nodes are.
    pub(super) address: String,
}

impl<'a> QemuMachine<'a> {
    /// Boots a copy of that disk, until ssh answers.
    ///
    /// # Errors
    /// When a program is missing, or it does not answer in time.
    pub(super) fn boot(bed: &'a Bed, files: &Files, folder: &Path, place: &Place) -> Result<Self> {
        let words = words(files, &disk(files, folder, place)?, folder, place);
        let qemu = start(bed, &words, folder)?;
        let address = place.address().to_owned();
        let mut machine = Self { bed, qemu, words, folder: folder.to_owned(), address };
        machine.await_boot()?;
        Ok(machine)
    }

    /// As a person would, and returns the kernel's ID of the new boot. qemu ends with the old one and is started again:
    /// within one qemu the kernel takes ten times as long to come up.
    ///
    /// # Errors
    /// When it does not go down, or not come up again.
    pub(super) fn reboot(&mut self) -> Result<String> {
        self.run("systemctl --no-block reboot")?;
        self.await_end()?;
        self.qemu = start(self.bed, &self.words, &self.folder)?;
        self.await_boot()
    }

    /// Takes its power away, boots it again, and returns the kernel's ID of the new boot. Of what the machine has not
    /// written to its disk nothing is left; what it has written is there, whether it asked for a flush or not.
    ///
    /// # Errors
    /// When it does not come up again.
    pub(super) fn cut_power(&mut self) -> Result<String> {
        let nsenter = i32::try_from(self.qemu.id()).context("a pid")?;
        for qemu in proc::children(nsenter)? {
            proc::kill(qemu.pid)?;
        }
        // nsenter waits until the last thread of qemu has given up disk and port.
        self.qemu.wait().context("wait for qemu")?;
        self.qemu = start(self.bed, &self.words, &self.folder)?;
        self.await_boot()
    }

    /// Until it answers. Returns the kernel's ID of the boot.
    fn await_boot(&mut self) -> Result<String> {
        let log = self.folder.join("qemu.log");
        poll_every(PAUSE, "the machine to answer by ssh", WAIT, || {
            if let Ok(Some(status)) = self.qemu.try_wait() {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Ok(Err(anyhow::anyhow!("qemu ended with {status}\n{said}")));
            }
            self.boot_id().map(Ok).map_err(|error| format!("{error:#}"))
        })?
    }

    /// The kernel's ID of this boot.
    pub(super) fn boot_id(&self) -> Result<String> {
        self.run("cat /proc/sys/kernel/random/boot_id")
    }

    /// What a shell script prints in there, as root. It ends at the first command that fails.
    ///
    /// # Errors
    /// When it fails; what it said comes along.
    pub(super) fn run(&self, script: &str) -> Result<String> {
        self.answer(self.ssh(script)?.stdin(Stdio::null()), script)
    }

    /// Copies a file there.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub(super) fn put(&self, from: &Path, to: &str) -> Result<()> {
        let file = fs::File::open(from).with_context(|| from.display().to_string())?;
        let script = format!("cat >{to}");
        self.answer(self.ssh(&script)?.stdin(file), &script).map(drop)
    }

    fn answer(&self, ssh: &mut Command, script: &str) -> Result<String> {
        let output = ssh.output().with_context(|| gantry_needs::remedy("ssh"))?;
        let (said, printed) =
            (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        let first = script.lines().next().unwrap_or_default();
        ensure!(
            output.status.success(),
            "in the machine: {first}: {}\n{}\n{}",
            output.status,
            printed.trim(),
            said.trim()
        );
        Ok(printed.trim().to_owned())
    }

    fn ssh(&self, script: &str) -> Result<Command> {
        let mut ssh = self.bed.command()?;
        ssh.args(["ssh", "-F", "none", "-p", &SSH_PORT.to_string(), "-i"]).arg(self.folder.join("key"));
        for option in [
            "BatchMode=yes",
            "ConnectTimeout=60",
            "LogLevel=ERROR",
            "ServerAliveInterval=20",
            "ServerAliveCountMax=9",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
        ] {
            ssh.args(["-o", option]);
        }
        ssh.args(["root@127.0.0.1", &format!("sh -euc {}", sh::quoted(script))]);
        Ok(ssh)
    }

    /// For who reads why a step failed.
    pub(super) fn state(&self) -> String {
        let look =
            "journalctl --no-pager --lines 60 --unit gantry --unit kubelet; ip address; ip route; free";
        let console = fs::read_to_string(self.folder.join("console.log")).unwrap_or_default();
        let last: Vec<_> = console.lines().rev().take(20).collect();
        let console: Vec<_> = last.into_iter().rev().collect();
        format!("{}\n{}", console.join("\n"), self.run(look).unwrap_or_else(|error| format!("{error:#}")))
    }

    /// As a person would. Where that fails, it ends when it is dropped.
    ///
    /// # Errors
    /// When it does not go down.
    pub(super) fn power_off(mut self) -> Result<()> {
        self.run("systemctl --no-block poweroff")?;
        self.await_end()
    }

    fn await_end(&mut self) -> Result<()> {
        poll_every(PAUSE, "the machine to go down", WAIT, || match self.qemu.try_wait() {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("it still runs".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }
}

impl Drop for QemuMachine<'_> {
    fn drop(&mut self) {
        // Where it has ended, both are refused, and nothing is left to do.
        let _ended = self.qemu.kill().and_then(|()| self.qemu.wait());
    }
}

/// qemu, in docker's namespaces. It ends with its parent, which is nsenter.
fn start(bed: &Bed, words: &[String], folder: &Path) -> Result<Child> {
    let mut qemu = bed.command()?;
    qemu.args(["setpriv", "--pdeathsig", "KILL", "--"]).args(words);
    let log = fs::File::create(folder.join("qemu.log"))?;
    qemu.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    qemu.spawn().with_context(|| gantry_needs::remedy("qemu-system-x86_64"))
}

/// A copy of the box's disk, with a key for ssh, a name, the second card's address, and all of the folder [`brought`].
fn disk(files: &Files, folder: &Path, place: &Place) -> Result<PathBuf> {
    let disk = folder.join("disk.raw");
    let mut copy = Command::new("cp");
    sh::run(copy.args(["--sparse=always", "--reflink=auto"]).arg(&files.disk).arg(&disk))?;
    let key = folder.join("key");
    sh::run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
    let at = |name: &str| folder.join(name);
    fs::write(at("hostname"), format!("{NODE}\n"))?;
    fs::write(at("hosts"), format!("127.0.0.1 localhost\n127.0.1.1 {NODE}\n"))?;
    fs::write(
        at("81-second.network"),
        format!("[Match]\nName=eth1\n[Network]\nAddress={}\n", place.network),
    )?;
    let public = fs::read_to_string(at("key.pub")).context("the key's public half")?;
    fs::write(at("authorized_keys"), &public)?;
    for name in ["hostname", "hosts", "81-second.network"] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o644))?;
    }
    let commands = at("commands");
    let here = folder.display();
    fs::write(
        &commands,
        format!(
            "cd /etc\nrm hostname\nwrite {here}/hostname hostname\nrm hosts\nwrite {here}/hosts hosts\n\
             cd /etc/systemd/network\nwrite {here}/81-second.network 81-second.network\n\
             set_inode_field /root/.ssh mode 040700\n\
             cd /root/.ssh\nwrite {here}/authorized_keys authorized_keys\n\
             mkdir {THERE}\ncd {THERE}\n{}",
            writes(&brought(folder))?
        ),
    )?;
    debugfs(&["-w", "-f", &commands.display().to_string()], &disk)?;
    // It says what went wrong and succeeds all the same.
    let written = debugfs(&["-R", "cat /root/.ssh/authorized_keys"], &disk)?;
    ensure!(written.trim() == public.trim(), "debugfs has written another key: {written}");
    Ok(disk)
}

/// A command of debugfs for each file of a folder.
fn writes(from: &Path) -> Result<String> {
    let mut commands = String::new();
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().context("a file without a name")?.to_string_lossy();
        commands.push_str(&format!("write {} {name}\n", path.display()));
    }
    Ok(commands)
}

fn debugfs(words: &[&str], disk: &Path) -> Result<String> {
    let mut debugfs = Command::new("debugfs");
    debugfs.args(words).arg(disk).env("PATH", gantry_needs::path()).stdin(Stdio::null());
    let output = debugfs.output().with_context(|| sh::missing(&debugfs))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}\n{}", sh::show(&debugfs), output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first card leads out, as far as there is an out, and has ssh; the second one is in the cluster's network.
fn words(files: &Files, disk: &Path, folder: &Path, place: &Place) -> Vec<String> {
    let file = |path: &Path| path.display().to_string();
    let text = "qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -accel tcg,thread=multi -cpu max -smp 2 \
                -m 3072 -device virtio-rng-pci";
    let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    words.extend(
        [
            ("-kernel", file(&files.kernel)),
            ("-initrd", file(&files.initrd)),
            ("-append", KERNEL.to_owned()),
            ("-drive", format!("file={},if=none,id=root,format=raw,cache=unsafe", file(disk))),
            ("-device", "virtio-blk-pci,drive=root".to_owned()),
            ("-netdev", format!("user,id=out,hostfwd=tcp:127.0.0.1:{SSH_PORT}-:22")),
            ("-device", "virtio-net-pci,netdev=out,romfile=,mac=52:54:00:6a:6f:01".to_owned()),
            ("-netdev", format!("tap,id=cluster,ifname={},script=no,downscript=no", place.tap)),
            ("-device", "virtio-net-pci,netdev=cluster,romfile=,mac=52:54:00:6a:6f:02".to_owned()),
            ("-serial", format!("file:{}", file(&folder.join("console.log")))),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value]),
    );
    words
}
