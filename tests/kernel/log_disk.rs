//! Logs on disks that are full, frozen or flooded: what suffers is the pod whose logs they are, and never
//! longer than the disk does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::proc;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::images::{Ready, ready};

/// A small file system for the logs of one pod; gone with this.
struct LogDisk {
    folder: PathBuf,
    frozen: bool,
}

impl LogDisk {
    /// In memory, of so many bytes.
    fn of_memory(folder: PathBuf, bytes: u64) -> Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let size = std::ffi::CString::new(format!("size={bytes}"))?;
        rustix::mount::mount("none", &folder, "tmpfs", MountFlags::empty(), size.as_c_str())?;
        Ok(Self { folder, frozen: false })
    }

    /// In a file, with a file system that can be frozen.
    fn of_a_file(ready: &Ready) -> Result<Self> {
        let (image, folder) = (ready.node.roots().path("disk.img"), ready.node.roots().path("disk"));
        std::fs::create_dir_all(&folder)?;
        std::fs::File::create(&image)?.set_len(16 << 20)?;
        busybox(&["mke2fs", "-F"], &[&image])?;
        busybox(&["mount", "-t", "ext4", "-o", "loop"], &[&image, &folder])?;
        Ok(Self { folder, frozen: false })
    }

    fn freeze(&mut self, frozen: bool) -> Result<()> {
        let word = if frozen { "--freeze" } else { "--unfreeze" };
        busybox(&["fsfreeze", word], &[&self.folder])?;
        self.frozen = frozen;
        Ok(())
    }

    /// The config of a pod whose logs go here.
    fn config(&self, ready: &Ready, name: &str) -> cri::PodSandboxConfig {
        let log_directory = self.folder.join("logs").to_string_lossy().into_owned();
        cri::PodSandboxConfig { log_directory, ..pod::sandbox_config(&ready.node, name) }
    }
}

impl Drop for LogDisk {
    fn drop(&mut self) {
        // A frozen disk holds up everybody who touches it, the sweep of this test too.
        if self.frozen {
            let _ = self.freeze(false);
        }
        let _ = rustix::mount::unmount(&self.folder, UnmountFlags::DETACH);
    }
}

fn busybox(words: &[&str], paths: &[&Path]) -> Result<()> {
    let mut command = Command::new("/bin/busybox");
    let output = command.args(words).args(paths).output().context("run /bin/busybox")?;
    ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn exec(ready: &Ready, id: &str, words: &[&str]) -> Result<cri::ExecSyncResponse, tonic::Status> {
    let cmd = words.iter().map(|&word| word.to_owned()).collect();
    ready.node.cri().exec_sync(cri::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: 60 })
}

fn is_running(ready: &Ready, id: &str) -> Result<bool> {
    Ok(pod::container_status(&ready.node, id)?.state() == cri::ContainerState::ContainerRunning)
}

/// Waits until a log has more than `lines` lines, and says how many.
fn more_than(pod: &Pod<'_>, container: &str, lines: usize) -> Result<usize> {
    poll("lines in a log", Duration::from_secs(60), || match pod.log(container) {
        Ok(log) if log.lines().count() > lines => Ok(log.lines().count()),
        Ok(log) => Err(format!("{} lines", log.lines().count())),
        Err(error) => Err(format!("{error:#}")),
    })
}

#[test]
fn a_full_disk_loses_whole_lines_of_its_own_pod_and_logging_goes_on_when_there_is_room() -> Result<()> {
    let ready = ready()?;
    let disk = LogDisk::of_memory(ready.node.roots().path("disk"), 1 << 20)?;
    // To be made room of.
    let filler = disk.folder.join("filler");
    std::fs::write(&filler, vec![b'x'; 512 << 10])?;
    let pod = Pod::run_config(&ready.node, disk.config(&ready, "full"))?;
    let other = Pod::run(&ready.node, "other")?;
    other.start(&pod::container_config("count", &ready.image, &["/workload", "count", "0"]))?;
    let pad = "y".repeat(3000);
    let script = format!(
        "i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo before $i {pad} end; done; touch /tmp/full; \
         while [ ! -e /tmp/more ]; do sleep 0.05; done; \
         i=0; while [ $i -lt 50 ]; do i=$((i+1)); echo after $i {pad} end; done"
    );
    let id = pod.start(&pod::container_config("main", &ready.image, &["/bin/sh", "-c", &script]))?;
    poll("the disk to be full", Duration::from_secs(60), || {
        match exec(&ready, &id, &["test", "-e", "/tmp/full"]) {
            Ok(answer) if answer.exit_code == 0 => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })?;
    let seen = other.log("count")?.lines().count();
    more_than(&other, "count", seen)?;
    std::fs::remove_file(&filler)?;
    ensure!(exec(&ready, &id, &["touch", "/tmp/more"])?.exit_code == 0);
    assert_eq!(pod::await_exit(&ready.node, &id)?.exit_code, 0);
    let log = pod.log("main")?;
    let (mut last, mut after) = (0, 0);
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [word, number, text, "end"] = words[..] else { anyhow::bail!("a half line: {line:?}") };
        assert_eq!(text, pad);
        let number: u32 = number.parse()?;
        match word {
            "before" => assert!(number > last && after == 0, "{number} after {last}"),
            _ => assert_eq!((word, number), ("after", after + 1)),
        }
        (last, after) = if word == "before" { (number, 0) } else { (last, number) };
    }
    assert_eq!(after, 50, "what was written when there was room");
    assert!(log.lines().count() < 650, "the disk was never full");
    pod.remove()?;
    other.remove()?;
    drop(disk);
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_5_a_frozen_disk_holds_up_neither_a_stop_nor_other_pods_and_a_rotation_is_told_of_it() -> Result<()> {
    let ready = ready()?;
    let mut disk = LogDisk::of_a_file(&ready)?;
    let pod = Pod::run_config(&ready.node, disk.config(&ready, "frozen"))?;
    let id = pod.start(&pod::container_config("main", &ready.image, &["/workload", "count", "0"]))?;
    let monitors = proc::all()?.into_iter().filter(|process| process.name.starts_with("gantry-monitor"));
    let [monitor] = &monitors.collect::<Vec<_>>()[..] else { anyhow::bail!("not one monitor") };
    let other = Pod::run(&ready.node, "other")?;
    let count = other.start(&pod::container_config("count", &ready.image, &["/workload", "count", "0"]))?;
    more_than(&pod, "main", 3)?;
    disk.freeze(true)?;
    poll("the monitor to hang", Duration::from_secs(20), || match proc::one(monitor.pid) {
        Some(process) if process.state == 'D' => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    let request = cri::ReopenContainerLogRequest { container_id: id.clone() };
    let error = ready.node.cri().reopen_container_log(request).expect_err("the disk is frozen");
    assert_eq!(error.code(), tonic::Code::DeadlineExceeded, "{error:?}");
    assert!(error.message().contains(&pod.id) && error.message().contains("remove the pod"), "{error:?}");

    let seen = other.log("count")?.lines().count();
    more_than(&other, "count", seen)?;
    assert_eq!(exec(&ready, &count, &["/bin/true"])?.exit_code, 0);
    pod.remove()?;
    let listed = ready.node.cri().list_pod_sandbox(cri::ListPodSandboxRequest::default())?.items;
    assert!(listed.iter().all(|item| item.id == other.id), "{listed:?}");
    assert_eq!(proc::one(monitor.pid).map(|process| process.state), Some('D'), "all that while");
    disk.freeze(false)?;
    other.remove()?;
    poll("the monitor to end", Duration::from_secs(60), || match proc::one(monitor.pid) {
        None => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    drop(disk);
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_flood_of_lines_holds_up_neither_execs_nor_stops_nor_the_lines_of_others() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "flood")?;
    let path = pod.log_path("flood");
    let disk = LogDisk::of_memory(path.parent().context("no folder")?.to_owned(), 64 << 20)?;
    let flood = pod.start(&pod::container_config("flood", &ready.image, &["/bin/yes", "the same again"]))?;
    let quiet = pod.start(&pod::container_config("quiet", &ready.image, &["/workload", "count", "0"]))?;
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // In the place of a kubelet's rotation.
        let emptied = scope.spawn(|| -> Result<()> {
            let log = std::fs::OpenOptions::new().write(true).open(&path)?;
            while !over.load(Ordering::Relaxed) {
                if log.metadata()?.len() > 16 << 20 {
                    log.set_len(0)?;
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        });
        // A flood before anything is asked, however slow the machine is.
        let begun = poll("16 MiB of lines", Duration::from_secs(120), || {
            if rounds.load(Ordering::Relaxed) > 0 { Ok(()) } else { Err("fewer".to_owned()) }
        });
        let held = begun.and_then(|()| beside_a_flood(&ready, &pod, &flood, &quiet));
        over.store(true, Ordering::Relaxed);
        emptied.join().unwrap()?;
        held
    })?;
    pod.remove()?;
    drop(disk);
    ready.node.assert_clean(&ready.before)
}

/// In this order, while the flood goes on: an exec, lines of the other container, its stop in its own way.
fn beside_a_flood(ready: &Ready, pod: &Pod<'_>, flood: &str, quiet: &str) -> Result<()> {
    let seen = more_than(pod, "quiet", 2)?;
    assert_eq!(exec(ready, quiet, &["/bin/true"])?.exit_code, 0);
    more_than(pod, "quiet", seen)?;
    assert!(is_running(ready, flood)?);
    let stop = |id: &str, timeout| {
        let request = cri::StopContainerRequest { container_id: id.to_owned(), timeout };
        ready.node.cri().stop_container(request)
    };
    // 137, were its SIGTERM or its last lines too late.
    stop(quiet, 60)?;
    assert_eq!(pod::container_status(&ready.node, quiet)?.exit_code, 0);
    assert!(pod.log("quiet")?.ends_with("count ends\n"));
    assert!(is_running(ready, flood)?);
    assert_eq!(exec(ready, flood, &["/bin/true"])?.exit_code, 0);
    stop(flood, 0)?;
    assert_eq!(pod::container_status(&ready.node, flood)?.exit_code, 137);
    Ok(())
}
