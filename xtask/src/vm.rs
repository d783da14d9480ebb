//! The small VM: Debian's cloud kernel under qemu (emulated: it needs no /dev/kvm), an initramfs
//! made on the spot, cgroup v2 as the only hierarchy, and where asked for a disk at /var that
//! outlives it; or systemd as init. Owns the boot and how it ends; never touches the host's network or disks. Called by
//! the tiers.

pub(crate) mod apparmor;
pub(crate) mod disk;
mod iscsi;
mod kernel_package;
mod nfs;
mod packages;
mod systemd;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gantry_tests::peers::Programs;
use gantry_tests::{criu, debian, place};

use self::disk::VmDisk;
use self::kernel_package::{Kernel, Release};
use crate::build::{BESIDE, IN_GO};
use crate::cpio::Cpio;
use crate::kernel;
use crate::sh;
use crate::side_by_side::{self, Job};
use crate::summary::{self, Counts};

const MODULES: [&str; 24] = [
    // The disk.
    "virtio_pci",
    "virtio_blk",
    // The card of a node.
    "virtio_net",
    // A disk that a test freezes.
    "loop",
    // One that never answers.
    "fuse",
    "overlay",
    "veth",
    "bridge",
    // Port mappings and masquerade.
    "nf_tables",
    "nf_conntrack_netlink",
    "nft_chain_nat",
    "nft_ct",
    "nft_fib_inet",
    "nft_hash",
    "nft_limit",
    "nft_masq",
    "nft_nat",
    "nft_numgen",
    "nft_redir",
    // By which criu looks at sockets.
    "tcp_diag",
    "udp_diag",
    "unix_diag",
    "netlink_diag",
    "af_packet_diag",
];
/// What the tests have.
const OF_TESTS: Hardware =
    Hardware { processors: 1, memory_mib: 3072, deadline_seconds: 1200, devices: Vec::new() };
/// Printed last by stage 2, with the exit code of the command.
const ENDED: &str = "gantry-vm ended with ";
/// Printed first by every init of ours.
const BEGUN: &str = "gantry-vm began";

/// Loads modules, then leaves the initramfs: its root can be neither pivoted away from nor be an
/// overlay's upper folder, a tmpfs can.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
echo "gantry-vm began"
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
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/gantry HOME=/root
mkdir -p /proc /sys /dev /tmp /run /var /root
ln -s usr/sbin /sbin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
chmod 1777 /tmp
hostname gantry-vm
ip link set lo up
if [ -b /dev/vda ]; then mount -t ext4 /dev/vda /var || exit 1; fi
mkdir -p /var/lib /var/log
sh /gantry/command </dev/null
echo "gantry-vm ended with $?"
. /gantry/end
"#;

/// What is booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VmKind {
    /// Busybox, and nobody but the tests.
    Small,
    /// systemd is init, and makes the pods' cgroups.
    Systemd,
    /// The same with cgroup v1, and the v2 hierarchy beside it: as Debian 10 and Ubuntu 20.04 are.
    Hybrid,
}

impl VmKind {
    /// Pods with user namespaces want 6.3 and newer; cgroup v1 wants its memory controller, which newer ones lack.
    fn kernel(self) -> Release {
        match self {
            VmKind::Small | VmKind::Systemd => Release::Backports,
            VmKind::Hybrid => Release::Stable,
        }
    }
}

/// What a machine is made of, beside its kernel.
#[derive(Debug, Clone)]
pub(crate) struct Hardware {
    pub(crate) processors: u8,
    pub(crate) memory_mib: u32,
    /// It is killed then.
    pub(crate) deadline_seconds: u64,
    /// qemu's words for what is plugged in: the first disk is mounted at `/var`.
    pub(crate) devices: Vec<String>,
}

/// How a boot comes to its end, once its command has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The machine is done with.
    Off,
    /// As pulling the plug: nothing is written back, nobody is told.
    Hard,
    /// As a distribution does: everybody is asked to end, then made to; the disk is unmounted.
    Clean,
}

impl End {
    fn script(self) -> &'static str {
        match self {
            End::Off => "poweroff -f",
            // The line above goes out by the serial port first.
            End::Hard => "sleep 1; echo b >/proc/sysrq-trigger",
            End::Clean => {
                "echo e >/proc/sysrq-trigger; sleep 3; echo i >/proc/sysrq-trigger; sleep 1\n\
                 sync; umount /var || mount -o remount,ro /var; reboot -f"
            }
        }
    }
}

/// Boots, runs a shell command line, shows its output.
pub(crate) fn shell(command: &str) -> Result<()> {
    let (_, code) = boot(Cpio::default(), command, VmKind::Small, None, End::Off)?;
    if code != Some(0) {
        bail!("the command line in the VM ended with {code:?}");
    }
    Ok(())
}

/// The kernel tier on cgroup v2.
pub(crate) fn tests(programs: &Path, filter: Option<&str>, machine: VmKind) -> Result<Counts> {
    let (mut cpio, binaries) = payload(&kernel::KERNEL, programs)?;
    add_criu(&mut cpio)?;
    if machine == VmKind::Small {
        add_small(&mut cpio)?;
    }
    match filter {
        Some(filter) => checked_boot(cpio, &script(&binaries, &[filter.to_owned()]), machine, None, End::Off),
        None => side_by_side::run(by_modules(programs, &cpio, &binaries, machine)?),
    }
}

/// The kernel tier, which another machine ran before, and the reboots beside it.
pub(crate) fn tests_and_reboots(programs: &Path) -> Result<Counts> {
    let (mut cpio, binaries) = payload(&kernel::KERNEL, programs)?;
    add_criu(&mut cpio)?;
    add_small(&mut cpio)?;
    let tests = by_modules(programs, &cpio, &binaries, VmKind::Small)?.into_iter().map(|job| {
        let repeated = move || {
            let counts = job()?;
            Ok(Counts { repeated: counts.passed, ..counts })
        };
        Box::new(repeated) as Job
    });
    // What takes three boots is begun first.
    let first = Box::new(|| reboots(programs)) as Job;
    side_by_side::run(std::iter::once(first).chain(tests).collect())
}

/// A boot for each group of modules.
fn by_modules<'a>(
    programs: &Path,
    cpio: &Cpio,
    binaries: &[String],
    machine: VmKind,
) -> Result<Vec<Job<'a>>> {
    let mut with: Vec<String> = binaries.to_vec();
    let split = kernel::binaries(&[kernel::MODULES_IN])?;
    let split = split.first().context("no kernel tests")?;
    // The netlink tests go with the first.
    let jobs = side_by_side::groups(&split.path, programs, 12)?.into_iter().map(|modules| {
        let (cpio, script) = (cpio.clone(), script(&with, &modules));
        // The tests that have no modules run once.
        with.retain(|name| name == kernel::MODULES_IN);
        Box::new(move || checked_boot(cpio, &script, machine, None, End::Off)) as Job
    });
    Ok(jobs.collect())
}

/// The CRI tier, but for the plugins' half of it: that is about networks alone, and builds with Go.
pub(crate) fn cri(programs: &Path, filter: Option<&str>, machine: VmKind) -> Result<Counts> {
    let (mut cpio, binaries) = payload(&kernel::CRI[..1], programs)?;
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    for (program, name) in [(Programs::suite()?, "cri"), (Programs::tour()?, "tour")] {
        add_program(&mut cpio, &program, &format!("/gantry/cache/go/bin/{name}"), scratch.path())?;
    }
    for package in debian::nginx_packages()? {
        let name = package.file_name().context("a package without a name")?.to_string_lossy();
        cpio.copy(&package, &format!("/gantry/cache/debs/{name}"), 0o644)?;
    }
    for program in ["/usr/bin/dpkg-deb", "/usr/bin/tar", "/usr/bin/ab"] {
        add_program(&mut cpio, Path::new(program), program, scratch.path())?;
    }
    let filters: Vec<String> = filter.into_iter().map(str::to_owned).collect();
    let script = format!("export GANTRY_CACHE=/gantry/cache\n{}", script(&binaries, &filters));
    checked_boot(cpio, &script, machine, None, End::Off)
}

/// The tier of failpoints, which looks for places in the source.
pub(crate) fn failpoints(programs: &Path, filter: Option<&str>, machine: VmKind) -> Result<Counts> {
    let (mut cpio, binaries) = payload(&kernel::FAILPOINTS, programs)?;
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    for program in ["gantry"].iter().chain(&BESIDE) {
        let wired = format!("{}/{program}", place::FAILPOINTS);
        add_program(&mut cpio, &programs.join(&wired), &format!("/gantry/{wired}"), scratch.path())?;
    }
    cpio.tree(&sh::root().join("shim"), "/gantry/sources/shim")?;
    let filters: Vec<String> = filter.into_iter().map(str::to_owned).collect();
    let script = format!("export {}=/gantry/sources\n{}", place::SOURCES, script(&binaries, &filters));
    checked_boot(cpio, &script, machine, None, End::Off)
}

/// Runs these binaries with these filters, of which one must fit; the netlink tests have no modules of
/// the kernel tests' names and run whole.
fn script(binaries: &[String], filters: &[String]) -> String {
    let mut script = String::from("failed=0\n");
    for name in binaries {
        let inside = format!("/gantry/{name}");
        let whole = name != kernel::MODULES_IN && filters.len() > 1;
        let words = kernel::words(name, Path::new(&inside), if whole { &[] } else { filters });
        let line = shell_words(&words);
        script.push_str(&format!("/gantry/xtask leakcheck-inside -- {line} || failed=1\n"));
    }
    script + "exit $failed\n"
}

/// Pods, a power cut, a look at what is left; then the same with a clean reboot.
pub(crate) fn reboots(programs: &Path) -> Result<Counts> {
    let (cpio, _) = payload(&kernel::REBOOT, programs)?;
    let disk = VmDisk::new()?;
    let half = |name: &str| format!("/gantry/reboot --test-threads=1 {name}::");
    let before = half("before");
    // The first half leaves pods behind on purpose; what the second one leaves is a leak.
    let after = format!("/gantry/xtask leakcheck-inside -- {}", half("after"));
    let mut counts = Counts::default();
    for (script, end) in
        [(before.clone(), End::Hard), (format!("{after} && {before}"), End::Clean), (after, End::Off)]
    {
        println!("--- a boot that ends {end:?}: {script}");
        counts += checked_boot(cpio.clone(), &script, VmKind::Small, Some(&disk), end)?;
        // What comes next would look for what was never made.
        if counts.failed > 0 {
            break;
        }
    }
    Ok(counts)
}

/// A boot whose every end but success is a failed test.
fn checked_boot(
    cpio: Cpio,
    script: &str,
    machine: VmKind,
    disk: Option<&VmDisk>,
    end: End,
) -> Result<Counts> {
    let vm = format!("export {}=/gantry {}=vm RUST_BACKTRACE=1\n", place::BIN_DIR, place::OUTER_NETNS);
    let (mut counts, code) = boot(cpio, &format!("{vm}{script}\n"), machine, disk, end)?;
    if code != Some(0) && counts.failed == 0 {
        println!("the VM ended with {code:?}, without a failed test");
        counts += Counts::failure(format!("the VM ended with {code:?}, without a failed test"));
    }
    Ok(counts)
}

/// The test binaries, whose names come beside, and all they need.
fn payload(targets: &[&str], programs: &Path) -> Result<(Cpio, Vec<String>)> {
    let mut cpio = Cpio::default();
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let mut add = |from: &Path, to: &str| add_program(&mut cpio, from, to, scratch.path());
    // This program checks for leaks in there, too.
    // By its pid: its file may have been built anew meanwhile.
    add(&PathBuf::from(format!("/proc/{}/exe", std::process::id())), "/gantry/xtask")?;
    let mut names = Vec::new();
    for binary in kernel::binaries(targets)? {
        add(&binary.path, &format!("/gantry/{}", binary.name))?;
        names.push(binary.name);
    }
    for program in ["gantry"].iter().chain(&BESIDE).chain(&IN_GO) {
        add(&programs.join(program), &format!("/gantry/{program}"))?;
    }
    // Before busybox's own in PATH: its `ip` knows neither paths of namespaces nor details, its `losetup` no long options.
    for program in
        ["/usr/bin/docker-registry", "/usr/sbin/nft", "/usr/sbin/ip", "/usr/sbin/losetup", "/usr/bin/nsenter"]
    {
        if !Path::new(program).is_file() {
            bail!("{}", gantry_needs::remedy(program));
        }
        add(Path::new(program), program)?;
    }
    Ok((cpio, names))
}

/// Servers of volumes and their clients, and AppArmor where one test finds it.
fn add_small(cpio: &mut Cpio) -> Result<()> {
    nfs::add(cpio)?;
    iscsi::add(cpio)?;
    apparmor::add(cpio, "/gantry/apparmor")
}

/// A criu that finds its libraries, out of the way of those who want a machine without.
fn add_criu(cpio: &mut Cpio) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let tree = scratch.path().join("tree");
    std::fs::create_dir(&tree)?;
    debian::criu_tree(&tree)?;
    cpio.tree(&tree, criu::REAL)?;
    let library = |folder: &str| format!("{}/{folder}/x86_64-linux-gnu", criu::REAL);
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH={}:{} exec {}/usr/sbin/criu \"$@\"\n",
        library("usr/lib"),
        library("lib"),
        criu::REAL
    );
    cpio.file(&format!("{}/criu", criu::REAL), 0o755, script.as_bytes())?;
    // There is no iptables in there.
    cpio.file("/etc/criu/default.conf", 0o644, b"network-lock nftables\n")?;
    // By which criu packs a tmpfs; busybox's has not all the options.
    add_program(cpio, Path::new("/usr/bin/tar"), &format!("{}/tar", criu::REAL), scratch.path())
}

/// A command line for a shell, each word quoted.
pub(crate) fn shell_words(words: &[OsString]) -> String {
    let quoted = |word: &OsString| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"));
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A program without its debug information, and the libraries it names.
pub(crate) fn add_program(cpio: &mut Cpio, from: &Path, to: &str, scratch: &Path) -> Result<()> {
    let stripped = scratch.join(from.file_name().context("a program without a name")?);
    sh::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(from))?;
    cpio.copy(&stripped, to, 0o755)?;
    add_libraries(cpio, from)
}

/// The libraries that a program names.
pub(crate) fn add_libraries(cpio: &mut Cpio, from: &Path) -> Result<()> {
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
fn boot(
    cpio: Cpio,
    command: &str,
    machine: VmKind,
    disk: Option<&VmDisk>,
    end: End,
) -> Result<(Counts, Option<i32>)> {
    let devices = disk.iter().flat_map(|disk| disk.arguments()).collect();
    let hardware = Hardware { devices, ..OF_TESTS };
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let mut qemu = machine_of(cpio, command, machine, &hardware, end, scratch.path())?;
    watch(&mut qemu)
}

/// Runs a machine and shows its serial line: the counts, and what its command line ended with. One that ends before the
/// first program in it is started once more: its kernel sometimes panics as it boots, in the emulator alone.
pub(crate) fn watch(machine: &mut Command) -> Result<(Counts, Option<i32>)> {
    let mut again = true;
    loop {
        let (mut begun, mut code) = (false, None);
        let counts = summary::watch(machine, &mut |line| {
            begun |= line.ends_with(BEGUN);
            code = ended(line).or(code);
        })?;
        if begun || !again {
            return Ok((counts, code));
        }
        again = false;
        println!("the VM ended before any program ran in it; it is started once more");
    }
}

/// A machine as a node, which runs a command line with what `cpio` holds. Its initramfs is in `scratch`; its serial line is
/// the command's own input and output.
pub(crate) fn node(
    cpio: Cpio,
    command: &str,
    machine: VmKind,
    hardware: &Hardware,
    scratch: &Path,
) -> Result<Command> {
    machine_of(cpio, command, machine, hardware, End::Off, scratch)
}

/// What the command line ended with, when the serial line says so here.
fn ended(line: &str) -> Option<i32> {
    line.strip_prefix(ENDED)?.trim().parse().ok()
}

fn machine_of(
    mut cpio: Cpio,
    command: &str,
    machine: VmKind,
    hardware: &Hardware,
    end: End,
    scratch: &Path,
) -> Result<Command> {
    let kernel = kernel_package::fetch(machine.kernel())?;
    add_base(&mut cpio)?;
    let append = match machine {
        VmKind::Small => {
            cpio.file("/init", 0o755, INIT.as_bytes())?;
            cpio.file("/stage2", 0o755, STAGE2.as_bytes())?;
            ""
        }
        VmKind::Systemd | VmKind::Hybrid => {
            cpio.file("/init", 0o755, systemd::INIT.as_bytes())?;
            systemd::add(&mut cpio)?;
            // Upstream's node suite reads it.
            cpio.copy(&kernel.config, &format!("/usr/lib/kernel/config-{}", kernel.version), 0o644)?;
            if machine == VmKind::Hybrid { systemd::APPEND_HYBRID } else { systemd::APPEND }
        }
    };
    cpio.file("/gantry/command", 0o644, command.as_bytes())?;
    cpio.file("/gantry/end", 0o644, end.script().as_bytes())?;
    cpio.file(place::VM_MARK, 0o644, b"")?;
    let of_kind = match machine {
        VmKind::Small => [&nfs::MODULES[..], &iscsi::MODULES].concat(),
        VmKind::Systemd | VmKind::Hybrid => Vec::new(),
    };
    add_modules(&mut cpio, &kernel, &of_kind)?;
    let initrd = scratch.join("initramfs");
    std::fs::write(&initrd, cpio.finish()?)?;
    Ok(qemu(&kernel, &initrd, append, hardware))
}

/// busybox, folders, and the files that programs expect.
fn add_base(cpio: &mut Cpio) -> Result<()> {
    let busybox = Path::new("/bin/busybox");
    let bytes = std::fs::read(busybox).with_context(|| gantry_needs::remedy("/bin/busybox"))?;
    cpio.file("/bin/busybox", 0o755, &bytes)?;
    for folder in ["/proc", "/sys", "/dev", "/newroot", "/lib64", "/usr"] {
        cpio.dir(folder)?;
    }
    cpio.file("/etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    cpio.file("/etc/group", 0o644, b"root:x:0:\n")?;
    cpio.file("/etc/hosts", 0o644, b"127.0.0.1 localhost\n")?;
    cpio.file("/etc/resolv.conf", 0o644, b"nameserver 127.0.0.1\n")?;
    // Pulls over TLS want a machine with authorities.
    let authorities = Path::new("/etc/ssl/certs/ca-certificates.crt");
    if !authorities.is_file() {
        bail!("{}", gantry_needs::remedy("/etc/ssl/certs/ca-certificates.crt"));
    }
    cpio.copy(authorities, "/etc/ssl/certs/ca-certificates.crt", 0o644)
}

fn qemu(kernel: &Kernel, initrd: &Path, append: &str, hardware: &Hardware) -> Command {
    let mut qemu = Command::new("setpriv");
    // cx16=off: after a cmpxchg16b qemu 7.2's flags are wrong, and the allocator of Linux 6.12 goes by them into a
    // double fault. no_timer_check: on a busy host the kernel's look at its timer comes too late, and it would not boot.
    // norandmaps: qemu 7.2 translates a program's code anew for each address that it is loaded at, which was a third
    // of the tests' time.
    qemu.args(["--pdeathsig", "TERM", "--", "timeout"])
        .args(["--kill-after=5", &hardware.deadline_seconds.to_string(), "qemu-system-x86_64"])
        .args(["-accel", "tcg", "-cpu", "max,cx16=off"])
        .args(["-smp", &hardware.processors.to_string(), "-m", &hardware.memory_mib.to_string()])
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initrd)
        .arg("-append")
        .arg(format!("console=ttyS0 quiet loglevel=3 panic=-1 no_timer_check norandmaps{append}"));
    qemu.args(&hardware.devices);
    qemu
}

/// The wanted modules and what they need, in an order in which they load.
fn add_modules(cpio: &mut Cpio, kernel: &Kernel, of_kind: &[&str]) -> Result<()> {
    let list = std::fs::read_to_string(kernel.modules.join("modules.dep")).context("read modules.dep")?;
    let builtin = kernel.modules.join("modules.builtin");
    let builtin = std::fs::read_to_string(&builtin).with_context(|| format!("read {}", builtin.display()))?;
    let mut order: Vec<String> = Vec::new();
    for wanted in MODULES.iter().chain(of_kind) {
        let ending = format!("/{wanted}.ko");
        if builtin.lines().any(|path| path.ends_with(&ending)) {
            continue;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Times that a machine was started whose lines, in order, are these at its first and its second start.
    fn starts(lines: [&str; 2]) -> (u64, Option<i32>) {
        let folder = tempfile::tempdir().unwrap();
        let starts = folder.path().join("starts");
        let script = "echo >>\"$0\"; [ \"$(wc -l <\"$0\")\" = 1 ] && { echo \"$1\"; exit 1; }; echo \"$2\"";
        let mut machine = Command::new("sh");
        machine.args(["-c", script]).arg(&starts).args(lines);
        let (_, code) = watch(&mut machine).unwrap();
        (std::fs::metadata(&starts).unwrap().len(), code)
    }

    #[test]
    fn a_machine_whose_kernel_panics_as_it_boots_is_started_once_more() {
        let whole = "gantry-vm began\ngantry-vm ended with 0";
        assert_eq!(starts(["Kernel panic - not syncing", whole]), (2, Some(0)));
        assert_eq!(starts(["Kernel panic - not syncing", "Kernel panic - not syncing"]), (2, None));
        assert_eq!(starts(["gantry-vm began\nKernel panic - not syncing", whole]), (1, None));
    }
}
