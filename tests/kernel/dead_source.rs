//! A mount source on a disk that never answers: its container is not made, and its pod can go all the same.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::{bound, poll};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::images::{Ready, ready};

/// A file system whose server never answers, until it is dropped.
fn dead(at: &Path) -> Result<std::fs::File> {
    std::fs::create_dir_all(at)?;
    let server = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    let options = std::ffi::CString::new(options)?;
    rustix::mount::mount("none", at, "fuse", MountFlags::empty(), Some(options.as_c_str()))
        .context("mount")?;
    Ok(server)
}

/// CreateContainer looked at the source while it held the sandbox: StopPodSandbox waited for as long.
#[test]
fn a_mount_source_that_never_answers_keeps_its_pod_neither_from_being_stopped_nor_removed() -> Result<()> {
    let Ready { node, registry: _registry, image, before } = ready()?;
    let folder = node.roots().path("dead");
    let server = dead(&folder)?;
    let pod = Pod::run(&node, "dead")?;
    let mut config = pod::container_config("dead", &image, &["/workload", "sleep", "600"]);
    config.mounts.push(cri::Mount {
        host_path: folder.join("data").display().to_string(),
        container_path: "/data".into(),
        ..cri::Mount::default()
    });
    let tasks = format!("/proc/{}/task", node.pid()?.as_raw_nonzero());
    let (done, ended) = mpsc::channel();
    let (stopped, result) = thread::scope(|scope| -> Result<_> {
        let create = scope.spawn(|| pod.create(&config));
        poll("the source to be looked at", Duration::from_secs(20), || {
            let tasks = std::fs::read_dir(&tasks).map_err(|error| error.to_string())?;
            let named = |path: &Path| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            match tasks.flatten().any(|task| named(&task.path()).trim() == "mount-sources") {
                true => Ok(()),
                false => Err("no thread of that name".to_owned()),
            }
        })?;
        let stop = || {
            let request = cri::StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() };
            // Whoever waits may have given up.
            let _ = done.send(node.cri().stop_pod_sandbox(request).map(drop));
        };
        scope.spawn(stop);
        let stopped = ended.recv_timeout(bound(Duration::from_secs(60)));
        // From here on everybody gets an answer.
        drop(server);
        Ok((stopped, create.join()))
    })?;
    stopped.context("StopPodSandbox waits for the disk")??;
    assert!(matches!(result, Ok(Err(_))), "a container of a stopped pod: {result:?}");
    rustix::mount::unmount(&folder, UnmountFlags::DETACH)?;
    pod.remove()?;
    node.assert_clean(&before)
}
