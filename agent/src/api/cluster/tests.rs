//! The API server's objects as pods see them, on a fake server and paused time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use gantry_kube_client::fake_apiserver::{FakeApiServer, InjectedFault, Wrong};
use gantry_model::clock::FakeClock;
use gantry_model::pod::token::TokenOf;
use gantry_model::pod::volume::{KeysOf, Projection, TokenFile, Volume, VolumeSource};
use gantry_model::pod::{Pod, PodUid};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Cluster;
use crate::api::Api;
use crate::pod::tests::pod;

const NOW: i64 = 1_800_000_000;

fn start() -> (FakeApiServer, Cluster, Arc<FakeClock>) {
    let (server, clock) = (FakeApiServer::default(), Arc::new(FakeClock::new(NOW)));
    server.set_now(NOW);
    let cluster = Cluster::new(server.client(), clock.clone());
    (server, cluster, clock)
}

fn map(value: &str) -> Value {
    json!({ "data": { "key": value } })
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/default/configmaps/{name}")
}

fn with(uid: &str, sources: Vec<Projection>) -> Pod {
    let source = VolumeSource::Projected {
        sources,
        default_mode: 0o644,
        memory: true,
        plugin: "kubernetes.io~projected",
    };
    Pod { uid: PodUid::parse(uid).unwrap(), volumes: vec![Volume { name: "v".into(), source }], ..pod() }
}

fn of_map(name: &str) -> Projection {
    Projection::ConfigMap(KeysOf { name: name.into(), items: vec![], optional: false })
}

async fn value(cluster: &Cluster, name: &str) -> Option<String> {
    cluster.config_map("default", name).await.unwrap().map(|map| map.data["key"].clone())
}

async fn rises(revision: &mut watch::Receiver<u64>) {
    let waited = tokio::time::timeout(Duration::from_secs(120), revision.changed()).await;
    waited.expect("no change was told").expect("the source is gone");
}

/// How many lists and watches of one object were asked for since the last look.
fn requests(server: &FakeApiServer, name: &str) -> (usize, usize) {
    let selector = format!("metadata.name%3D{name}&");
    let asked = server.requests();
    let of_it = || asked.iter().filter(|asked| asked.query.contains(&selector));
    let watches = of_it().filter(|asked| asked.query.contains("watch=true")).count();
    (of_it().count() - watches, watches)
}

#[tokio::test(start_paused = true)]
async fn trap_13_many_pods_have_one_watch_for_one_object_and_hear_of_its_change() {
    let (server, cluster, _) = start();
    server.put(&path("a"), map("1"));
    let pods = ["u1", "u2", "u3"].map(|uid| with(uid, vec![of_map("a")]));
    let mut revisions = pods.each_ref().map(|pod| cluster.follow(pod));
    assert_eq!(value(&cluster, "a").await.as_deref(), Some("1"));
    server.put(&path("a"), map("2"));
    for revision in &mut revisions {
        rises(revision).await;
    }
    assert_eq!(value(&cluster, "a").await.as_deref(), Some("2"));
    assert_eq!(requests(&server, "a"), (1, 1));
    // The last one to go ends the watch, and a new one begins anew.
    for pod in &pods {
        cluster.forget(&pod.uid);
    }
    let mut again = cluster.follow(&pods[0]);
    assert_eq!(value(&cluster, "a").await.as_deref(), Some("2"));
    again.mark_unchanged();
    server.remove(&path("a"));
    rises(&mut again).await;
    assert_eq!(value(&cluster, "a").await, None);
    assert_eq!(requests(&server, "a"), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn trap_13_what_never_changes_is_not_watched_and_what_is_missing_may_appear() {
    let (server, cluster, _) = start();
    let mut fixed = map("1");
    fixed["immutable"] = json!(true);
    server.put(&path("fixed"), fixed);
    let mut revision = cluster.follow(&with("u", vec![of_map("fixed"), of_map("later")]));
    assert_eq!(value(&cluster, "fixed").await.as_deref(), Some("1"));
    assert_eq!(value(&cluster, "later").await, None);
    server.put(&path("later"), map("here"));
    rises(&mut revision).await;
    assert_eq!(value(&cluster, "later").await.as_deref(), Some("here"));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(value(&cluster, "fixed").await.as_deref(), Some("1"));
    let (lists, watches) = requests(&server, "fixed");
    assert!(lists == 1 && watches <= 1, "{lists} lists, {watches} watches");
}

#[tokio::test(start_paused = true)]
async fn what_is_known_stays_good_while_the_server_is_away() {
    let (server, cluster, _) = start();
    server.put(&path("a"), map("1"));
    let _revision = cluster.follow(&with("u", vec![of_map("a")]));
    assert_eq!(value(&cluster, "a").await.as_deref(), Some("1"));
    server.set_down(true);
    server.cut();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(value(&cluster, "a").await.as_deref(), Some("1"));
    let _other = cluster.follow(&with("w", vec![of_map("b")]));
    let error = cluster.config_map("default", "b").await.unwrap_err().to_string();
    assert!(error.starts_with("failed to sync configmap cache: "), "{error}");
    server.put(&path("a"), map("2"));
    server.set_down(false);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(value(&cluster, "a").await.as_deref(), Some("2"));
}

#[tokio::test(start_paused = true)]
async fn trap_12_a_refusal_just_after_the_binding_is_tried_again() {
    let (server, cluster, _) = start();
    server.put(&path("a"), map("1"));
    let refused = |path: &str| InjectedFault {
        method: String::new(),
        path: path.into(),
        what: Wrong::Refused(403, "Forbidden"),
        times: 3,
    };
    server.fault(refused("configmaps"));
    server.fault(refused("token"));
    let _revision = cluster.follow(&with("u", vec![of_map("a")]));
    assert_eq!(value(&cluster, "a").await.as_deref(), Some("1"));
    assert_eq!(cluster.token(&token("u")).await.unwrap().text, "token-1");
    // An object that nobody follows, too.
    server.put(&path("alone"), map("x"));
    server.fault(refused("configmaps/alone"));
    assert_eq!(value(&cluster, "alone").await.as_deref(), Some("x"));
}

fn token(uid: &str) -> TokenOf {
    let file = TokenFile { path: "token".into(), audience: String::new(), seconds: 3600 };
    file.of(&with(uid, vec![]))
}

#[tokio::test(start_paused = true)]
async fn trap_12_tokens_are_shared_renewed_when_due_and_kept_while_they_are_valid() {
    let (server, cluster, _clock) = start();
    let file = TokenFile { path: "token".into(), audience: String::new(), seconds: 3600 };
    let mut revision = cluster.follow(&with("u", vec![Projection::Token(file)]));
    let get = async || cluster.token(&token("u")).await.map(|token| token.text);
    assert_eq!(get().await.unwrap(), "token-1");
    assert_eq!(get().await.unwrap(), "token-1");
    assert_eq!(cluster.token(&token("other")).await.unwrap().text, "token-2", "bound to another pod");
    let asked = server.requests();
    let body = &asked.iter().find(|asked| asked.path.ends_with("/token")).unwrap().body;
    assert_eq!(
        body["spec"]["boundObjectRef"],
        json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u" })
    );
    // Due after 48 minutes: the pod hears of it.
    tokio::time::sleep(Duration::from_secs(2900)).await;
    rises(&mut revision).await;
    server.set_down(true);
    assert_eq!(get().await.unwrap(), "token-1", "still valid");
    tokio::time::sleep(Duration::from_secs(800)).await;
    let error = get().await.unwrap_err().to_string();
    assert!(error.contains("expired and refresh failed"), "{error}");
    server.set_down(false);
    server.set_now(NOW + 3700);
    assert_eq!(get().await.unwrap(), "token-3");
    cluster.forget(&PodUid::parse("u").unwrap());
    assert_eq!(get().await.unwrap(), "token-4");
}

#[tokio::test(start_paused = true)]
async fn only_tokens_of_volumes_wake_their_pods_when_they_are_due() {
    let (_server, cluster, _) = start();
    let file = TokenFile { path: "token".into(), audience: String::new(), seconds: 3600 };
    let mut holds = cluster.follow(&with("u", vec![Projection::Token(file)]));
    let other = cluster.follow(&with("w", vec![]));
    // One that a pull was asked for with: nothing of the pod has to be set up again for it.
    let of_pull = TokenOf { audiences: vec!["registry".into()], ..token("w") };
    for of in [&token("u"), &of_pull] {
        cluster.token(of).await.unwrap();
    }
    holds.mark_unchanged();
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert!(holds.has_changed().unwrap());
    assert!(!other.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn services_and_classes_are_known_as_a_whole() {
    let (server, cluster, _) = start();
    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP" }]);
    server.put(
        "/api/v1/namespaces/default/services/web",
        json!({ "spec": { "clusterIP": "10.0.0.7", "ports": ports } }),
    );
    server.put("/api/v1/namespaces/other/services/db", json!({ "spec": { "clusterIP": "None" } }));
    server.put("/apis/node.k8s.io/v1/runtimeclasses/kata", json!({ "handler": "kata-qemu" }));
    let services = cluster.services("default").await.unwrap();
    assert_eq!(services.len(), 1);
    assert_eq!((services[0].cluster_ip.as_str(), services[0].ports[0].port), ("10.0.0.7", 80));
    assert_eq!(
        cluster.runtime_handler("kata").await.unwrap().as_deref().map(String::as_str),
        Some("kata-qemu")
    );
    assert_eq!(cluster.runtime_handler("none").await.unwrap(), None);
    server.set_down(true);
    server.cut();
    assert_eq!(cluster.services("default").await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_status_has_null_for_a_time_hides_no_service_that_comes_later() {
    let (server, cluster, _) = start();
    server.put("/api/v1/namespaces/default/services/first", json!({ "spec": { "clusterIP": "10.0.0.7" } }));
    assert_eq!(cluster.services("default").await.unwrap().len(), 1);
    // As Go writes a time that nobody has set.
    let condition = json!({ "type": "StatusUpdate", "status": "True", "lastTransitionTime": null });
    let status = json!({ "conditions": [condition] });
    server.put("/api/v1/namespaces/default/services/odd", json!({ "spec": {}, "status": status }));
    server.put("/api/v1/namespaces/default/services/web", json!({ "spec": { "clusterIP": "10.0.0.9" } }));
    for _ in 0..60 {
        if cluster.services("default").await.unwrap().len() == 3 {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("{:?}", cluster.services("default").await);
}

#[tokio::test(start_paused = true)]
async fn claims_and_their_volumes_are_read_when_asked_for() {
    let (server, cluster, _) = start();
    assert_eq!(cluster.claim("default", "c").await.unwrap(), None);
    server.put(
        "/api/v1/namespaces/default/persistentvolumeclaims/c",
        json!({ "spec": { "volumeName": "pv" }, "status": { "phase": "Bound" } }),
    );
    server.put("/api/v1/persistentvolumes/pv", json!({ "spec": { "local": { "path": "/data" } } }));
    let expression = json!({ "key": "zone", "operator": "In", "values": ["a"] });
    let terms = json!([{ "matchExpressions": [expression] }]);
    server.put(
        "/api/v1/persistentvolumes/bound",
        json!({ "spec": { "local": { "path": "/data" }, "accessModes": ["ReadWriteOncePod"],
            "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } } }),
    );
    server.put("/apis/storage.k8s.io/v1/csidrivers/d", json!({ "spec": { "seLinuxMount": true } }));
    let labels = [("zone".to_owned(), "a".to_owned())].into();
    let bound = cluster.persistent_volume("bound").await.unwrap().unwrap();
    assert_eq!(
        (bound.access_mode, cluster.csi_driver("d").await.unwrap().unwrap().se_linux_mount),
        ("RWOP", true)
    );
    assert!(bound.one_pod && crate::admission::any_fits(bound.affinity.as_deref().unwrap(), &labels));
    let claim = cluster.claim("default", "c").await.unwrap().unwrap();
    assert!(claim.bound && claim.volume == "pv" && !claim.block);
    let volume = cluster.persistent_volume("pv").await.unwrap().unwrap();
    let (fs_type, mount_options) = (String::new(), Vec::new());
    let local = crate::api::PersistentSource::Local { path: "/data".into(), fs_type, mount_options };
    assert_eq!(volume.source, local);
    assert_eq!((volume.one_pod, &volume.affinity), (false, &None));
}

#[tokio::test(start_paused = true)]
async fn why_a_volume_is_not_attached_is_read_with_its_code() {
    let (server, cluster, _) = start();
    assert_eq!(cluster.attachment("a").await.unwrap(), None);
    let put = |name: &str, error: Value| {
        let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
        let spec = json!({ "attacher": "d", "nodeName": "n", "source": { "persistentVolumeName": "pv" } });
        server.put(&path, json!({ "spec": spec, "status": { "attached": false, "attachError": error } }));
    };
    put("a", json!({ "message": "full", "errorCode": 8 }));
    put("b", json!({ "message": "lost" }));
    for (name, why, code) in [("a", "full", Some(8)), ("b", "lost", None)] {
        let found = cluster.attachment(name).await.unwrap().unwrap();
        assert_eq!((found.attached, found.error.as_deref(), found.error_code), (false, Some(why), code));
    }
}

/// Anything else that changes of a driver's object is the same once more.
#[tokio::test(start_paused = true)]
async fn periods_of_drivers_are_told_as_they_change() {
    let (server, cluster, _) = start();
    let path = |name: &str| format!("/apis/storage.k8s.io/v1/csidrivers/{name}");
    let put = |name: &str, period: Value| {
        let spec = json!({ "nodeAllocatableUpdatePeriodSeconds": period });
        server.put(&path(name), json!({ "metadata": { "name": name }, "spec": spec }));
    };
    put("a", json!(10));
    put("b", Value::Null);
    put("c", json!(0));
    let mut told = cluster.allocatable_periods();
    let periods = |of: &[(&str, u64)]| -> BTreeMap<String, Duration> {
        of.iter().map(|(name, period)| ((*name).to_owned(), Duration::from_secs(*period))).collect()
    };
    assert_eq!(told.next().await.unwrap(), periods(&[("a", 10)]));
    put("b", json!(60));
    assert_eq!(told.next().await.unwrap(), periods(&[("a", 10), ("b", 60)]));
    server.remove(&path("a"));
    assert_eq!(told.next().await.unwrap(), periods(&[("b", 60)]));
}

#[tokio::test(start_paused = true)]
async fn a_claim_to_devices_is_read_with_who_made_it_who_may_use_it_and_whose_devices_it_has() {
    let (server, cluster, _) = start();
    let path = |name: &str| format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
    assert_eq!(cluster.resource_claim("default", "c").await.unwrap(), None);
    let owner = |uid: &str, controller: bool| json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller });
    let device = |driver: &str| json!({ "request": "r", "driver": driver, "pool": "n", "device": "d", "shareID": null });
    server.put(
        &path("c"),
        json!({ "metadata": { "uid": "u-1", "ownerReferences": [owner("other", false), owner("p-1", true)] },
            "status": { "reservedFor": [{ "resource": "pods", "name": "p", "uid": "p-1" }],
                "allocation": { "devices": { "results": [device("a.test"), device("b.test"), device("a.test")] } } } }),
    );
    server.put(&path("free"), json!({ "metadata": { "uid": "u-2" }, "status": {} }));
    let read = async |name: &str| (*cluster.resource_claim("default", name).await.unwrap().unwrap()).clone();
    assert_eq!(
        read("c").await,
        crate::api::ResourceClaim {
            uid: "u-1".into(),
            controller: "p-1".into(),
            reserved_for: vec!["p-1".into()],
            drivers: Some(["a.test", "b.test"].map(str::to_owned).into()),
        }
    );
    let free = crate::api::ResourceClaim { uid: "u-2".into(), ..Default::default() };
    assert_eq!(read("free").await, free);
}

#[tokio::test(start_paused = true)]
async fn an_nfs_volume_has_the_options_of_its_annotation_else_its_own() {
    let (server, cluster, _) = start();
    let spec = json!({ "nfs": { "server": "nas", "path": "/e", "readOnly": true }, "mountOptions": ["hard", "nfsvers=4.1"] });
    server.put("/api/v1/persistentvolumes/plain", json!({ "spec": spec }));
    let annotations = json!({ "volume.beta.kubernetes.io/mount-options": "soft,ro" });
    let annotated = json!({ "metadata": { "annotations": annotations }, "spec": spec });
    server.put("/api/v1/persistentvolumes/annotated", annotated);
    for (name, options) in [("plain", ["hard", "nfsvers=4.1"]), ("annotated", ["soft", "ro"])] {
        let volume = cluster.persistent_volume(name).await.unwrap().unwrap();
        let source = crate::api::NfsSource {
            server: "nas".into(),
            path: "/e".into(),
            mount_options: options.map(str::to_owned).to_vec(),
        };
        assert_eq!(volume.source, crate::api::PersistentSource::Nfs(source));
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_path_tells_of_the_options_that_it_cannot_have() {
    let (server, cluster, _) = start();
    let spec = json!({ "hostPath": { "path": "/data" }, "mountOptions": ["noexec"] });
    server.put("/api/v1/persistentvolumes/pv", json!({ "spec": spec }));
    let volume = cluster.persistent_volume("pv").await.unwrap().unwrap();
    let mount_options = vec!["noexec".to_owned()];
    let source =
        crate::api::PersistentSource::HostPath { path: "/data".into(), kind: String::new(), mount_options };
    assert_eq!(volume.source, source);
}

#[tokio::test(start_paused = true)]
async fn an_iscsi_volume_is_read_with_the_api_servers_defaults() {
    let (server, cluster, _) = start();
    let iscsi = json!({
        "targetPortal": "10.0.0.1", "portals": ["10.0.0.2:3261"], "iqn": "iqn.2003-01.io.k8s:a", "lun": 3, "fsType": "xfs",
        "readOnly": true, "chapAuthDiscovery": true, "secretRef": { "name": "chap", "namespace": "storage" },
        "initiatorName": "iqn.2020-01.a:b",
    });
    let spec = json!({ "iscsi": iscsi, "mountOptions": ["noatime"] });
    server.put("/api/v1/persistentvolumes/disk", json!({ "spec": spec }));
    let volume = gantry_model::pod::volume::IscsiVolume {
        target_portal: "10.0.0.1".into(),
        portals: vec!["10.0.0.2:3261".into()],
        iqn: "iqn.2003-01.io.k8s:a".into(),
        lun: 3,
        interface: "default".into(),
        initiator: Some("iqn.2020-01.a:b".into()),
        discovery_chap: true,
        session_chap: false,
        secret: Some(("storage".into(), "chap".into())),
        fs_type: "xfs".into(),
        // The claim in the pod says it.
        read_only: false,
    };
    let source = crate::api::IscsiSource { volume, mount_options: vec!["noatime".into()] };
    let read = cluster.persistent_volume("disk").await.unwrap().unwrap();
    assert_eq!(read.source, crate::api::PersistentSource::Iscsi(Box::new(source)));
}
