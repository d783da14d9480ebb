//! Volumes of pods that run: published again, and with tokens that have not run out.

use std::collections::BTreeSet;

use super::*;
use crate::api::fake::volume_from;
use crate::api::{Claim, ClaimSize, PersistentSource, PersistentVolume};
use crate::csi::expand::Expansion;
use crate::csi::steps::WantedClaim;
use crate::events::{ClaimIdentity, VolumeNoteSubject};

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

#[tokio::test]
async fn a_driver_gets_tokens_of_the_pods_service_account_by_audience() {
    let bed = Bed::new();
    let tokens = vec![(String::new(), 3600), ("vault".to_owned(), 600)];
    bed.api.put_csi_driver(DRIVER, CsiDriver { tokens, ..object() });
    let mut pod = pod("a");
    pod.shown.service_account = "web".to_owned();
    bed.mount(&pod, &wanted()).await.unwrap();
    let (staged, published) = bed.driver.asked();
    let text = concat!(
        r#"{"":{"expirationTimestamp":"1970-01-01T01:00:00Z","token":"token-1-of-web-for-"},"#,
        r#""vault":{"expirationTimestamp":"1970-01-01T00:10:00Z","token":"token-2-of-web-for-vault"}}"#,
    );
    assert_eq!(published.volume_context[TOKENS], text);
    assert!(!published.secrets.contains_key(TOKENS) && !staged.volume_context.contains_key(TOKENS));
    let mut again = bed.volumes.waits(&pod.uid);
    assert_eq!(again.pop(), None);
    let tokens = vec![("vault".to_owned(), 600)];
    bed.api.put_csi_driver(DRIVER, CsiDriver { tokens, tokens_in_secrets: true, ..object() });
    bed.mount(&super::pod("b"), &wanted()).await.unwrap();
    let (_, published) = bed.driver.asked();
    assert!(published.secrets.contains_key(TOKENS) && !published.volume_context.contains_key(TOKENS));
}

/// #121271 among others: the pod keeps what it sees.
#[tokio::test]
async fn trap_121271_a_volume_is_published_again_and_a_refusal_takes_nothing_from_the_pod() {
    let bed = Bed::new();
    bed.api.put_csi_driver(DRIVER, CsiDriver { republish: true, ..object() });
    let (pod, wanted) = (pod("a"), wanted());
    bed.mount(&pod, &wanted).await.unwrap();
    let mounted = bed.driver.mounted();
    bed.driver.fails("publish", Trouble::Refused(Code::InvalidArgument));
    let error = bed.mount(&pod, &wanted).await.unwrap_err();
    assert!(error.starts_with("MountVolume.SetUp failed for volume \"pv\" : "), "{error}");
    assert_eq!(bed.driver.mounted(), mounted);
    assert!(bed.data(&pod).exists(), "what is mounted stays known");
    bed.patiently(&pod, &wanted).await;
    let calls = ["stage h1", "publish h1 a", "publish h1 a refused", "publish h1 a"];
    assert_eq!(bed.driver.calls(), calls);
    bed.volumes.unmount_all(&pod.uid).await.unwrap();
    bed.empty().await;
}

#[tokio::test]
async fn pods_of_a_driver_that_publishes_again_are_told_and_no_others() {
    let bed = Bed::new();
    let (a, b) = (pod("a"), pod("b"));
    let (mut of_a, of_b) = (bed.api.follow(&a), bed.api.follow(&b));
    bed.api.put_csi_driver("other", object());
    bed.serve("other", &FakeDriver::new("other"));
    bed.api.put_csi_driver(DRIVER, CsiDriver { republish: true, ..object() });
    bed.mount(&a, &wanted()).await.unwrap();
    let mut other = wanted();
    other.source.driver = "other".to_owned();
    bed.mount(&b, &other).await.unwrap();
    bed.volumes.begin();
    of_a.wait_for(|revision| *revision > 1).await.unwrap();
    assert_eq!(*of_b.borrow(), 0);
}

#[tokio::test]
async fn a_driver_tells_how_full_a_mounted_volume_is_where_it_can() {
    let bed = Bed::new();
    let pod = pod("a");
    let usage = async || bed.volumes.usage(&pod.uid, "pv").await;
    assert_eq!(usage().await, Ok(None), "the pod has no such volume");
    bed.mount(&pod, &wanted()).await.unwrap();
    assert_eq!(usage().await, Ok(None), "the driver cannot tell");
    bed.driver.tells_usage([7, 10, 3], [-1, 5, 2]);
    let told = usage().await.unwrap().unwrap();
    assert_eq!((told.available_bytes, told.capacity_bytes, told.used_bytes), (Some(7), Some(10), Some(3)));
    assert_eq!(
        (told.inodes_free, told.inodes, told.inodes_used),
        (None, Some(5), Some(2)),
        "none is negative"
    );
    assert_eq!(told.driver, DRIVER);
    let labels = |method| [DRIVER, "OK", method, "false"];
    assert_eq!(bed.metrics.csi_operations.count(labels("/csi.v1.Node/NodeGetVolumeStats")), 1);
    assert_eq!(bed.metrics.csi_operations.count(labels("/csi.v1.Node/NodePublishVolume")), 1);
    bed.drivers.remove(DRIVER);
    assert!(usage().await.unwrap_err().contains("not found in the list of registered CSI drivers"));
}

pub(super) fn growing(status: &str) -> WantedVolume {
    let size = ClaimSize {
        version: "7".to_owned(),
        requested: "2Ki".to_owned(),
        capacity: "1Ki".to_owned(),
        allocated: "2Ki".to_owned(),
        status: status.to_owned(),
    };
    let volume =
        PersistentVolume { capacity: "2Ki".into(), ..volume_from(PersistentSource::Other(String::new())) };
    let expansion = Expansion::of(&size, &volume);
    let claim = WantedClaim {
        namespace: "default".to_owned(),
        name: "data".to_owned(),
        uid: "u-data".to_owned(),
        outgrown: true,
        size,
        expansion,
    };
    WantedVolume { claim: Some(claim), ..wanted() }
}

/// What the claim was told, of its status.
fn told(bed: &Bed) -> Vec<serde_json::Value> {
    bed.api.claim_patches().into_iter().map(|(_, mut patch)| patch["status"].take()).collect()
}

#[tokio::test]
async fn a_volume_grows_before_its_pod_starts_and_its_claim_is_told() {
    let bed = Bed::new();
    let (pod, pending) = (pod("a"), growing("NodeResizePending"));
    let error = bed.mount(&pod, &pending).await.unwrap_err();
    let words = "NodeExpand is not supported by the CSI driver d.example";
    assert_eq!(error, format!("MountVolume.Setup failed while expanding volume for volume \"pv\" : {words}"));
    bed.driver.can_expand();
    bed.patiently(&pod, &pending).await;
    // As upstream: a pod without the room that it waits for gets its volume anew.
    assert_eq!(bed.driver.calls(), ["stage h1", "publish h1 a", "publish h1 a", "expand h1 2048"]);
    let told = told(&bed);
    assert_eq!(told[0]["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress");
    assert_eq!(told.last().unwrap()["capacity"]["storage"], "2Ki");
    bed.mount(&pod, &wanted()).await.unwrap();
    assert_eq!(bed.driver.calls().len(), 4, "its claim says that it is done");
    bed.volumes.unmount_all(&pod.uid).await.unwrap();
    bed.empty().await;
}

#[tokio::test]
async fn a_claim_is_told_why_its_volume_cannot_grow_and_nobody_insists_on_one_in_use() {
    let bed = Bed::new();
    bed.driver.can_expand();
    let (pod, wanted) = (pod("a"), growing("NodeResizeInProgress"));
    bed.driver.fails("expand", Trouble::Refused(Code::OutOfRange));
    let error = bed.mount(&pod, &wanted).await.unwrap_err();
    let why =
        "Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = expand failed";
    assert_eq!(error, format!("MountVolume.Setup failed while expanding volume for volume \"pv\" : {why}"));
    let first = told(&bed).remove(0);
    assert_eq!(first["allocatedResourceStatuses"]["storage"], "NodeResizeInfeasible");
    assert_eq!(first["conditions"][0]["message"], format!("failed to expand pvc with {why}"));
    bed.driver.fails("expand", Trouble::Refused(Code::FailedPrecondition));
    bed.patiently(&pod, &wanted).await;
    assert_eq!(told(&bed)[1]["conditions"][0]["type"], "NodeResizeError");
    bed.mount(&pod, &wanted).await.unwrap();
    let refused = "expand h1 2048 refused";
    let calls = ["stage h1", "publish h1 a", refused, "publish h1 a", refused];
    assert_eq!(bed.driver.calls(), calls, "not while it is in use");
}

/// Upstream has another event, and other words, of a volume that its pod has already.
#[tokio::test]
async fn growth_that_fails_under_a_pod_is_told_in_upstreams_words() {
    let bed = Bed::new();
    bed.driver.can_expand();
    let (pod, pending) = (pod("a"), growing("NodeResizePending"));
    bed.mount(&pod, &wanted()).await.unwrap();
    bed.driver.fails("expand", Trouble::Refused(Code::Internal));
    let error = bed.volumes.mount(&pod, &pending, nothing_owned).await.unwrap_err();
    let why =
        "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = expand failed";
    let words = format!("NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : {why}");
    assert_eq!((error.reason, error.message, error.quiet), ("VolumeResizeFailed", words, false));
    let failure = told(&bed).pop().unwrap();
    assert_eq!(failure["conditions"][0]["message"], format!("failed to expand pvc with {why}"));
    bed.patiently(&pod, &pending).await;
    assert_eq!(bed.driver.calls()[1..], ["publish h1 a", "expand h1 2048 refused", "expand h1 2048"]);
}

/// Before its claim is told of anything: the driver may come yet (upstream's #120268).
#[tokio::test]
async fn trap_120268_a_driver_that_is_away_has_not_refused_to_make_a_volume_larger() {
    let bed = Bed::new();
    bed.driver.can_expand();
    let (pod, mut pending) = (pod("a"), growing("NodeResizeInProgress"));
    bed.mount(&pod, &wanted()).await.unwrap();
    bed.drivers.remove(DRIVER);
    let error = bed.mount(&pod, &pending).await.unwrap_err();
    let why = "driver name d.example not found in the list of registered CSI drivers";
    assert_eq!(error, format!("NodeExpandVolume.NodeExpandVolume failed for volume \"pv\" : {why}"));
    assert_eq!(told(&bed), Vec::<serde_json::Value>::new());
    bed.drivers.put(DRIVER, &bed.root.path().join(format!("{DRIVER}.sock")));
    pending.source.expand_secret = Some(("default".to_owned(), "none".to_owned()));
    tokio::time::sleep(Duration::from_millis(600)).await;
    let error = bed.mount(&pod, &pending).await.unwrap_err();
    let words = "expander.NodeExpand failed to get NodeExpandSecretRef default/none: kubernetes.io/csi: failed to find the secret none in the namespace default with error: ";
    assert!(error.contains(words), "{error}");
    assert_eq!(told(&bed).len(), 1);
}

#[tokio::test]
async fn a_claim_of_an_older_resizer_is_told_of_no_failure() {
    let bed = Bed::new();
    let (pod, mut wanted) = (pod("a"), growing(""));
    let mut claim = wanted.claim.take().unwrap();
    claim.size.allocated = String::new();
    let volume =
        PersistentVolume { capacity: "2Ki".into(), ..volume_from(PersistentSource::Other(String::new())) };
    claim.expansion = Expansion::of(&claim.size, &volume);
    wanted.claim = Some(claim);
    bed.mount(&pod, &wanted).await.unwrap();
    assert_eq!(told(&bed), Vec::<serde_json::Value>::new(), "its driver cannot, and that is no failure");
    bed.driver.can_expand();
    bed.driver.fails("expand", Trouble::Refused(Code::Internal));
    bed.mount(&pod, &wanted).await.unwrap_err();
    assert_eq!(told(&bed), Vec::<serde_json::Value>::new());
    bed.patiently(&pod, &wanted).await;
    assert_eq!(told(&bed)[0]["capacity"]["storage"], "2Ki");
}

#[tokio::test]
async fn a_claim_that_waits_for_the_node_is_seen_while_a_pod_has_its_volume() {
    let bed = Bed::new();
    bed.driver.can_expand();
    let (pod, pending) = (pod("a"), growing("NodeResizePending"));
    let size = pending.claim.as_ref().unwrap().size.clone();
    bed.api.put_claim(
        "data",
        Claim { size: ClaimSize { status: String::new(), ..size.clone() }, ..Claim::default() },
    );
    let claim = pending.claim.clone().map(|claim| WantedClaim { expansion: None, ..claim });
    bed.mount(&pod, &WantedVolume { claim, ..wanted() }).await.unwrap();
    assert_eq!(bed.volumes.growing().await, BTreeSet::new());
    bed.api.put_claim("data", Claim { size, ..Claim::default() });
    assert_eq!(bed.volumes.growing().await, [pod.uid.clone()].into());
    bed.volumes.unmount_all(&pod.uid).await.unwrap();
    assert_eq!(bed.volumes.growing().await, BTreeSet::new());
}

#[tokio::test]
async fn a_driver_that_does_not_answer_holds_up_the_growth_of_no_other_volume() {
    let bed = Bed::patient(Duration::from_secs(600));
    bed.driver.can_expand();
    // It takes connections, and that is all. Its name comes first.
    let socket = bed.root.path().join("deaf.sock");
    let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
    bed.drivers.put("a.deaf", &socket);
    bed.api.put_csi_driver("a.deaf", object());
    let (a, b, pending) = (pod("a"), pod("b"), growing("NodeResizePending"));
    let claim = pending.claim.clone().unwrap();
    bed.api.put_claim("data", Claim { size: claim.size.clone(), ..Claim::default() });
    let quiet = WantedVolume { claim: Some(WantedClaim { expansion: None, ..claim }), ..pending };
    bed.mount(&a, &quiet).await.unwrap();
    let mut deaf = quiet.clone();
    deaf.source.driver = "a.deaf".to_owned();
    let look = async {
        bed.driver.until(|_| bed.volumes.slots().len() == 2).await;
        tokio::time::timeout(Duration::from_secs(60), bed.volumes.growing()).await.unwrap()
    };
    tokio::select! {
        slow = bed.mount(&b, &deaf) => panic!("it answers: {slow:?}"),
        found = look => assert_eq!(found, [a.uid.clone()].into()),
    }
}

/// What is told of the pod and of its claim: kind, reason and words.
fn noted(bed: &Bed, pod: &Pod) -> Vec<(&'static str, String, String)> {
    let notes = bed.volumes.notes().take(&pod.uid);
    let claim = ClaimIdentity { namespace: "default".into(), name: "data".into(), uid: "u-data".into() };
    let subject = VolumeNoteSubject::Claim(claim);
    assert!(notes.iter().all(|told| told.subject == subject), "{notes:?}");
    let told = notes.into_iter().map(|told| told.note);
    told.map(|note| (note.kind.as_str(), note.reason.into_owned(), note.message)).collect()
}

#[tokio::test]
async fn growth_is_told_of_the_pod_and_of_its_claim_and_once() {
    let bed = Bed::new();
    bed.driver.can_expand();
    let (pod, pending) = (pod("a"), growing("NodeResizePending"));
    bed.driver.fails("expand", Trouble::Refused(Code::Internal));
    bed.mount(&pod, &pending).await.unwrap_err();
    assert_eq!(noted(&bed, &pod), [], "the claim's condition tells it, as upstream");
    bed.patiently(&pod, &pending).await;
    let words = "MountVolume.NodeExpandVolume succeeded for volume \"pv\" n1".to_owned();
    assert_eq!(noted(&bed, &pod), [("Normal", "FileSystemResizeSuccessful".to_owned(), words)]);
    bed.mount(&pod, &wanted()).await.unwrap();
    assert_eq!(noted(&bed, &pod), []);
}

#[tokio::test]
async fn a_volume_that_is_only_read_does_not_grow_and_that_is_told_when_the_pod_gets_it() {
    let bed = Bed::new();
    bed.driver.can_expand();
    let (pod, pending) = (pod("a"), WantedVolume { read_only: true, ..growing("NodeResizePending") });
    bed.mount(&pod, &pending).await.unwrap();
    let words = "MountVolume.NodeExpandVolume failed for volume \"pv\" requested read-only file system";
    assert_eq!(noted(&bed, &pod), [("Warning", "FileSystemResizeFailed".to_owned(), words.to_owned())]);
    bed.mount(&pod, &pending).await.unwrap();
    assert_eq!(
        (noted(&bed, &pod), bed.driver.calls()),
        (vec![], vec!["stage h1".to_owned(), "publish h1 a".to_owned()])
    );
    assert_eq!(bed.volumes.growing().await, BTreeSet::new(), "nobody looks at its claim");
    let other = super::pod("b");
    let claim = pending.claim.clone().map(|claim| WantedClaim { outgrown: false, ..claim });
    bed.mount(&other, &WantedVolume { claim, ..pending }).await.unwrap();
    assert_eq!(noted(&bed, &other), []);
}
