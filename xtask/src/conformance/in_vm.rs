//! The node suite in a VM: systemd, cgroup v2, disks that no build shares, and swap. What is on its disks, what its
//! service runs, and what it leaves. Owns qemu, which ends with it; how the suite is called there is [`super::call`]'s.
//! Called by [`super::once`].
//!
//! ```text
//! /dev/vda  /var      programs, images, the node's own state
//! /dev/vdb  /results  the specs to run, then report and logs
//! /dev/vdc            swap
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gantry_tests::cluster::{images, isolation, programs};
use gantry_tests::peers::Programs;
use gantry_tests::place;

use super::call::{Called, LONGEST};
use super::suites::Choice;
use crate::cpio::Cpio;
use crate::vm::{self, Hardware, VmKind, apparmor, disk};
use crate::{build, sh};

/// Of `/var`: eviction specs fill 10 GiB and 200,000 inodes of it.
const VAR_BYTES: u64 = 20 << 30;
const RESULT_BYTES: u64 = 4 << 30;
/// Beside what the suite itself may take: boot, end, and what the emulator costs there.
const MORE: u64 = 20;

/// Of the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct MachineSpec {
    /// In MiB. Eviction and swap specs fill what is left of it.
    pub(super) memory: u32,
    /// In MiB.
    pub(super) swap: u64,
    pub(super) processors: u8,
    /// 0: the machine has none to tell of.
    pub(super) numa: u8,
    /// Of a core.
    pub(super) threads: u8,
    /// Containers are confined by AppArmor.
    pub(super) apparmor: bool,
}

impl MachineSpec {
    /// qemu's words for the NUMA nodes.
    ///
    /// # Errors
    /// When processors cannot be shared so that each node has whole cores.
    fn numa_words(self) -> Result<Vec<String>> {
        let Self { memory, processors, numa, threads, .. } = self;
        if numa == 0 {
            return Ok(Vec::new());
        }
        let each = processors / numa;
        if each < threads || each % threads != 0 || each * numa != processors {
            let least = u16::from(numa) * u16::from(threads);
            bail!("--numa {numa} --threads {threads} want --processors that are a multiple of {least}");
        }
        // The later -smp is the one that counts.
        let smp = format!("{processors},sockets={numa},cores={},threads={threads}", each / threads);
        let mut words = vec!["-smp".to_owned(), smp];
        for node in 0..numa {
            let size = memory / u32::from(numa);
            let (first, last) = (node * each, node * each + each - 1);
            words.extend(["-object".to_owned(), format!("memory-backend-ram,id=m{node},size={size}M")]);
            words.extend([
                "-numa".to_owned(),
                format!("node,nodeid={node},memdev=m{node},cpus={first}-{last}"),
            ]);
        }
        Ok(words)
    }
}

/// Where programs and images are.
const HOME: &str = "/var/suite";
/// Where the suite finds its specs and leaves its report.
const RESULTS: &str = "/results";

/// We are root.
const SUDO: &[u8] = b"#!/bin/sh\nexec \"$@\"\n";

/// Upstream's node suite goes by the node's name: only of some it believes that they have AppArmor. The parser keeps what
/// it has compiled.
const OF_APPARMOR: &str = "hostname gantry-ubuntu-vm; mkdir -p /var/cache/apparmor";

/// What the machine's service runs. The suite has an API server in its process, which must outlive a lack of memory.
const SCRIPT: &str = r#"exec 2>&1
mkdir -p RESULTS
mount -t ext4 /dev/vda /var && mount -t ext4 /dev/vdb RESULTS || exit 1
CONFINE
mkdir -p /var/lib /var/log /var/tmp
if [ -b /dev/vdc ]; then mkswap /dev/vdc >/dev/null && swapon /dev/vdc || exit 1; fi
echo -999 >/proc/self/oom_score_adj
unset SYSTEMD
export PLACE=yes CACHE=HOME/cache BIN_DIR=HOME/bin TMPDIR=/var/tmp GANTRY_CONFIG=
tail -n +1 -F RESULTS/suite.log 2>/dev/null | awk '/^(• \[|Ran |\[(FAIL|PANICKED|TIMEDOUT)\])/ { print; fflush() }' &
while sleep 30; do
  { date; head -n 5 /proc/meminfo; grep Swap /proc/meminfo; cat /proc/loadavg; df -P /var; df -iP /var; } >>RESULTS/vitals.log
done &
HOME/bin/xtask conformance-inside WORDS
ended=$?
dmesg >RESULTS/dmesg.log
journalctl --no-pager >RESULTS/journal.log
sync; umount RESULTS || mount -o remount,ro RESULTS
exit $ended
"#;

/// Boots the machine, has the suite run in it, and takes what it left into the run's folder.
///
/// # Errors
/// When a program is missing, the machine does not come up or does not end, or something around the specs failed. What it
/// left is in the folder then, too.
pub(super) fn run(called: &Called, choice: &Choice, own: &Path, machine: MachineSpec) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("gantry-vm-").tempdir()?;
    let at = |name: &str| scratch.path().join(name);
    let mut cpio = Cpio::default();
    for name in ["var", "given"] {
        fs::create_dir(at(name)).with_context(|| format!("make {}", at(name).display()))?;
    }
    fill(own, &at("var/suite"), &mut cpio)?;
    tools(&mut cpio, scratch.path())?;
    if machine.apparmor {
        apparmor::add(&mut cpio, "")?;
    }
    choice.write(&at("given"))?;
    let (var, results) = (at("var.img"), at("results.img"));
    disk::ext4_with(&at("var"), &var, VAR_BYTES, &[])?;
    disk::ext4_with(&at("given"), &results, RESULT_BYTES, &[])?;
    fs::remove_dir_all(at("var")).context("remove what is on the disk now")?;
    let mut devices: Vec<String> = disk::words("var", &var).into_iter().collect();
    devices.extend(disk::words("results", &results));
    if machine.swap > 0 {
        disk::sparse(&at("swap.img"), machine.swap << 20)?;
        devices.extend(disk::words("swap", &at("swap.img")));
    }
    devices.extend(machine.numa_words()?);
    let minutes = called.minutes.unwrap_or(LONGEST) + MORE;
    let hardware = Hardware {
        processors: machine.processors,
        memory_mib: machine.memory,
        deadline_seconds: minutes * 60,
        devices,
    };
    let mut qemu =
        vm::node(cpio, &script(called, machine.apparmor), VmKind::Systemd, &hardware, scratch.path())?;
    let ran = vm::watch(&mut qemu);
    let read = disk::read(&results, &called.out);
    let (_, code) = ran?;
    read?;
    match code {
        Some(0) => Ok(()),
        Some(code) => bail!("the suite's call in the VM ended with {code}"),
        None => bail!("the VM went before the suite's call ended"),
    }
}

fn script(called: &Called, apparmor: bool) -> String {
    let there = Called { out: RESULTS.into(), in_vm: true, ..called.clone() };
    let words = vm::shell_words(&there.words());
    // The words last: they may hold any of the others.
    [
        ("CONFINE", if apparmor { OF_APPARMOR } else { "" }),
        ("RESULTS", RESULTS),
        ("SYSTEMD", place::SYSTEMD),
        ("PLACE", isolation::MARK),
        ("BIN_DIR", place::BIN_DIR),
        ("CACHE", "GANTRY_CACHE"),
        ("HOME", HOME),
        ("WORDS", &words),
    ]
    .into_iter()
    .fold(SCRIPT.to_owned(), |script, (name, value)| script.replace(name, value))
}

/// The suite, both kubelets and runtimes, and the images, where the harness looks for them.
fn fill(own: &Path, home: &Path, cpio: &mut Cpio) -> Result<()> {
    let (bin, peers) = (home.join("bin"), Programs::built()?);
    let cache = home.join("cache");
    let go = cache.join("go");
    for folder in [&bin, &go.join("kubernetes")] {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    // By its pid: its file may have been built anew meanwhile.
    let running = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    let mut files = vec![(running, bin.join("xtask"))];
    files.extend(["gantry"].iter().chain(&build::BESIDE).map(|name| (own.join(name), bin.join(name))));
    for (from, to) in files {
        sh::run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&to).arg(&from))?;
        vm::add_libraries(cpio, &from)?;
    }
    for name in ["e2e_node.test", "ginkgo", "kubelet"] {
        let from = programs::path(name)?;
        let to = go.join("kubernetes").join(name);
        fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
    }
    copy(peers.folder(), &go.join("bin"))?;
    vm::add_libraries(cpio, &peers.path("runc"))?;
    copy(&images::store()?, &cache.join("images/store"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    }
    sh::run(Command::new("cp").args(["--archive", "--reflink=auto"]).args([from, to]))
}

/// What the harness and the suite call. Busybox's env has no `--chdir`, its ip no details.
fn tools(cpio: &mut Cpio, scratch: &Path) -> Result<()> {
    for program in [
        "/usr/bin/docker-registry",
        "/usr/bin/env",
        "/usr/bin/lscpu",
        "/usr/bin/nsenter",
        "/usr/sbin/ip",
        "/usr/sbin/nft",
    ] {
        if !Path::new(program).is_file() {
            bail!("{}", gantry_needs::remedy(program));
        }
        vm::add_program(cpio, Path::new(program), program, scratch)?;
    }
    cpio.file("/usr/bin/sudo", 0o755, SUDO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{KubeletName, RuntimeName};
    use crate::conformance::Name;

    #[test]
    fn the_machine_is_told_where_all_is_and_how_the_suite_is_called() {
        let called = Called {
            suite: Name::Node,
            out: "/elsewhere".into(),
            runtime: RuntimeName::Gantry,
            kubelet: KubeletName::Upstream,
            procs: 1,
            serial: true,
            minutes: Some(30),
            disk: None,
            in_vm: false,
            flags: vec!["--it's=HOME".into()],
        };
        let script = script(&called, false);
        let line = "/var/suite/bin/xtask conformance-inside 'node' '--out' '/results' '--runtime' 'gantry' \
                    '--kubelet' 'upstream' '--procs' '1' '--serial' '--minutes' '30' '--in-vm' '--' \
                    '--it'\\''s=HOME'";
        assert!(script.lines().any(|found| found == line), "{script}");
        let environment = "export GANTRY_CLUSTER_PLACE=yes GANTRY_CACHE=/var/suite/cache \
                           GANTRY_BIN_DIR=/var/suite/bin TMPDIR=/var/tmp GANTRY_CONFIG=";
        assert!(script.lines().any(|found| found == environment), "{script}");
        assert!(script.lines().any(|found| found == "unset GANTRY_TEST_SYSTEMD"), "{script}");
        assert!(!script.contains("hostname") && !script.contains("CONFINE"), "{script}");
        assert!(super::script(&called, true).lines().any(|found| found == OF_APPARMOR));
    }

    #[test]
    fn numa_nodes_are_sockets_with_whole_cores() {
        let machine = |processors, numa, threads| MachineSpec {
            memory: 4096,
            swap: 0,
            processors,
            numa,
            threads,
            apparmor: false,
        };
        let first = |machine: MachineSpec| machine.numa_words().map(|words| words.get(1).cloned());
        assert_eq!(first(machine(2, 0, 2)).unwrap(), None);
        assert_eq!(first(machine(8, 2, 2)).unwrap().unwrap(), "8,sockets=2,cores=2,threads=2");
        assert_eq!(first(machine(8, 2, 1)).unwrap().unwrap(), "8,sockets=2,cores=4,threads=1");
        for (processors, numa, threads, least) in [(6, 2, 2, 4), (7, 2, 1, 2), (2, 2, 2, 4)] {
            let told = first(machine(processors, numa, threads)).unwrap_err().to_string();
            assert!(told.ends_with(&format!("that are a multiple of {least}")), "{told}");
        }
    }
}
