//! Disks of iSCSI targets: how they come to pods and go.

mod failpoints;
pub(super) mod machine;

use gantry_model::pod::volume::IscsiVolume;

use crate::attachments::Attachments;
use crate::events::{VolumeNote, VolumeNoteSubject};
use crate::volumes::{VolumeOrigin, orphans};
use machine::{IQN, IscsiFixture, PLACE, disk, node_with, pod_of_claim, pod_with};

use super::*;

const DEVICE: &str = "by-path/ip-PORTAL-iscsi-IQN-lun-0";

#[tokio::test]
async fn a_disk_is_logged_into_once_mounted_for_all_and_bound_for_each_pod() {
    let fixture = IscsiFixture::new();
    let (one, two) = (pod_with("uid-1", 0, false), pod_with("uid-2", 0, false));
    let metrics = Arc::new(Metrics::default());
    let volumes = fixture.place.volumes.clone().counted_in(metrics.clone());
    volumes.set_up(&one).await.unwrap();
    let (place, node) =
        (PLACE.replace(IQN, "IQN").replace("10.0.0.1:3260", "PORTAL"), "-m node -p PORTAL -T IQN");
    let discovery = "iscsiadm -m discoverydb -t sendtargets -p PORTAL -I default";
    let calls = [
        "iscsiadm -m iface -I default -o show".to_owned(),
        format!("{discovery} -o new"),
        format!("{discovery} --discover"),
        format!("iscsiadm {node} -I default -o update -n node.session.scan -v manual"),
        format!("iscsiadm {node} -I default --login"),
        format!("iscsiadm {node} -o update -n node.startup -v manual"),
        format!("blkid -p -s TYPE -s PTTYPE -o export {DEVICE}"),
        format!("mkfs.ext4 -F -m0 {DEVICE}"),
        format!("mount -t ext4 -o defaults {DEVICE} {place}"),
        format!("mount -o bind {place} pods/uid-1/volumes/kubernetes.io~iscsi/data"),
    ];
    assert_eq!(fixture.calls(), calls);
    let scan = fs::read_to_string(fixture.root().join("sys/class/scsi_host/host3/scan")).unwrap();
    assert_eq!(scan, "0 0 0", "the one disk is looked for, and no other");
    volumes.set_up(&one).await.unwrap();
    assert_eq!(fixture.calls(), Vec::<String>::new(), "it is there");
    volumes.set_up(&two).await.unwrap();
    assert_eq!(
        fixture.calls(),
        [format!("mount -o bind {place} pods/uid-2/volumes/kubernetes.io~iscsi/data")]
    );
    let usage = volumes.usage(&one.uid, "data").await.unwrap().unwrap();
    assert!(usage.driver == "statfs" && usage.capacity_bytes > Some(0), "{usage:?}");
    let mounts = fixture.place.mounts(&one, &[]).await.unwrap();
    assert_eq!(mounts[0].host_path, fixture.place.path("volumes/kubernetes.io~iscsi/data"));
    volumes.tear_down(&one.uid).await.unwrap();
    assert_eq!(fixture.calls(), ["umount pods/uid-1/volumes/kubernetes.io~iscsi/data"]);
    volumes.tear_down(&two.uid).await.unwrap();
    fixture.until_gone().await;
    let calls = [
        "umount pods/uid-2/volumes/kubernetes.io~iscsi/data".to_owned(),
        format!("umount {place}"),
        format!("iscsiadm {node} --logout -I default"),
        format!("iscsiadm {node} -o delete -I default"),
    ];
    assert_eq!(fixture.calls(), calls);
    let deleted = fs::read_to_string(fixture.root().join("sys/block/sd0/device/delete")).unwrap();
    assert_eq!(deleted, "1", "the kernel forgets the device first");
    let took = ["kubernetes.io/iscsi", "volume_mount", "success", "false"];
    assert!(metrics.storage_operation_duration.count(took) > 0);
}

#[tokio::test]
async fn what_is_on_a_disk_is_checked_and_never_made_anew() {
    let fixture = IscsiFixture::new();
    let pod = pod_with("uid-1", 0, false);
    let refusal = async |pod: &Pod| fixture.volumes().set_up(pod).await.unwrap_err().message;
    let is_made = || fixture.calls().iter().any(|call| call.starts_with("mkfs"));
    // blkid ends the same way with an empty disk, and with one that nobody can read.
    fixture.script("disk0", "short");
    let told = refusal(&pod).await;
    assert!(told.contains("cannot be read, and no file system is made on it"), "{told}");
    assert!(told.starts_with("MountVolume.MountDevice failed for volume \"data\" : disk "), "{told}");
    fixture.script("disk0", &" ".repeat(8192));
    let told = refusal(&pod_with("uid-1", 0, true)).await;
    assert!(told.contains("cannot mount unformatted disk") && told.ends_with("in read-only mode"), "{told}");
    fixture.script("found", "TYPE=ext4\nPTTYPE=dos\n");
    fixture.script("mount.sh", "echo wrong fs type; exit 32\n");
    let told = refusal(&pod).await;
    assert!(
        told.contains("mount failed: exit status 32") && told.ends_with("Output: wrong fs type\n"),
        "{told}"
    );
    fixture.script("fsck.sh", "echo badly broken; exit 4\n");
    let told = refusal(&pod).await;
    assert!(told.ends_with("but could not correct them: badly broken\n"), "{told}");
    let waits = fixture.volumes().waits(&pod.uid);
    assert_eq!(waits[0].from, VolumeOrigin::Target(format!("10.0.0.1:3260 {IQN}")));
    assert_eq!((waits[0].step, told.ends_with(&waits[0].why)), ("MountVolume.MountDevice", true));
    let mut strange = pod.clone();
    let of = IscsiVolume { fs_type: "../../tmp/x".into(), ..disk(0) };
    strange.volumes = vec![volume("data", VolumeSource::Iscsi(of))];
    assert!(refusal(&strange).await.contains("is no kind of file system"));
    assert!(!is_made());
    fixture.script("mount.sh", "");
    fixture.script("fsck.sh", "exit 1\n");
    fixture.volumes().set_up(&pod).await.unwrap();
    fixture.volumes().tear_down(&pod.uid).await.unwrap();
    fixture.until_gone().await;
    assert!(!is_made());
}

#[tokio::test]
async fn a_target_that_lets_nobody_in_is_told_and_nothing_of_it_stays() {
    let mut fixture = IscsiFixture::new();
    let pod = pod_with("uid-1", 0, false);
    let words = "MountVolume.WaitForAttach failed for volume \"data\" : failed to get any path for iscsi disk, last err seen:\n";
    for (script, why, last) in [
        (
            "case \"$*\" in *--discover) echo no; exit 4 ;; esac\n",
            "iscsi: failed to sendtargets to portal PORTAL output: no\n, err exit status 4",
            "-m discoverydb -t sendtargets -p PORTAL -I default -o delete",
        ),
        (
            "case \"$*\" in *--login) echo no; exit 24 ;; esac\n",
            "iscsi: failed to attach disk: Error: no\n (exit status 24)",
            "-m node -p PORTAL -T IQN -I default -o delete",
        ),
    ] {
        fixture.script("iscsiadm.sh", script);
        let error = fixture.volumes().set_up(&pod).await.unwrap_err();
        assert_eq!(error.message.replace(machine::PORTAL, "PORTAL"), format!("{words}{why}"));
        let calls = fixture.calls();
        assert_eq!(calls.last(), Some(&format!("iscsiadm {last}")), "{calls:?}");
        let tries = calls.iter().filter(|call| call.ends_with("--discover")).count();
        assert_eq!(tries, 1, "one portal is tried once");
    }
    // The session is there, and its disk is not.
    fixture.script("iscsiadm.sh", "");
    let mut other = pod.clone();
    other.volumes = vec![volume("data", VolumeSource::Iscsi(disk(7)))];
    let error = fixture.volumes().set_up(&other).await.unwrap_err();
    let path = fixture.root().join("by-path").join(format!("ip-10.0.0.1:3260-iscsi-{IQN}-lun-7"));
    let late = format!("Timed out waiting for device at path {} after 3s", path.display());
    assert_eq!(error.message, format!("{words}{late}"));
    fixture.place.volumes.iscsi.host.iscsiadm.words = vec!["/no/such/iscsiadm".to_owned()];
    let error = fixture.volumes().set_up(&other).await.unwrap_err();
    assert!(
        error
            .message
            .ends_with("install open-iscsi (Debian, Ubuntu) or iscsi-initiator-utils (other distributions)"),
        "{error}"
    );
    fixture.place.volumes = fixture.next();
    fixture.place.volumes.begin().unwrap();
    fixture.until_gone().await;
}

#[tokio::test]
async fn chap_is_set_from_the_secret_and_never_told() {
    let fixture = IscsiFixture::new();
    let secret = ("".to_owned(), "chap".to_owned());
    let of = IscsiVolume { discovery_chap: true, session_chap: true, secret: Some(secret), ..disk(0) };
    let mut pod = pod_with("uid-1", 0, false);
    pod.volumes = vec![volume("data", VolumeSource::Iscsi(of))];
    let told = fixture.volumes().set_up(&pod).await.unwrap_err().message;
    let words = "MountVolume.NewMounter initialization failed for volume \"data\" : couldn't get secret default/chap error: secrets \"chap\" not found";
    assert_eq!(told, words);
    let keys =
        [("node.session.auth.username", "u"), ("node.session.auth.password", "hunter2"), ("other", "x")];
    fixture.place.api.put_secret("chap", "kubernetes.io/iscsi-chap", &keys);
    fixture.script("iscsiadm.sh", "case \"$*\" in *auth.password*) echo refused; exit 3 ;; esac\n");
    let told = fixture.volumes().set_up(&pod).await.unwrap_err().message;
    assert!(
        told.ends_with(
            "error: iscsi: failed to update node key \"node.session.auth.password\" error: refused\n"
        ),
        "{told}"
    );
    assert!(!told.contains("hunter2"));
    fixture.calls();
    fixture.script("iscsiadm.sh", "");
    fixture.volumes().set_up(&pod).await.unwrap();
    let calls = fixture.calls();
    let set: Vec<&str> = calls
        .iter()
        .filter_map(|call| call.split_once("-o update -n "))
        .map(|(_, set)| set)
        .filter(|set| set.contains("auth"))
        .collect();
    let wanted = [
        "discovery.sendtargets.auth.authmethod -v CHAP",
        "node.session.auth.authmethod -v CHAP",
        "node.session.auth.username -v u",
        "node.session.auth.password -v hunter2",
    ];
    assert_eq!(set, wanted);
}

#[tokio::test]
async fn the_last_disk_of_a_target_logs_out_and_no_other() {
    let fixture = IscsiFixture::new();
    let (one, two) = (pod_with("uid-1", 0, false), pod_with("uid-2", 1, false));
    for pod in [&one, &two] {
        fixture.volumes().set_up(pod).await.unwrap();
    }
    let ends = |calls: &[String]| calls.iter().filter(|call| call.contains("--log")).count();
    assert_eq!(ends(&fixture.calls()), 1, "both are of one session");
    fixture.volumes().tear_down(&one.uid).await.unwrap();
    while fixture.root().join(PLACE).exists() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(ends(&fixture.calls()), 0);
    // Both at once: one of them is the last.
    fixture.volumes().set_up(&one).await.unwrap();
    let (a, b) = tokio::join!(fixture.volumes().tear_down(&one.uid), fixture.volumes().tear_down(&two.uid));
    a.and(b).unwrap();
    fixture.until_gone().await;
    assert_eq!(ends(&fixture.calls()), 1);
}

#[tokio::test]
async fn a_disk_waits_for_its_controller_and_is_in_use_until_it_is_given_back() {
    let mut fixture = IscsiFixture::new();
    let attachments = Attachments::default();
    let iscsi = std::mem::take(&mut fixture.place.volumes.iscsi).with_attachments(attachments.clone());
    fixture.place.volumes.iscsi = iscsi;
    fixture.claim(|_| {}, &["noatime"], false, false);
    let (pod, name) = (pod_of_claim("uid-1", true), format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:0"));
    let in_use = || attachments.in_use().borrow().sure.iter().cloned().collect::<Vec<_>>();
    let error = fixture.volumes().set_up(&pod).await.unwrap_err();
    let words =
        "Volume has not been added to the list of VolumesInUse in the node's volume status for volume \"pv\"";
    assert_eq!((error.message.as_str(), error.quiet, in_use()), (words, true, vec![name.clone()]));
    attachments.see_node(&node_with(&[&name], &[]));
    let error = fixture.volumes().set_up(&pod).await.unwrap_err();
    assert_eq!(error.message, "Volume not attached according to node status for volume \"pv\"");
    assert_eq!(fixture.volumes().waits(&pod.uid)[0].step, "VerifyControllerAttachedVolume");
    assert!(fixture.calls().is_empty(), "nobody logs in before");
    fixture.script("found", "TYPE=ext4\n");
    attachments.see_node(&node_with(&[&name], &[&name]));
    fixture.volumes().set_up(&pod).await.unwrap();
    let calls = fixture.calls();
    assert!(calls.iter().any(|call| call.contains("mount -t ext4 -o noatime,ro,defaults ")), "{calls:?}");
    assert!(calls.iter().any(|call| call.starts_with("mount -o bind,noatime,ro ")), "{calls:?}");
    assert!(!calls.iter().any(|call| call.starts_with("fsck")), "it is read alone");
    fixture.script("umount.sh", "case \"$*\" in *plugins*) echo busy; exit 32 ;; esac\n");
    fixture.volumes().tear_down(&pod.uid).await.unwrap();
    while !fixture.calls().iter().any(|call| call.starts_with("umount plugins")) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(in_use(), [name], "it may be mounted yet");
    fixture.script("umount.sh", "");
    fixture.until_gone().await;
    assert!(in_use().is_empty());
}

#[tokio::test]
async fn a_pod_that_goes_before_its_disk_is_attached_leaves_nothing_in_use_and_logs_nobody_out() {
    let mut fixture = IscsiFixture::new();
    let attachments = Attachments::default();
    let names = [0, 1].map(|lun| format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:{lun}"));
    attachments.see_node(&node_with(&[&names[1]], &[&names[1]]));
    let iscsi = std::mem::take(&mut fixture.place.volumes.iscsi).with_attachments(attachments.clone());
    fixture.place.volumes.iscsi = iscsi;
    // Another disk of the target, whose session is to stay.
    let (waits, has) = (pod_with("uid-1", 0, false), pod_with("uid-2", 1, false));
    fixture.volumes().set_up(&has).await.unwrap();
    fixture.volumes().set_up(&waits).await.unwrap_err();
    assert_eq!(attachments.in_use().borrow().sure.len(), 2);
    fixture.volumes().tear_down(&waits.uid).await.unwrap();
    let mut in_use = attachments.in_use();
    let told = in_use.wait_for(|told| told.sure.len() == 1 && told.sure.contains(&names[1]));
    tokio::time::timeout(std::time::Duration::from_secs(20), told).await.unwrap().unwrap();
    assert!(!fixture.calls().iter().any(|call| call.contains("--logout")));
    fixture.volumes().tear_down(&has.uid).await.unwrap();
    fixture.until_gone().await;
}

#[tokio::test]
async fn a_pod_that_comes_while_a_disk_is_given_back_gets_it_anew_and_it_is_in_use() {
    let mut fixture = IscsiFixture::new();
    let attachments = Attachments::default();
    let name = format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:0");
    attachments.see_node(&node_with(&[&name], &[&name]));
    let iscsi = std::mem::take(&mut fixture.place.volumes.iscsi).with_attachments(attachments.clone());
    fixture.place.volumes.iscsi = iscsi;
    let (one, two) = (pod_with("uid-1", 0, false), pod_with("uid-2", 0, false));
    fixture.volumes().set_up(&one).await.unwrap();
    let hangs =
        "case \"$*\" in *plugins*) : >ROOT/begun; until [ -e ROOT/go ]; do sleep 0.01; done ;; esac\n";
    fixture.script("umount.sh", hangs);
    fixture.volumes().tear_down(&one.uid).await.unwrap();
    while !fixture.root().join("begun").exists() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let come = async {
        while !fixture.place.volumes.iscsi.has(&fixture.root().join(PLACE), &two.uid) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        fs::write(fixture.root().join("go"), "").unwrap();
    };
    let (mounted, ()) = tokio::join!(fixture.volumes().set_up(&two), come);
    mounted.unwrap();
    let logins = fixture.calls().iter().filter(|call| call.ends_with("--login")).count();
    assert_eq!((logins, fixture.mounted().len()), (2, 2));
    assert!(attachments.in_use().borrow().sure.contains(&name), "another node may not have it");
    fixture.volumes().tear_down(&two.uid).await.unwrap();
    fixture.until_gone().await;
    assert!(attachments.in_use().borrow().sure.is_empty());
}

#[tokio::test]
async fn a_volume_of_one_pod_is_that_pods_also_after_a_restart() {
    let fixture = IscsiFixture::new();
    fixture.claim(|_| {}, &[], false, true);
    let (one, two) = (pod_of_claim("uid-1", false), pod_of_claim("uid-2", false));
    fixture.volumes().set_up(&one).await.unwrap();
    let next = fixture.next();
    next.begin().unwrap();
    let told = next.set_up(&two).await.unwrap_err().message;
    let words = "MountVolume.SetUp failed for volume \"pv\" : volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    assert_eq!(told, words);
    next.set_up(&one).await.unwrap();
}

#[tokio::test]
async fn what_a_killed_kubelet_has_left_is_taken_over_or_given_back() {
    let mut fixture = IscsiFixture::new();
    let pod = pod_with("uid-1", 0, false);
    fixture.volumes().set_up(&pod).await.unwrap();
    fixture.calls();
    // What is mounted there is the pod's, and may have a file of that name.
    let record = fixture.root().join(PLACE).join("iscsi.json");
    let kept = fs::read(&record).unwrap();
    fs::write(&record, "{\"Portals\":[\"10.9.9.9:1\"],\"Iqn\":\"iqn.x\",\"Lun\":\"0\",\"Iface\":\"x\"}")
        .unwrap();
    let (mut next, attachments) = (fixture.next(), Attachments::default());
    next.iscsi = std::mem::take(&mut next.iscsi).with_attachments(attachments.clone());
    next.begin().unwrap();
    let perhaps = attachments.in_use().borrow().perhaps.clone();
    assert!(perhaps.contains(&format!("kubernetes.io/iscsi/10.0.0.1:{IQN}:0")), "{perhaps:?}");
    fs::write(&record, kept).unwrap();
    assert_eq!(orphans::check(&fixture.place.path(""), false), Ok(()));
    fixture.place.volumes = next;
    fixture.volumes().reclaim(&pod.uid).await.unwrap();
    fixture.until_gone().await;
    assert!(fixture.calls().iter().any(|call| call.contains("--logout")));
}

#[tokio::test]
async fn a_disk_is_a_device_for_who_wants_one() {
    let mut fixture = IscsiFixture::new();
    fixture.claim(|_| {}, &[], true, false);
    let mut pod = pod_of_claim("uid-1", false);
    let web = pod.containers.first_mut().unwrap();
    web.mounts.clear();
    web.devices =
        vec![gantry_model::pod::volume::VolumeDevice { volume: "data".into(), path: "/dev/xvda".into() }];
    let device = fixture.blocks.device(&fixture.root().join("disk0"), 7);
    fixture.volumes().set_up(&pod).await.unwrap();
    let devices = fixture.volumes().devices(&pod, pod.containers.first().unwrap()).await.unwrap();
    let link = fixture.place.path("volumeDevices/kubernetes.io~iscsi/pv");
    assert_eq!((devices[0].1.as_str(), fs::read_link(&link).unwrap()), (link.to_str().unwrap(), device));
    let place = fixture.root().join(PLACE.replace("iscsi/iface", "iscsi/volumeDevices/iface"));
    assert_eq!(fixture.blocks.locked(), [place.join("uid-1")]);
    assert!(!fixture.calls().iter().any(|call| call.starts_with("mount") || call.starts_with("blkid")));
    // The next kubelet knows whose it is by what is mapped.
    let next = fixture.next();
    next.begin().unwrap();
    assert_eq!(next.list_orphans().await.unwrap(), std::slice::from_ref(&pod.uid));
    fixture.place.volumes = next;
    fixture.volumes().reclaim(&pod.uid).await.unwrap();
    fixture.until_gone().await;
    assert!(fixture.blocks.locked().is_empty() && !link.is_symlink());
}

#[tokio::test]
async fn an_initiator_with_a_name_of_its_own_has_an_interface_and_of_two_portals_one_will_do() {
    let fixture = IscsiFixture::new();
    let change = |of: &mut IscsiVolume| {
        of.initiator = Some("iqn.2020-01.a:b".into());
        of.portals = vec!["10.0.0.9".into()];
    };
    fixture.claim(change, &[], false, false);
    fixture.script("iscsiadm.sh", "case \"$*\" in *10.0.0.9*--discover) echo down; exit 4 ;; esac\n");
    let pod = pod_of_claim("uid-1", false);
    fixture.volumes().set_up(&pod).await.unwrap();
    let calls = fixture.calls();
    let of_iface: Vec<&str> =
        calls.iter().filter_map(|call| call.strip_prefix("iscsiadm -m iface -I ")).collect();
    let own = "PORTAL:pv";
    let wanted = [
        "default -o show".to_owned(),
        format!("{own} -o new"),
        format!("{own} -o update -n iface.initiatorname -v iqn.2020-01.a:b"),
        format!("{own} -o update -n iface.transport_name -v tcp"),
    ];
    assert_eq!(of_iface, wanted);
    assert_eq!(calls.iter().filter(|call| call.ends_with("--login")).count(), 1);
    let tries =
        calls.iter().filter(|call| call.contains("10.0.0.9:3260") && call.ends_with("--discover")).count();
    assert_eq!(tries, 5, "the other one is tried again");
    fixture.volumes().tear_down(&pod.uid).await.unwrap();
    fixture.until_gone().await;
    assert_eq!(fixture.calls().last(), Some(&format!("iscsiadm -m iface -I {own} -o delete")));
}

#[tokio::test]
async fn the_volume_behind_a_claim_hears_that_its_disk_has_another_file_system() {
    let fixture = IscsiFixture::new();
    fixture.claim(|_| {}, &[], false, false);
    fixture.script("found", "TYPE=xfs\n");
    fixture.script("mount.sh", "echo wrong fs type >&2; exit 32\n");
    let (claimed, own) = (pod_of_claim("uid-1", false), pod_with("uid-2", 0, false));
    for pod in [&claimed, &own] {
        fixture.volumes().set_up(pod).await.unwrap_err();
    }
    let told = fixture.volumes().notes().take(&claimed.uid);
    let [VolumeNote { subject: VolumeNoteSubject::Volume(of), note }] = &*told else { panic!("{told:?}") };
    assert_eq!((&*of.name, &*of.uid, &*note.reason), ("pv", "pv-uid", "FailedMountOnFilesystemMismatch"));
    let words = "MountVolume failed for volume \"pv\" mount failed: exit status 32";
    assert!(note.message.starts_with(words) && note.message.contains("wrong fs type"), "{}", note.message);
    assert_eq!(fixture.volumes().notes().take(&own.uid), [], "it has no PersistentVolume");
}
