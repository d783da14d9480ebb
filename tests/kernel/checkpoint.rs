//! CheckpointContainer: what criu is asked, what becomes of a container whatever criu does, and the archive. With a
//! program that plays criu everywhere, with the real one in the small VM: Debian's knows the kernel there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::criu::{self, FakeCriu, Play};
use gantry_tests::node::{Node, Programs, Roots};
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::{place, ready};
use tonic::Code;

use crate::images::Ready;

/// A node whose runtime has this variable.
fn node_with(variable: (String, PathBuf), flags: &[String]) -> Result<Ready> {
    place::require_own_namespaces()?;
    let programs = Programs { variables: vec![variable], ..Programs::built()? };
    let mut node = Node::start_with(Roots::new()?, programs)?;
    node.restart_with(flags)?;
    ready::ready_on(node)
}

fn ask(ready: &Ready, id: &str, location: &Path, timeout: i64) -> Result<(), tonic::Status> {
    let location = location.to_string_lossy().into_owned();
    let request = cri::CheckpointContainerRequest { container_id: id.to_owned(), location, timeout };
    ready.node.cri().checkpoint_container(request).map(drop)
}

fn checkpoint_error(ready: &Ready, id: &str, location: &Path, timeout: i64) -> Result<(Code, String)> {
    let status = ask(ready, id, location, timeout).err().context("it was checkpointed")?;
    Ok((status.code(), status.message().to_owned()))
}

/// The container does what it does, and nothing is beside the archive's place or in the container's folder.
fn goes_on(ready: &Ready, id: &str) -> Result<()> {
    let status = pod::container_status(&ready.node, id)?;
    ensure!(status.state() == cri::ContainerState::ContainerRunning, "{status:?}");
    let frozen = ready.node.cgroup_value(id, "freezer.state", "cgroup.freeze")?;
    ensure!(frozen == "THAWED" || frozen == "0", "it is {frozen}");
    let cmd = ["/bin/sh", "-c", "echo alive"].map(str::to_owned).into();
    let answer =
        ready.node.cri().exec_sync(cri::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: 20 })?;
    ensure!(answer.stdout == b"alive\n", "{answer:?}");
    ensure!(!folder(ready, id).join("checkpoint").exists(), "the work folder is left");
    Ok(())
}

fn folder(ready: &Ready, id: &str) -> PathBuf {
    ready.node.root().join("containers").join(id)
}

/// Names with their contents; of what is large the beginning.
fn contents(archive: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut all = BTreeMap::new();
    let mut archive = tar::Archive::new(File::open(archive)?);
    for entry in archive.entries()? {
        let entry = entry?;
        let name = entry.path()?.to_string_lossy().trim_end_matches('/').to_owned();
        let mut bytes = Vec::new();
        entry.take(1 << 20).read_to_end(&mut bytes)?;
        all.insert(name, bytes);
    }
    Ok(all)
}

fn json(all: &BTreeMap<String, Vec<u8>>, name: &str) -> Result<serde_json::Value> {
    let bytes = all.get(name).with_context(|| format!("no {name} in {:?}", all.keys()))?;
    Ok(serde_json::from_slice(bytes)?)
}

/// As upstream's suite looks at one, and checkpointctl.
fn looks_right(archive: &Path, id: &str, written: &str) -> Result<()> {
    let mode = std::fs::metadata(archive)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "the container's memory has mode {mode:o}");
    let beside = archive.parent().context("no folder")?.read_dir()?.count();
    ensure!(beside == 1, "{beside} files where one was asked for");
    let all = contents(archive)?;
    ensure!(all.contains_key("checkpoint/inventory.img"), "{:?}", all.keys());
    ensure!(all.contains_key("dump.log"), "{:?}", all.keys());
    ensure!(json(&all, "config.dump")?["id"] == id, "{all:?}");
    ensure!(json(&all, "status.dump")?["metadata"]["name"] == "main");
    ensure!(json(&all, "status")?["Version"] == "v1");
    let spec = json(&all, "spec.dump")?;
    ensure!(spec["annotations"]["io.kubernetes.cri.container-name"] == "main", "{spec}");
    let log = String::from_utf8_lossy(&all["container.log"]).into_owned();
    ensure!(log.contains("stdout F begun"), "{log}");
    let mut layer = tar::Archive::new(all["rootfs-diff.tar"].as_slice());
    let names = layer.entries()?.map(|entry| Ok(entry?.path()?.to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<_>>>()?;
    ensure!(names.iter().any(|name| name == written), "{names:?}");
    ensure!(names.iter().any(|name| name == "etc/.wh.motd"), "what was deleted is not: {names:?}");
    Ok(())
}

/// It writes into its layer, deletes from it, and says so.
fn config(image: &str) -> cri::ContainerConfig {
    let script = "echo x >/written; rm /etc/motd; echo begun; while :; do sleep 1; done";
    pod::container_config("main", image, &["/bin/sh", "-c", script])
}

fn await_start(pod: &Pod<'_>) -> Result<()> {
    poll("the container to write", std::time::Duration::from_secs(30), || match pod.log("main") {
        Ok(log) if log.contains("begun") => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

#[test]
fn a_node_without_criu_says_so_in_words_that_upstreams_suite_knows() -> Result<()> {
    let ready = node_with(criu::none(), &[])?;
    let pod = Pod::run(&ready.node, "none")?;
    let id = pod.start(&config(&ready.image))?;
    let place = tempfile::tempdir()?;
    let (code, message) = checkpoint_error(&ready, &id, &place.path().join("c.tar"), 10)?;
    let expected = format!(
        "CRIU binary not found or too old (<31600). Failed to checkpoint container {id:?}: criu binary not found in \
         the PATH of the runtime (/nonexistent): install criu 3.16 or later on this node"
    );
    assert_eq!((code, message), (Code::Unknown, expected));
    goes_on(&ready, &id)?;
    assert_eq!(place.path().read_dir()?.count(), 0);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_checkpoint_is_one_archive_of_images_documents_log_and_layer() -> Result<()> {
    let fake = FakeCriu::new(Play::Succeed)?;
    let ready = node_with(fake.variable(), &[])?;
    let pod = Pod::run(&ready.node, "whole")?;
    let id = pod.start(&config(&ready.image))?;
    await_start(&pod)?;
    let place = tempfile::tempdir()?;
    let location = place.path().join("c.tar");
    // The second replaces the first.
    for _ in 0..2 {
        ask(&ready, &id, &location, 60)?;
        looks_right(&location, &id, "written")?;
        goes_on(&ready, &id)?;
    }
    let asked = fake.read_requests()?;
    for word in ["dump", "--leave-running", "--freeze-cgroup", "mnt[/dev/shm]:/dev/shm"] {
        assert!(asked.iter().any(|asked| asked == word), "{word} is not in {asked:?}");
    }
    assert!(asked.iter().any(|word| word.ends_with("]:extRootNetNS")), "{asked:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_checkpoint_that_cannot_be_is_refused_and_the_container_goes_on() -> Result<()> {
    let fake = FakeCriu::new(Play::Fail)?;
    let ready = node_with(fake.variable(), &[])?;
    let pod = Pod::run(&ready.node, "refused")?;
    let id = pod.start(&config(&ready.image))?;
    let place = tempfile::tempdir()?;
    let location = place.path().join("c.tar");
    let (code, message) = checkpoint_error(&ready, &id, &location, 60)?;
    assert_eq!(code, Code::Unknown);
    let kept = folder(&ready, &id).join("criu-dump.log");
    for words in [
        format!("checkpointing container {id:?} failed: "),
        "criu: not today (exit status: 1): Error (criu/fake.c:1): the fake says no".to_owned(),
        format!("; path= {}", kept.display()),
    ] {
        assert!(message.contains(&words), "{message}");
    }
    assert!(std::fs::read_to_string(kept)?.contains("the fake says no"));
    goes_on(&ready, &id)?;
    for (location, timeout, words) in [
        ("c.tar", 0, "must be an absolute path"),
        ("/tmp/../c.tar", 0, "must be an absolute path"),
        ("/c", -1, "-1"),
    ] {
        let (code, message) = checkpoint_error(&ready, &id, Path::new(location), timeout)?;
        assert!(code == Code::InvalidArgument && message.contains(words), "{code:?} {message}");
    }
    assert_eq!(checkpoint_error(&ready, "none", &location, 0)?.0, Code::NotFound);
    fake.set("3.15", Play::Succeed)?;
    let (_, message) = checkpoint_error(&ready, &id, &location, 0)?;
    assert!(message.contains("requires at least CRIU 31600, current version is 31500"), "{message}");
    fake.set("3.17.1", Play::Succeed)?;
    let terminal = cri::ContainerConfig { tty: true, ..config(&ready.image) };
    let terminal = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "terminal".into(), attempt: 0 }),
        log_path: "terminal.log".into(),
        ..terminal
    };
    let terminal = pod.start(&terminal)?;
    let (code, message) = checkpoint_error(&ready, &terminal, &location, 0)?;
    assert!(code == Code::FailedPrecondition && message.contains("has a terminal"), "{code:?} {message}");
    goes_on(&ready, &terminal)?;
    let stop = cri::StopContainerRequest { container_id: id.clone(), timeout: 0 };
    ready.node.cri().stop_container(stop)?;
    let (code, message) = checkpoint_error(&ready, &id, &location, 0)?;
    let expected = format!(
        "container {id:?} is in CONTAINER_EXITED state. only CONTAINER_RUNNING containers can be checkpointed"
    );
    assert_eq!((code, message), (Code::Unknown, expected));
    assert_eq!(place.path().read_dir()?.count(), 0);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_criu_that_hangs_is_ended_and_leaves_no_container_frozen() -> Result<()> {
    let fake = FakeCriu::new(Play::Hang)?;
    let ready = node_with(fake.variable(), &[])?;
    let pod = Pod::run(&ready.node, "hangs")?;
    let id = pod.start(&config(&ready.image))?;
    let place = tempfile::tempdir()?;
    let (code, message) = checkpoint_error(&ready, &id, &place.path().join("c.tar"), 2)?;
    assert_eq!(code, Code::DeadlineExceeded, "{message}");
    assert!(message.contains("takes more than 2 s"), "{message}");
    assert!(fake.hangs());
    goes_on(&ready, &id)?;
    assert_eq!(place.path().read_dir()?.count(), 0);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// A container of ours with a volume, and one of runc's, in one pod of each.
#[test]
fn criu_itself_dumps_containers_of_ours_and_of_runc_only_in_the_vm() -> Result<()> {
    let variable = criu::real();
    let runc = place::bin_dir()?.join("runc");
    let ready = node_with(variable, &[format!("--handlers=runc:type=oci,path={}", runc.display())])?;
    let before = ready.node.snapshot()?;
    let volume = ready.node.roots().path("volume");
    std::fs::create_dir_all(&volume)?;
    for handler in ["", "runc"] {
        let pod = Pod::run_handler(&ready.node, pod::sandbox_config(&ready.node, "real"), handler)?;
        for (tty, pid) in [(false, cri::NamespaceMode::Container), (true, cri::NamespaceMode::Pod)] {
            let mut config = config(&ready.image);
            config.tty = tty && handler == "runc";
            config.mounts.push(cri::Mount {
                container_path: "/data".into(),
                host_path: volume.to_string_lossy().into_owned(),
                ..Default::default()
            });
            pod::with_security(&mut config, |security| {
                let options = cri::NamespaceOption { pid: pid.into(), ..Default::default() };
                security.namespace_options = Some(options);
            });
            let id = pod.start(&config)?;
            await_start(&pod)?;
            let place = tempfile::tempdir()?;
            let location = place.path().join("c.tar");
            ask(&ready, &id, &location, 300).with_context(|| {
                let log = folder(&ready, &id).join("criu-dump.log");
                format!("{handler:?} {tty} {pid:?}: {}", gantry_tests::node::tail(&log))
            })?;
            looks_right(&location, &id, "written")?;
            let all = contents(&location)?;
            let images = all.keys().filter(|name| name.starts_with("checkpoint/core-")).count();
            ensure!(images >= 1, "no process was dumped: {:?}", all.keys());
            goes_on(&ready, &id)?;
            let remove = cri::RemoveContainerRequest { container_id: id };
            ready.node.cri().remove_container(remove)?;
            std::fs::remove_file(pod.log_path("main"))?;
        }
        pod.remove()?;
    }
    ready.node.assert_clean(&before)
}
