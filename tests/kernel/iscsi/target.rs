//! The kernel of the small VM as an iSCSI target, with iscsid and udevd beside it. Owns all of them, and what iscsiadm
//! remembers; never logs in. Called by the tests of iSCSI volumes.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::place;
use gantry_tests::poll::poll;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal};

/// Where the target listens.
pub(crate) const PORTAL: &str = "127.0.0.1:3260";
/// The target's name.
pub(crate) const IQN: &str = "iqn.2026-01.io.gantry:target";

const CONFIGFS: &str = "/sys/kernel/config";
const FABRIC: &str = "/sys/kernel/config/target/iscsi";
const CORE: &str = "/sys/kernel/config/target/core";
/// The abstract socket of iscsid.
const ISCSID: &str = "@ISCSIADM_ABSTRACT_NAMESPACE";
const WAIT: Duration = Duration::from_secs(20);

/// The kernel's target and this machine's daemons; gone with this.
pub(crate) struct IscsiTarget {
    /// With the files of the LUNs.
    root: PathBuf,
    daemons: Vec<Child>,
    /// Of what was not, the error is told alone.
    started: bool,
}

/// What a program ended with, and what it said to both.
pub(crate) fn said(program: &str, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("run {program}"))?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

/// What a program that must succeed said.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let (code, text) = said(program, arguments)?;
    ensure!(code == Some(0), "{program} {arguments:?} ended with {code:?}: {text}");
    Ok(text)
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).with_context(|| format!("write {value:?} to {}", path.display()))
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir(folder).with_context(|| format!("make {}", folder.display()))
}

/// The target portal group: LIO's word for what is served at the portals.
fn group() -> PathBuf {
    Path::new(FABRIC).join(IQN).join("tpgt_1")
}

impl IscsiTarget {
    /// A target without LUNs that lets everybody in, with its files in `root`. None on a host, whose disks are not a test's,
    /// and in a machine with systemd, which has no open-iscsi.
    pub(crate) fn start(root: &Path) -> Result<Option<Self>> {
        if !Path::new(place::VM_MARK).exists() || place::with_systemd() {
            return Ok(None);
        }
        rustix::mount::mount("configfs", CONFIGFS, "configfs", MountFlags::empty(), None)
            .context("mount configfs")?;
        let mut this = Self { root: root.to_owned(), daemons: Vec::new(), started: false };
        this.serve_portal()?;
        this.start_daemons()?;
        this.started = true;
        Ok(Some(this))
    }

    fn serve_portal(&self) -> Result<()> {
        make(Path::new(FABRIC))?;
        fs::create_dir_all(group())?;
        // Without names of initiators each may come, and write.
        for (name, value) in
            [("generate_node_acls", "1"), ("demo_mode_write_protect", "0"), ("authentication", "0")]
        {
            write(&group().join("attrib").join(name), value)?;
        }
        make(&group().join("np").join(PORTAL))?;
        self.answer(true)
    }

    fn start_daemons(&mut self) -> Result<()> {
        for folder in ["/run/lock", "/run/udev"] {
            fs::create_dir_all(folder)?;
        }
        for (program, arguments) in [("systemd-udevd", &[][..]), ("iscsid", &["--foreground"])] {
            let mut daemon = Command::new(program);
            // When iscsid ends it ends all of its process group.
            daemon.args(arguments).process_group(0);
            daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            self.daemons.push(daemon.spawn().with_context(|| format!("start {program}"))?);
        }
        poll("udevd", WAIT, || match said("udevadm", &["control", "--ping"]) {
            Ok((Some(0), _)) => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        poll("iscsid", WAIT, || {
            let sockets = fs::read_to_string("/proc/net/unix").map_err(|error| error.to_string())?;
            if sockets.contains(ISCSID) { Ok(()) } else { Err(sockets) }
        })
    }

    /// Adds a LUN of so many bytes, and tells the file that it is. Who is logged in sees it after a scan.
    pub(crate) fn add_lun(&self, number: u16, bytes: u64) -> Result<PathBuf> {
        let file = self.root.join(format!("lun-{number}"));
        fs::File::create(&file)?.set_len(bytes)?;
        // A file is a device of an adapter of its own.
        let device = Path::new(CORE).join(format!("fileio_{number}")).join("file");
        fs::create_dir_all(&device).with_context(|| format!("make {}", device.display()))?;
        let what = format!("fd_dev_name={},fd_dev_size={bytes}", file.display());
        write(&device.join("control"), &what)?;
        write(&device.join("enable"), "1")?;
        let lun = group().join("lun").join(format!("lun_{number}"));
        make(&lun)?;
        symlink(&device, lun.join("device")).with_context(|| format!("export {}", device.display()))?;
        Ok(file)
    }

    /// Answers, or does not: then connections end, those that come are told to try again, and discovery tells of no target.
    pub(crate) fn answer(&self, answers: bool) -> Result<()> {
        write(&group().join("enable"), if answers { "1" } else { "0" })
    }

    /// From now on whoever logs in must know this name and secret; `mutual` is what the target says of itself when asked.
    pub(crate) fn ask_for_secret(&self, own: (&str, &str), mutual: Option<(&str, &str)>) -> Result<()> {
        write_secrets(&group().join("auth"), own, mutual)?;
        write(&group().join("attrib/authentication"), "1")
    }

    /// The same for whoever asks which targets there are.
    pub(crate) fn ask_for_discovery_secret(
        &self,
        own: (&str, &str),
        mutual: Option<(&str, &str)>,
    ) -> Result<()> {
        let folder = Path::new(FABRIC).join("discovery_auth");
        write_secrets(&folder, own, mutual)?;
        write(&folder.join("enforce_discovery_auth"), "1")
    }

    /// Each step is done, whatever comes of those before it.
    fn take_back(&mut self) -> Result<()> {
        let steps = [log_out(), self.end_daemons(), remove_target(), remove_luns(), forget()];
        let unmounted = rustix::mount::unmount(CONFIGFS, UnmountFlags::empty()).context("unmount configfs");
        steps.into_iter().chain([unmounted]).collect()
    }

    fn end_daemons(&mut self) -> Result<()> {
        // The last that was started first: udevd removes the links of disks that go.
        while let Some(mut daemon) = self.daemons.pop() {
            let pid = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw).context("a pid")?;
            rustix::process::kill_process(pid, Signal::TERM)?;
            daemon.wait()?;
        }
        Ok(())
    }
}

impl Drop for IscsiTarget {
    fn drop(&mut self) {
        if let Err(error) = self.take_back()
            && self.started
            && !std::thread::panicking()
        {
            panic!("the target is not taken back: {error:#}");
        }
    }
}

fn write_secrets(folder: &Path, own: (&str, &str), mutual: Option<(&str, &str)>) -> Result<()> {
    write(&folder.join("userid"), own.0)?;
    write(&folder.join("password"), own.1)?;
    let Some((name, secret)) = mutual else { return Ok(()) };
    write(&folder.join("userid_mutual"), name)?;
    write(&folder.join("password_mutual"), secret)
}

/// Ends what sessions there are, and waits for udevd to hear of their disks.
fn log_out() -> Result<()> {
    let (code, text) = said("iscsiadm", &["--mode", "node", "--logoutall", "all"])?;
    // 21: there is none.
    ensure!(matches!(code, Some(0 | 21)), "iscsiadm --logoutall ended with {code:?}: {text}");
    run("udevadm", &["settle"]).map(drop)
}

/// The folders in a folder, none when it is not there.
fn folders(of: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(of) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn remove(folder: &Path) -> Result<()> {
    fs::remove_dir(folder).with_context(|| format!("remove {}", folder.display()))
}

/// All below the fabric, from the leaves on: configfs removes no folder that has one of a user's own.
fn remove_target() -> Result<()> {
    if !Path::new(FABRIC).exists() {
        return Ok(());
    }
    // These are the module's, and would be the next target's: it takes this word for none.
    let discovery = Path::new(FABRIC).join("discovery_auth");
    write(&discovery.join("enforce_discovery_auth"), "0")?;
    write_secrets(&discovery, ("NULL", "NULL"), Some(("NULL", "NULL")))?;
    let group = group();
    for portal in folders(&group.join("np"))? {
        remove(&portal)?;
    }
    for lun in folders(&group.join("lun"))? {
        let link = lun.join("device");
        fs::remove_file(&link).with_context(|| format!("remove {}", link.display()))?;
        remove(&lun)?;
    }
    if group.exists() {
        remove(&group)?;
        remove(&Path::new(FABRIC).join(IQN))?;
    }
    remove(Path::new(FABRIC))
}

fn remove_luns() -> Result<()> {
    // `alua` is the kernel's own.
    let of_files = |path: &PathBuf| path.file_name().is_some_and(|name| name != "alua");
    for adapter in folders(Path::new(CORE))?.iter().filter(|path| of_files(path)) {
        for device in folders(adapter)? {
            remove(&device)?;
        }
        remove(adapter)?;
    }
    Ok(())
}

/// What iscsiadm remembers, and what udevd does.
fn forget() -> Result<()> {
    for folder in ["nodes", "send_targets", "ifaces"].map(|name| format!("/etc/iscsi/{name}")) {
        remove_all(Path::new(&folder))?;
    }
    remove_all(Path::new("/run/udev"))?;
    remove_all(Path::new("/run/lock/iscsi"))
}

fn remove_all(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
