//! The known ways out of a container, each by its number, as far as pods are needed to try them. Each was
//! seen red with its guard taken out: docs/threat-model.md says which, and names those that are tried in
//! other tiers (CVE-2020-15157: `shim/image/src/image/tests/network.rs`).

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::image::{Image, Layer};
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::{leakcheck, place, proc};
use rustix::fs::{CWD, FileType, Mode, OFlags, SealFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::images::{Ready, facts, ready};

fn mount(container: &str, host: &Path) -> cri::Mount {
    let (container_path, host_path) = (container.to_owned(), host.to_string_lossy().into_owned());
    cri::Mount { container_path, host_path, ..Default::default() }
}

/// Runs a container to its end and returns its log.
fn log_of(ready: &Ready, pod: &Pod, config: &cri::ContainerConfig) -> Result<String> {
    let id = pod.start(config)?;
    let status = pod::await_exit(&ready.node, &id)?;
    let log = pod.log(&config.metadata.clone().unwrap_or_default().name)?;
    anyhow::ensure!(status.exit_code == 0, "ended with {}: {log}", status.exit_code);
    Ok(log)
}

/// The web image with one more layer, pulled.
fn push_and_pull(ready: &Ready, name: &str, layer: Layer) -> Result<String> {
    let mut image: Image = web_image()?;
    image.layers.push(layer);
    let reference = ready.registry.push(name, "v1", &image.build()?)?;
    ready.node.pull(&reference)?;
    Ok(reference)
}

/// `/proc/self/exe` of a process that is still the runtime's.
#[test]
fn cve_2019_5736_neither_monitor_nor_pause_can_be_written_by_a_container() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "exe")?;
    let config = pod::container_config("exe", &ready.image, &["/proc/self/exe"]);
    let programs = place::bin_dir()?;
    let read = |name: &str| std::fs::read(programs.join(name)).with_context(|| name.to_owned());
    let before = (read("gantry")?, read("gantry-monitor")?);
    // Whether it starts is the runtime's choice; that the programs are unharmed is not.
    if let Ok(id) = pod.start(&config) {
        pod::await_exit(&ready.node, &id)?;
    }
    assert!(before == (read("gantry")?, read("gantry-monitor")?), "a container changed the programs");
    let all = proc::all()?;
    let monitor = all.iter().find(|process| process.name.starts_with("gantry-monitor")).context("none")?;
    for process in proc::children(monitor.pid)?.iter().chain([monitor]) {
        // What a descriptor that is kept until nobody runs the file any more could be used for.
        let exe = std::fs::File::open(proc::folder(process.pid).join("exe"))?;
        let seals = rustix::fs::fcntl_get_seals(&exe).with_context(|| format!("{process:?}"))?;
        let wanted = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        assert!(seals.contains(wanted), "{process:?}: {seals:?}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// A descriptor of the node's root that slipped through as the working folder, of a start or an exec.
#[test]
fn cve_2024_21626_a_descriptor_of_the_nodes_is_neither_open_nor_a_working_folder() -> Result<()> {
    let mut ready = ready()?;
    // What a service manager or a shell may leave open in the runtime: no close-on-exec.
    let leaked = rustix::fs::open("/", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    ready.node.restart()?;
    let name = format!("/proc/self/fd/{}", leaked.as_raw_fd());
    let own = proc::folder(ready.node.pid()?.as_raw_nonzero().get()).join("fd");
    assert!(own.join(leaked.as_raw_fd().to_string()).exists(), "the runtime has not inherited it");
    drop(leaked);

    let pod = Pod::run(&ready.node, "leak")?;
    let mut config = pod::container_config("id", &ready.image, &["/workload", "id"]);
    let inside = facts(&log_of(&ready, &pod, &config)?);
    assert_eq!(inside.get("fds").map(String::as_str), Some("0 1 2"));
    let numbers = (3..=12).map(|number| format!("/proc/self/fd/{number}"));
    for (number, folder) in numbers.chain([name.clone()]).enumerate() {
        config.working_dir.clone_from(&folder);
        config.metadata.get_or_insert_default().attempt = u32::try_from(number)? + 1;
        assert!(pod.start(&config).is_err(), "started in {folder}");
    }
    // An exec is in the container's working folder, which the container may replace.
    let script = format!("cd /; rmdir /work; ln -s {name} /work; echo linked; exec /workload sleep 600");
    let mut config = pod::container_config("link", &ready.image, &["/bin/sh", "-c", &script]);
    config.working_dir = "/work".into();
    let container_id = pod.start(&config)?;
    poll("the link to stand", Duration::from_secs(20), || match pod.log("link") {
        Ok(log) if log == "linked\n" => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    let cmd = ["/workload", "id"].map(str::to_owned).to_vec();
    let request = cri::ExecSyncRequest { container_id, cmd, timeout: 20 };
    let error = ready.node.cri().exec_sync(request).expect_err("an exec in a folder of the node");
    assert!(error.message().contains("working folder"), "{error:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// Another file in the place of /dev/null, which masks paths.
#[test]
fn cve_2025_31133_what_masks_a_path_is_the_null_device_itself() -> Result<()> {
    let ready = ready()?;
    let layer = Layer::default().dir("dev", 0o755).symlink("dev/null", "/proc/sys/kernel/hostname");
    let image = push_and_pull(&ready, "demo/null", layer)?;
    let before = ready.node.snapshot()?;
    let pod = Pod::run(&ready.node, "mask")?;
    let script = "stat -c %t:%T /dev/null /proc/version; cat /proc/version | wc -c";
    let mut config = pod::container_config("image", &image, &["/bin/sh", "-c", script]);
    pod::with_security(&mut config, |security| security.masked_paths = vec!["/proc/version".into()]);
    assert_eq!(log_of(&ready, &pod, &config)?, "1:3\n1:3\n0\n");

    let fake = ready.node.roots().path("fake");
    std::fs::write(&fake, "a container's own")?;
    config.metadata.get_or_insert_default().name = "mounted".into();
    config.mounts.push(mount("/dev/null", &fake));
    let error = pod.start(&config).expect_err("started with a file for a null device");
    assert!(format!("{error:#}").contains("is not the null device"), "{error:#}");
    std::fs::remove_file(&fake)?;
    pod.remove()?;
    ready.node.assert_clean(&before)
}

/// A link at the name of the terminal that becomes /dev/console: it would be a copy of a file of /proc from
/// before that was made read-only.
#[test]
fn cve_2025_52565_the_console_is_the_terminal_and_not_what_stands_at_its_name() -> Result<()> {
    let ready = ready()?;
    let trap = ready.node.roots().path("trap");
    std::fs::create_dir_all(trap.join("pts"))?;
    // The kernel makes the terminal in the devpts beside this node; its name says the folder above.
    let device = rustix::fs::makedev(5, 2);
    rustix::fs::mknodat(
        CWD,
        trap.join("ptmx"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        device,
    )?;
    for number in 0..8 {
        std::os::unix::fs::symlink("/proc/sys/kernel/hostname", trap.join(number.to_string()))?;
    }
    rustix::mount::mount("none", trap.join("pts"), "devpts", MountFlags::empty(), c"newinstance")?;
    let ran = console_of(&ready, &trap);
    rustix::mount::unmount(trap.join("pts"), UnmountFlags::DETACH)?;
    std::fs::remove_dir_all(&trap)?;
    // Major 136: a terminal of devpts.
    assert!(ran?.starts_with("88:"), "/dev/console is no terminal");
    ready.node.assert_clean(&ready.before)
}

fn console_of(ready: &Ready, trap: &Path) -> Result<String> {
    let pod = Pod::run(&ready.node, "console")?;
    let mut config =
        pod::container_config("main", &ready.image, &["/bin/stat", "-L", "-c", "%t:%T", "/dev/console"]);
    config.tty = true;
    config.mounts.push(mount("/dev/pts", trap));
    let log = log_of(ready, &pod, &config);
    pod.remove()?;
    log
}

/// Mounts that would catch what a runtime writes to /proc for the container's process.
#[test]
fn cve_2025_52881_nothing_is_mounted_inside_proc() -> Result<()> {
    let ready = ready()?;
    let image = push_and_pull(&ready, "demo/trap", Layer::default().symlink("trap", "/proc"))?;
    let catch = ready.node.roots().path("catch");
    std::fs::create_dir_all(catch.join("self"))?;
    let file = catch.join("self/oom_score_adj");
    std::fs::write(&file, "nothing")?;
    let before = ready.node.snapshot()?;
    let pod = Pod::run(&ready.node, "proc")?;
    let mut config = pod::container_config("main", &image, &["/workload", "sleep", "600"]);
    for (attempt, (place, source, why)) in [
        ("/proc", &catch, "not of type proc"),
        ("/trap", &catch, "not of type proc"),
        ("/proc/self/oom_score_adj", &file, "inside /proc"),
        ("/proc/1/oom_score_adj", &file, "inside /proc"),
        ("/trap/sys/kernel/hostname", &file, "inside /proc"),
        ("/proc/sys", &catch, "inside /proc"),
    ]
    .into_iter()
    .enumerate()
    {
        config.metadata.get_or_insert_default().attempt = u32::try_from(attempt)?;
        config.mounts = vec![mount(place, source)];
        let started = pod.start(&config);
        assert_eq!(std::fs::read_to_string(&file)?, "nothing", "{place}: the runtime wrote to it");
        let error = format!("{:#}", started.err().with_context(|| format!("{place} is mounted on"))?);
        assert!(error.contains("cannot be mounted because it is") && error.contains(why), "{place}: {error}");
    }
    // What lxcfs shows its containers in the place of the node's.
    let script = ["/bin/cat", "/proc/meminfo"];
    let mut config = pod::container_config("emulated", &image, &script);
    config.mounts = vec![mount("/proc/meminfo", &file)];
    assert_eq!(log_of(&ready, &pod, &config)?, "nothing");
    std::fs::remove_dir_all(&catch)?;
    pod.remove()?;
    ready.node.assert_clean(&before)
}

/// The peak of the runtime's memory, in KiB.
fn peak(ready: &Ready) -> Result<u64> {
    let status = proc::folder(ready.node.pid()?.as_raw_nonzero().get()).join("status");
    let status = std::fs::read_to_string(status)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Output without end in the runtime's memory.
#[test]
fn cve_2022_31030_what_an_exec_writes_does_not_fill_the_runtimes_memory() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "flood")?;
    let id = pod.start(&pod::container_config("main", &ready.image, &["/workload", "sleep", "600"]))?;
    let before = peak(&ready)?;
    let script = "head -c 402653184 /dev/zero && touch /tmp/all";
    let cmd = ["sh", "-c", script].map(str::to_owned).to_vec();
    let request = cri::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 0 };
    // 16 MiB of output and its frame are more than a client takes: either way is an answer.
    if let Ok(answer) = ready.node.cri().exec_sync(request) {
        assert!(answer.stdout.len() <= 16 << 20, "{} bytes", answer.stdout.len());
    }
    let rise = peak(&ready)?.saturating_sub(before);
    assert!(rise < 192 << 10, "the runtime grew by {rise} KiB");
    // All of it was read: the command came to its end.
    let cmd = ["test", "-e", "/tmp/all"].map(str::to_owned).to_vec();
    let request = cri::ExecSyncRequest { container_id: id, cmd, timeout: 20 };
    assert_eq!(ready.node.cri().exec_sync(request)?.exit_code, 0);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// How many forks the limit of a cgroup has refused: kernels differ in whether they count at the limit or at
/// whoever forked (cgroup-v2.rst, pids.events). How many processes there are says nothing: a bomb whose forks
/// are refused loses some and makes others.
fn refused_forks(ready: &Ready, limited: &Path) -> Result<u64> {
    let mut refused = 0;
    let folders = leakcheck::tagged_cgroups(ready.node.roots().tag())?;
    for folder in folders.iter().filter(|folder| folder.starts_with(limited)) {
        let Ok(events) = std::fs::read_to_string(folder.join("pids.events")) else { continue };
        let counts = events.lines().filter_map(|line| line.strip_prefix("max "));
        refused += counts.filter_map(|count| count.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(refused)
}

#[test]
fn a_fork_bomb_fills_its_pods_limit_and_nothing_else() -> Result<()> {
    let ready = ready()?;
    let steps = [ready.node.roots().tag(), "bomb", "pod"];
    let mut config = pod::sandbox_config(&ready.node, "bomb");
    config.linux.get_or_insert_default().cgroup_parent = place::cgroup_parent(&steps);
    let pod = Pod::run_config(&ready.node, config)?;
    let neighbour = Pod::run(&ready.node, "neighbour")?;
    let calm =
        neighbour.start(&pod::container_config("calm", &ready.image, &["/workload", "sleep", "600"]))?;
    // What a kubelet with podPidsLimit writes into the cgroup that it has made.
    let folders = leakcheck::tagged_cgroups(ready.node.roots().tag())?;
    let path = place::cgroup(&steps);
    let given: Vec<_> = folders.iter().filter(|folder| folder.to_string_lossy().ends_with(&path)).collect();
    let limited =
        given.iter().find(|folder| folder.join("pids.max").exists()).context("no pids controller")?;
    std::fs::write(limited.join("pids.max"), "64")?;
    // One fork of the first process, while there is room: a shell whose own fork is refused ends.
    let script = "bomb() { bomb | bomb & }; (bomb) & exec /workload sleep 600";
    let id = pod.start(&pod::container_config("main", &ready.image, &["/bin/sh", "-c", script]))?;
    poll("the bomb to reach the limit", Duration::from_secs(60), || match refused_forks(&ready, limited) {
        Ok(0) => Err("no fork was refused".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{error:#}")),
    })?;
    let cmd = vec!["/bin/true".to_owned()];
    let request = cri::ExecSyncRequest { container_id: calm, cmd, timeout: 60 };
    assert_eq!(ready.node.cri().exec_sync(request)?.exit_code, 0, "a neighbour has no processes left");
    ready.node.cri().stop_container(cri::StopContainerRequest { container_id: id.clone(), timeout: 0 })?;
    assert_eq!(pod::container_status(&ready.node, &id)?.exit_code, 137);
    pod.remove()?;
    neighbour.remove()?;
    place::end_named_steps(&steps, &given)?;
    ready.node.assert_clean(&ready.before)
}
