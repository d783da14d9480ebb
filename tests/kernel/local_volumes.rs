//! Folders of the node as volumes of pods, where they need root: bound for each pod, and of the first pod's group.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gantry_agent::api::fake::FakeApi;
use gantry_agent::api::{Claim, PersistentSource, PersistentVolume};
use gantry_agent::manifest;
use gantry_agent::volumes::Volumes;
use gantry_model::pod::Pod;
use gantry_model::pod::volume::{ClaimRef, Volume, VolumeSource};
use gantry_tests::leakcheck::mounts;
use gantry_tests::place;

use crate::block::volumes;

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {securityContext: {fsGroup: 4242}, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec: {securityContext: {fsGroup: 4343}, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec: {securityContext: {fsGroup: 4444}, containers: [{name: c, image: i}]}
";

fn objects(folder: &Path) -> Arc<FakeApi> {
    let api = Arc::new(FakeApi::default());
    api.put_claim("c", Claim { volume: "pv".into(), bound: true, uid: "u".into(), ..Claim::default() });
    let volume = PersistentVolume {
        source: PersistentSource::Local { path: folder.to_string_lossy().into_owned() },
        claim_uid: "u".into(),
        one_pod: false,
        access_mode: "RWO",
        affinity: None,
        capacity: String::new(),
    };
    api.put_volume("pv", volume);
    api
}

/// An API server's pods alone have claims.
fn with_claim(pod: Pod, read_only: bool) -> Pod {
    let source = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only };
    Pod { volumes: vec![Volume { name: "data".into(), source }], ..pod }
}

#[test]
fn a_local_volume_has_the_group_of_the_first_pod_that_writes_to_it() -> Result<()> {
    place::require_own_namespaces()?;
    let root = tempfile::tempdir()?;
    let root = root.path().canonicalize()?;
    let (disk, kubelet, file) = (root.join("disk"), root.join("kubelet"), root.join("pods.yaml"));
    fs::create_dir(&disk)?;
    fs::create_dir(&kubelet)?;
    fs::write(disk.join("file"), "x")?;
    fs::write(&file, PODS)?;
    let pods = manifest::load(&[file]).context("the manifest is right")?.pods;
    let [one, other, reader] = &pods[..] else { panic!("three pods") };
    let [one, other, reader] =
        [(one, false), (other, false), (reader, true)].map(|(pod, reads)| with_claim(pod.clone(), reads));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let own = volumes(&kubelet, &objects(&disk));
    let group =
        || -> Result<[u32; 2]> { Ok([fs::metadata(&disk)?.gid(), fs::metadata(disk.join("file"))?.gid()]) };
    let bound = |pod: &Pod| -> Result<usize> {
        let point = kubelet.join("pods").join(pod.uid.as_str()).join("volumes/kubernetes.io~local-volume/pv");
        Ok(mounts()?.iter().filter(|mount| mount.point == point).count())
    };
    runtime.block_on(own.set_up(&reader))?;
    ensure!((bound(&reader)?, group()?) == (1, [0, 0]), "it only reads");
    runtime.block_on(own.tear_down(&reader.uid))?;
    runtime.block_on(own.set_up(&one))?;
    ensure!((bound(&one)?, group()?) == (1, [4242, 4242]));
    runtime.block_on(own.set_up(&other))?;
    ensure!((bound(&other)?, group()?) == (1, [4242, 4242]), "one has it");
    runtime.block_on(own.tear_down(&one.uid))?;
    runtime.block_on(own.tear_down(&other.uid))?;
    runtime.block_on(own.set_up(&other))?;
    ensure!((bound(&other)?, group()?) == (1, [4343, 4343]), "nobody else has it any more");
    runtime.block_on(own.tear_down(&other.uid))?;
    let left: Vec<PathBuf> =
        mounts()?.into_iter().map(|mount| mount.point).filter(|point| point.starts_with(&kubelet)).collect();
    ensure!(left.is_empty() && disk.join("file").exists(), "{left:?}");
    Ok(())
}
