//! Vagrant as a person runs it in the folder `vagrant`, with a libvirtd of the tier's own. Owns both and the way into the
//! machine; never knows what is tried on it. Called by the tier's steps.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll_every;

use crate::kind::Bed;
use crate::sh;

const LIBVIRT: &str = include_str!("libvirt.sh");
const PAUSE: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(60);

/// The first machine of the `Vagrantfile`.
pub(super) const MACHINE: &str = "gantry-1";
/// That of a control plane of its own.
pub(super) const CONTROL_PLANE: &str = "gantry-control-plane";

/// Vagrant with what it needs. libvirtd ends when this is dropped.
pub(super) struct Vagrant<'a> {
    bed: &'a Bed,
    libvirtd: Child,
    folder: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl<'a> Vagrant<'a> {
    /// Starts libvirtd, for machines that pull from `mirror`.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn start(bed: &'a Bed, deb: &Path, boxed: &Path, mirror: &str) -> Result<Self> {
        let folder = bed.folder.join("vagrant");
        fs::create_dir_all(folder.join("home")).with_context(|| format!("make {}", folder.display()))?;
        let log = fs::File::create(folder.join("libvirtd.log"))?;
        let mut command = bed.command()?;
        command.args(["sh", "-c", LIBVIRT, "libvirt"]).arg(folder.join("libvirt"));
        let libvirtd = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let environment = vec![
            ("CLUSTER", bed.name().into()),
            ("DEB", deb.into()),
            ("BOX_FILE", boxed.into()),
            ("MIRROR", mirror.into()),
            // A /dev/kvm may be there that runs no guest.
            ("DRIVER", "qemu".into()),
            ("HOME", folder.join("home").into()),
            ("VAGRANT_HOME", folder.join("vagrant.d").into()),
            ("VAGRANT_DOTFILE_PATH", folder.join("dot").into()),
            ("VAGRANT_CHECKPOINT_DISABLE", "1".into()),
            ("VAGRANT_DEFAULT_PROVIDER", "libvirt".into()),
        ];
        let mut vagrant = Self { bed, libvirtd, folder, environment };
        vagrant.await_libvirtd()?;
        Ok(vagrant)
    }

    fn await_libvirtd(&mut self) -> Result<()> {
        let log = self.folder.join("libvirtd.log");
        let bed = self.bed;
        poll_every(PAUSE, "libvirtd to answer", WAIT, || {
            if let Ok(Some(status)) = self.libvirtd.try_wait() {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Ok(Err(anyhow::anyhow!("libvirtd ended with {status}\n{said}")));
            }
            let asked = bed.run(&["virsh", "--connect", "qemu:///system", "list", "--all"]);
            asked.map(|_| Ok(())).map_err(|error| format!("{error:#}"))
        })?
    }

    /// `vagrant WORDS`, its output on this terminal.
    ///
    /// # Errors
    /// When it fails.
    pub(super) fn run(&self, words: &[&str]) -> Result<()> {
        println!("$ vagrant {}", words.join(" "));
        let status = self.command(words)?.stdin(Stdio::null()).status().context("start vagrant")?;
        ensure!(status.success(), "vagrant {}: {status}", words.join(" "));
        Ok(())
    }

    /// What `vagrant WORDS` prints.
    pub(super) fn read(&self, words: &[&str]) -> Result<String> {
        println!("$ vagrant {}", words.join(" "));
        let output = self.command(words)?.stdin(Stdio::null()).output().context("start vagrant")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "vagrant {}: {}\n{}", words.join(" "), output.status, said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = self.bed.command()?;
        // The engine's namespaces have a working folder of their own.
        command.arg("--chdir").arg(sh::root().join("vagrant")).arg("vagrant").args(words);
        command.env("NO_COLOR", "1").envs(self.environment.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// From here on the machines are a cluster of their own, with that network add-on.
    pub(super) fn use_own_control_plane(&mut self, network: &Path) {
        self.environment.retain(|(name, _)| !matches!(*name, "CLUSTER" | "VAGRANT_DOTFILE_PATH"));
        self.environment.extend([
            ("CLUSTER", "vm".into()),
            ("VAGRANT_DOTFILE_PATH", self.folder.join("dot-vm").into()),
            ("NETWORK", network.into()),
        ]);
    }

    /// Where ssh finds that machine: Vagrant itself takes seconds for each command.
    pub(super) fn ssh(&self, machine: &'static str) -> Result<Ssh<'a>> {
        let config = self.folder.join(format!("ssh-config-{machine}"));
        fs::write(&config, self.read(&["ssh-config", machine])?)?;
        Ok(Ssh { bed: self.bed, machine, config })
    }
}

impl Drop for Vagrant<'_> {
    fn drop(&mut self) {
        // Where it has ended, both are refused, and nothing is left to do.
        let _ended = self.libvirtd.kill().and_then(|()| self.libvirtd.wait());
    }
}

/// The way into the machine.
pub(super) struct Ssh<'a> {
    bed: &'a Bed,
    machine: &'static str,
    config: PathBuf,
}

impl Ssh<'_> {
    /// What a shell script prints in there, as root. It ends at the first command that fails.
    ///
    /// # Errors
    /// When it fails; what it said comes along.
    pub(super) fn run(&self, script: &str) -> Result<String> {
        let mut ssh = self.bed.command()?;
        ssh.args(["ssh", "-F"]).arg(&self.config).args(["-o", "ConnectTimeout=60", self.machine]);
        ssh.arg(format!("sudo sh -euc {}", sh::quoted(script)));
        let output = ssh.stdin(Stdio::null()).output().with_context(|| gantry_needs::remedy("ssh"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "in the machine: {script}: {}\n{}", output.status, said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}
