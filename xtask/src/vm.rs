//! The small VM: Debian's cloud kernel under qemu (emulated: it needs no /dev/kvm), an initramfs
//! made on the spot, cgroup v2 as the only hierarchy. Owns the kernel's download and the boot;
//! never touches the host's network or disks. Called by the tiers.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gantry_tests::place;

use crate::build::{BESIDE, IN_GO};
use crate::cpio::Cpio;
use crate::kernel;
use crate::sh;
use crate::summary::{self, Counts};

const MODULES: [&str; 3] = ["overlay", "veth", "bridge"];
const MEMORY_MIB: &str = "3072";
const DEADLINE_SECONDS: &str = "900";
/// Printed last by stage 2, with the exit code of the command.
const END: &str = "gantry-vm ended with ";

/// Loads modules, then leaves the initramfs: its root can be neither pivoted away from nor be an
/// overlay's upper folder, a tmpfs can.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
for module in $(cat /modules/order); do insmod /modules/$module || exit 1; done
mount -t tmpfs -o mode=755,size=90% tmpfs /newroot
for folder in lib lib64 usr etc gantry gantry-vm stage2 bin; do
  [ ! -e /$folder ] || mv /$folder /newroot
done
/newroot/bin/busybox umount /proc
exec /newroot/bin/busybox switch_root /newroot /stage2
"#;

const STAGE2: &str = r#"#!/bin/busybox sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin:/gantry HOME=/root
mkdir -p /proc /sys /dev /tmp /run /var/lib /var/log /root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
chmod 1777 /tmp
hostname gantry-vm
ip link set lo up
sh /gantry/command </dev/null
echo "gantry-vm ended with $?"
poweroff -f
"#;

/// A kernel with its modules, unpacked.
#[derive(Debug)]
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

/// Boots, runs a shell command line, shows its output.
pub(crate) fn shell(command: &str) -> Result<()> {
    let (_, code) = boot(Cpio::default(), command)?;
    if code != Some(0) {
        bail!("the command line in the VM ended with {code:?}");
    }
    Ok(())
}

/// The kernel tier on cgroup v2.
pub(crate) fn tests(programs: &Path, filter: Option<&str>) -> Result<Counts> {
    let mut cpio = Cpio::default();
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let mut script =
        format!("export {}=/gantry {}=vm RUST_BACKTRACE=1\nfailed=0\n", place::BIN_DIR, place::OUTER_NETNS);
    let words = kernel::libtest_args(filter).join(" ");
    for binary in kernel::binaries()? {
        add_program(&mut cpio, &binary.path, &format!("/gantry/{}", binary.name), scratch.path())?;
        // The netlink tests want a namespace that is not pid 1's.
        let line = if binary.name == "netlink" {
            format!("unshare -m -n sh -c 'ip link set lo up; /gantry/netlink {words}'")
        } else {
            format!("/gantry/{} {words}", binary.name)
        };
        script.push_str(&format!("{line} || failed=1\n"));
    }
    script.push_str("exit $failed\n");
    for program in ["gantry"].iter().chain(&BESIDE).chain(&IN_GO) {
        add_program(&mut cpio, &programs.join(program), &format!("/gantry/{program}"), scratch.path())?;
    }
    let registry = Path::new("/usr/bin/docker-registry");
    if !registry.is_file() {
        bail!("{} is missing: apt-get install docker-registry", registry.display());
    }
    add_program(&mut cpio, registry, "/usr/bin/docker-registry", scratch.path())?;
    let (mut counts, code) = boot(cpio, &script)?;
    if code != Some(0) && counts.failed == 0 {
        println!("the VM ended with {code:?}, without a failed test");
        counts.failed = 1;
    }
    Ok(counts)
}

/// A program without its debug information, and the libraries it names.
fn add_program(cpio: &mut Cpio, from: &Path, to: &str, scratch: &Path) -> Result<()> {
    let stripped = scratch.join(from.file_name().context("a program without a name")?);
    sh::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(from))?;
    cpio.copy(&stripped, to, 0o755)?;
    let listed = Command::new("ldd").arg(from).output().context("run ldd")?;
    // `not a dynamic executable` goes to stderr and ends with 1: then there is nothing to add.
    for word in
        String::from_utf8_lossy(&listed.stdout).split_whitespace().filter(|word| word.starts_with('/'))
    {
        cpio.copy(Path::new(word), word, 0o755)?;
    }
    Ok(())
}

/// Boots with what `cpio` holds already and runs `command`: its counts and its exit code.
fn boot(mut cpio: Cpio, command: &str) -> Result<(Counts, Option<i32>)> {
    let kernel = fetch_kernel()?;
    let busybox = Path::new("/bin/busybox");
    let bytes = std::fs::read(busybox).context("/bin/busybox: apt-get install busybox-static")?;
    cpio.file("/bin/busybox", 0o755, &bytes)?;
    for folder in ["/proc", "/sys", "/dev", "/newroot", "/lib64", "/usr"] {
        cpio.dir(folder)?;
    }
    cpio.file("/etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    cpio.file("/etc/group", 0o644, b"root:x:0:\n")?;
    cpio.file("/init", 0o755, INIT.as_bytes())?;
    cpio.file("/stage2", 0o755, STAGE2.as_bytes())?;
    cpio.file("/gantry/command", 0o644, command.as_bytes())?;
    cpio.file(place::VM_MARK, 0o644, b"")?;
    add_modules(&mut cpio, &kernel)?;

    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let initrd = scratch.path().join("initramfs");
    std::fs::write(&initrd, cpio.finish()?)?;
    let mut qemu = Command::new("timeout");
    qemu.args(["--kill-after=5", DEADLINE_SECONDS, "qemu-system-x86_64"])
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", MEMORY_MIB])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&initrd)
        .args(["-append", "console=ttyS0 quiet loglevel=3 panic=-1"]);
    let mut code = None;
    let counts = summary::watch(&mut qemu, &mut |line| {
        if let Some(text) = line.strip_prefix(END) {
            code = text.trim().parse().ok();
        }
    })?;
    Ok((counts, code))
}

/// The wanted modules and what they need, in an order in which they load.
fn add_modules(cpio: &mut Cpio, kernel: &Kernel) -> Result<()> {
    let list = std::fs::read_to_string(kernel.modules.join("modules.dep")).context("read modules.dep")?;
    let mut order: Vec<String> = Vec::new();
    for wanted in MODULES {
        let ending = format!("/{wanted}.ko");
        let line = list
            .lines()
            .find(|line| line.split(':').next().is_some_and(|path| path.ends_with(&ending)))
            .with_context(|| format!("the kernel has no module {wanted}"))?;
        // modules.dep lists what a module needs behind it, the deepest last.
        let (module, needs) = line.split_once(':').unwrap_or((line, ""));
        for path in needs.split_whitespace().rev().chain([module]) {
            if !order.iter().any(|known| known == path) {
                order.push(path.to_owned());
            }
        }
    }
    let mut names = String::new();
    for path in &order {
        let name = path.rsplit('/').next().unwrap_or(path);
        cpio.copy(&kernel.modules.join(path), &format!("/modules/{name}"), 0o644)?;
        names.push_str(name);
        names.push('\n');
    }
    cpio.file("/modules/order", 0o644, names.as_bytes())
}

/// The kernel from the cache, or downloaded into it.
fn fetch_kernel() -> Result<Kernel> {
    let cache = sh::cache_dir().join("vm");
    let folder = cache.join("kernel");
    if !folder.join("boot").is_dir() {
        std::fs::create_dir_all(&cache).with_context(|| format!("make {}", cache.display()))?;
        download_kernel(&cache, &folder).context("fetch linux-image-cloud-amd64")?;
    }
    let version = std::fs::read_dir(folder.join("lib/modules"))?
        .next()
        .context("the kernel package has no modules")??
        .file_name()
        .to_string_lossy()
        .into_owned();
    Ok(Kernel {
        image: folder.join("boot").join(format!("vmlinuz-{version}")),
        modules: folder.join("lib/modules").join(version),
    })
}

fn download_kernel(cache: &Path, folder: &Path) -> Result<()> {
    let depends = sh::output(Command::new("apt-cache").args(["depends", "linux-image-cloud-amd64"]))?;
    let depends = String::from_utf8_lossy(&depends).into_owned();
    let package = depends
        .split_whitespace()
        .find(|word| word.starts_with("linux-image-") && word.ends_with("-cloud-amd64") && word.len() > 26)
        .context("apt knows no linux-image-cloud-amd64: apt-get update")?;
    let scratch = tempfile::Builder::new().prefix("kernel-").tempdir_in(cache)?;
    sh::run(
        Command::new("apt-get")
            // The scratch folder is root's alone, so apt's own user could not write there.
            .args(["--quiet", "--option", "APT::Sandbox::User=root", "download", package])
            .current_dir(scratch.path()),
    )?;
    let archive = std::fs::read_dir(scratch.path())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "deb"))
        .context("apt-get download left no package")?;
    let tree = scratch.path().join("tree");
    sh::run(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&tree))?;
    let version = package.trim_start_matches("linux-image-");
    sh::run(Command::new("depmod").arg("--basedir").arg(&tree).arg(version))?;
    // Only a whole kernel gets the name that is looked for.
    std::fs::rename(&tree, folder).with_context(|| format!("move to {}", folder.display()))
}
