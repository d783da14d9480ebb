//! Volumes of an iSCSI target that the kernel of the small VM is: real sessions and disks, by Debian's open-iscsi and udevd.

pub(crate) mod target;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_agent::api::fake::{FakeApi, claim_to, volume_from};
use gantry_agent::api::{Api, Claim, IscsiSource, PersistentSource, PersistentVolume};
use gantry_agent::node::NodeInfo;
use gantry_agent::volumes::Volumes;
use gantry_agent::volumes::host::HostVolumes;
use gantry_model::pod::volume::{ClaimRef, Volume, VolumeDevice, VolumeSource};
use gantry_tests::not_run;
use gantry_tests::poll::poll;
use rustix::mount::UnmountFlags;

use self::target::{IQN, IscsiTarget, PORTAL, said};
use crate::volumes::{VolumeFixture, mounted_below, place_of};

const MIB: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(20);

/// iscsiadm about the records of discovery at the portal, as the kubelet has it.
fn discovery(more: &[&str]) -> Result<(Option<i32>, String)> {
    let words = ["-m", "discoverydb", "-t", "sendtargets", "-p", PORTAL, "-I", "default"];
    said("iscsiadm", &[&words, more].concat())
}

/// iscsiadm about the target.
fn node(more: &[&str]) -> Result<(Option<i32>, String)> {
    said("iscsiadm", &[&["-m", "node", "-p", PORTAL, "-T", IQN, "-I", "default"], more].concat())
}

/// A step of which nothing but success is expected.
fn done((code, text): (Option<i32>, String)) -> Result<String> {
    ensure!(code == Some(0), "iscsiadm ended with {code:?}: {text}");
    Ok(text)
}

fn discover() -> Result<()> {
    done(discovery(&["-o", "new"])?)?;
    let found = done(discovery(&["--discover"])?)?;
    ensure!(found == format!("{PORTAL},1 {IQN}\n"), "{found}");
    done(node(&["-o", "update", "-n", "node.session.scan", "-v", "manual"])?)?;
    Ok(())
}

fn log_out() -> Result<()> {
    done(node(&["--logout"])?)?;
    done(node(&["-o", "delete"])?)?;
    done(discovery(&["-o", "delete"])?)?;
    Ok(())
}

/// The entries of a folder whose names begin so; none when it is not there.
fn named(folder: &Path, begins: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let begins =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begins));
    entries.map(|entry| entry.path()).filter(begins).collect()
}

fn text(path: &Path) -> Result<String> {
    Ok(fs::read_to_string(path).with_context(|| path.display().to_string())?.trim().to_owned())
}

/// The hosts of SCSI that sessions are, by the portal of each, as the kubelet looks for them.
fn hosts() -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for host in named(Path::new("/sys/class/iscsi_host"), "host") {
        for session in named(&host.join("device"), "session") {
            let name = session.file_name().context("a name")?;
            ensure!(text(&session.join("iscsi_session").join(name).join("targetname"))? == IQN);
            for connection in named(&session, "connection") {
                let of = connection.join("iscsi_connection").join(connection.file_name().context("a name")?);
                for (address, port) in [("address", "port"), ("persistent_address", "persistent_port")] {
                    let portal = format!("{}:{}", text(&of.join(address))?, text(&of.join(port))?);
                    found.insert(portal, host.clone());
                }
            }
        }
    }
    Ok(found)
}

/// The disks of SCSI that there are.
fn disks() -> Vec<PathBuf> {
    named(Path::new("/sys/block"), "sd")
}

fn hosts_gone() -> bool {
    named(Path::new("/sys/class/iscsi_host"), "host").is_empty()
}

const POD: &str = "
apiVersion: v1
kind: Secret
metadata: {name: chap}
stringData:
  discovery.sendtargets.auth.username: finder
  discovery.sendtargets.auth.password: findersecret
  node.session.auth.username: user
  node.session.auth.password: secretsecret
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  securityContext: {fsGroup: 4242}
  volumes:
  - {name: data, iscsi: {targetPortal: 127.0.0.1, iqn: TARGET, lun: 1}}
  containers:
  - name: c
    image: i
    volumeMounts:
    - {name: data, mountPath: /a}
    - {name: data, mountPath: /b, subPath: sub/dir}
---
apiVersion: v1
kind: Pod
metadata: {name: secret}
spec:
  volumes:
  - name: data
    iscsi:
      targetPortal: 127.0.0.1
      iqn: TARGET
      lun: 1
      chapAuthDiscovery: true
      chapAuthSession: true
      secretRef: {name: chap}
  containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /a}]}]
";

/// Pods, and the target of their volumes, with a disk that nobody wants before the one that they do.
fn with_pods() -> Result<Option<(VolumeFixture, IscsiTarget)>> {
    let fixture = place_of(&POD.replace("TARGET", IQN))?;
    let Some(target) = IscsiTarget::start(fixture.root.path())? else {
        not_run("there is no iSCSI target: the small VM has one");
        return Ok(None);
    };
    for number in [0, 1] {
        target.add_lun(number, 32 * MIB)?;
    }
    Ok(Some((fixture, target)))
}

/// A kubelet that remembers nothing.
fn next_kubelet(fixture: &VolumeFixture) -> Result<HostVolumes> {
    let api: Arc<dyn Api> = Arc::new(FakeApi::default());
    let next = HostVolumes::new(&kubelet(fixture), api, Arc::new(NodeInfo::default()), false);
    let _inside = fixture.runtime.enter();
    next.begin().map_err(anyhow::Error::msg)?;
    Ok(next)
}

fn kubelet(fixture: &VolumeFixture) -> PathBuf {
    fixture.root.path().join("kubelet")
}

/// What is given back beside everything else.
fn until_logged_out(fixture: &VolumeFixture) -> Result<()> {
    poll("the end of the session", WAIT, || {
        fixture.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(20)).await });
        let all = kubelet(fixture).join("plugins/kubernetes.io/iscsi");
        let mut left = named(&all.join("iface-default"), "");
        left.extend(named(&all.join("volumeDevices/iface-default"), ""));
        match (hosts_gone(), disks().is_empty(), left.is_empty()) {
            (true, true, true) => Ok(()),
            other => Err(format!("{other:?} {left:?}")),
        }
    })?;
    assert_eq!(mounted_below(&kubelet(fixture))?, Vec::<PathBuf>::new());
    // iscsiadm: no record of the target is left.
    assert_eq!(node(&["-o", "show"])?.0, Some(21));
    Ok(())
}

#[test]
fn a_disk_is_formatted_once_written_and_given_back_by_the_next_kubelet() -> Result<()> {
    let Some((fixture, _target)) = with_pods()? else { return Ok(()) };
    fixture.set_up()?;
    assert_eq!((disks().len(), hosts()?.len()), (1, 1), "the other disk was not asked for");
    let folder = fixture.folder()?;
    let data = folder.join("volumes/kubernetes.io~iscsi/data");
    let name = format!("{PORTAL}-{IQN}-lun-1");
    let global = kubelet(&fixture).join("plugins/kubernetes.io/iscsi/iface-default").join(name);
    assert_eq!(mounted_below(&kubelet(&fixture))?.len(), 2, "for all pods, and for this one");
    assert_eq!(rustix::fs::stat(&data)?.st_gid, 4242);
    fs::write(data.join("file"), "written")?;
    assert_eq!(fs::read_to_string(global.join("file"))?, "written");
    let mounts = fixture.mounts()?;
    fs::write(mounts.get(1).context("the sub-path")?.host_path.join("part"), "of it")?;
    let pod = fixture.pod()?;
    let usage =
        fixture.runtime.block_on(fixture.volumes.usage(&pod.uid, "data")).map_err(anyhow::Error::msg)?;
    ensure!(usage.is_some_and(|usage| usage.capacity_bytes > Some(16 * MIB)), "it tells how full it is");
    // What a pod has stays, whoever comes.
    let next = next_kubelet(&fixture)?;
    fixture.runtime.block_on(next.set_up(pod))?;
    assert_eq!(mounted_below(&kubelet(&fixture))?.len(), 3, "both, and a part");
    fixture.runtime.block_on(next.reclaim(&pod.uid))?;
    assert!(!folder.exists());
    until_logged_out(&fixture)?;
    // What is on the disk is the pod's after it.
    fixture.set_up()?;
    assert_eq!(fs::read_to_string(data.join("file"))?, "written");
    assert_eq!(fs::read_to_string(data.join("sub/dir/part"))?, "of it");
    fixture.tear_down()?;
    until_logged_out(&fixture)
}

#[test]
fn a_login_that_was_cut_off_is_ended_by_the_next_kubelet() -> Result<()> {
    let Some((fixture, _target)) = with_pods()? else { return Ok(()) };
    fixture.set_up()?;
    // As a kubelet leaves it that was killed before it had mounted anything.
    for point in mounted_below(&kubelet(&fixture))? {
        rustix::mount::unmount(&point, UnmountFlags::empty())?;
    }
    fs::remove_dir_all(fixture.folder()?)?;
    assert!(!hosts_gone());
    next_kubelet(&fixture)?;
    until_logged_out(&fixture)
}

#[test]
fn who_has_no_secret_or_a_wrong_one_is_refused_and_told() -> Result<()> {
    let Some((fixture, target)) = with_pods()? else { return Ok(()) };
    let refused = |what: &str| -> Result<()> {
        let told = fixture.set_up().expect_err("it has no secret").to_string();
        let words = "MountVolume.WaitForAttach failed for volume \"data\" : failed to get any path for iscsi disk, last err seen:\niscsi: failed to ";
        ensure!(told.starts_with(&format!("{words}{what}")), "{told}");
        ensure!(told.contains("login failed due to authorization failure") && hosts_gone(), "{told}");
        Ok(())
    };
    target.ask_for_secret(("user", "secretsecret"), None)?;
    refused("attach disk: Error: ")?;
    target.ask_for_discovery_secret(("finder", "findersecret"), None)?;
    refused("sendtargets to portal 127.0.0.1:3260 output: ")?;
    fixture.tear_down()?;
    until_logged_out(&fixture)?;
    let pod = fixture.pods().get(1).context("the pod with a secret")?;
    fixture.runtime.block_on(fixture.volumes.set_up(pod))?;
    assert_eq!(hosts()?.len(), 1);
    fixture.runtime.block_on(fixture.volumes.tear_down(&pod.uid))?;
    until_logged_out(&fixture)?;
    target.ask_for_secret(("user", "anothersecret"), None)?;
    let told =
        fixture.runtime.block_on(fixture.volumes.set_up(pod)).expect_err("it is another one").to_string();
    ensure!(told.contains("authorization failure") && !told.contains("secretsecret"), "{told}");
    fixture.runtime.block_on(fixture.volumes.tear_down(&pod.uid))?;
    until_logged_out(&fixture)
}

#[test]
fn a_disk_as_a_device_is_written_without_a_file_system() -> Result<()> {
    let Some((fixture, _target)) = with_pods()? else { return Ok(()) };
    let api = Arc::new(FakeApi::default());
    let claim = Claim { block: true, ..claim_to("pv") };
    api.put_claim("c", claim);
    let VolumeSource::Iscsi(volume) = fixture.pod()?.volumes.first().context("it")?.source.clone() else {
        anyhow::bail!("it has a disk");
    };
    let source = PersistentSource::Iscsi(Box::new(IscsiSource { volume, mount_options: Vec::new() }));
    let volume = PersistentVolume { one_pod: true, access_mode: "RWOP", ..volume_from(source) };
    api.put_volume("pv", volume);
    let volumes = HostVolumes::new(&kubelet(&fixture), api, Arc::new(NodeInfo::default()), false);
    let mut pod = fixture.pod()?.clone();
    let source = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: false };
    pod.volumes = vec![Volume { name: "raw".into(), source }];
    let container = pod.containers.first_mut().context("a container")?;
    container.mounts.clear();
    container.devices = vec![VolumeDevice { volume: "raw".into(), path: "/dev/xvda".into() }];
    let container = container.clone();
    fixture.runtime.block_on(volumes.set_up(&pod))?;
    let devices = fixture.runtime.block_on(volumes.devices(&pod, &container))?;
    let (_, path, _) = devices.first().context("a device")?;
    fs::OpenOptions::new().write(true).open(path)?.write_all_at(b"raw words", 4096)?;
    fixture.runtime.block_on(volumes.tear_down(&pod.uid))?;
    until_logged_out(&fixture)?;
    let file = fs::read(fixture.root.path().join("lun-1"))?;
    ensure!(file.get(4096..).is_some_and(|rest| rest.starts_with(b"raw words")));
    Ok(())
}

/// A session outlives a target that does not answer for a while: who writes waits.
#[test]
fn a_session_goes_on_when_its_target_answers_again() -> Result<()> {
    let Some((_fixture, target)) = with_pods()? else { return Ok(()) };
    discover()?;
    done(node(&["--login"])?)?;
    let session = hosts()?.into_values().next().context("a host")?.join("device");
    let session = named(&session, "session").pop().context("a session")?;
    let state = session.join("iscsi_session").join(session.file_name().context("a name")?).join("state");
    let is = |wanted: &str| {
        poll(wanted, WAIT, || match text(&state) {
            Ok(state) if state == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        })
    };
    is("LOGGED_IN")?;
    target.answer(false)?;
    is("FAILED")?;
    assert_eq!(discovery(&["--discover"])?, (Some(21), "iscsiadm: No portals found\n".to_owned()));
    target.answer(true)?;
    is("LOGGED_IN")?;
    log_out()
}
