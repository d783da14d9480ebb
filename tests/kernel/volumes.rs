//! The agent's volumes and cgroup tree where they need root: mounts, trap 11, sub-paths, classes.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gantry_agent::api::Api;
use gantry_agent::cgroups::Cgroups;
use gantry_agent::cgroups::tree::Tree;
use gantry_agent::node::NodeInfo;
use gantry_agent::volumes::host::HostVolumes;
use gantry_agent::volumes::{MountsOf, PodFacts, Volumes};
use gantry_agent::{cgroups, manifest, volumes};
use gantry_model::cgroup::limits::of_pod;
use gantry_model::mount::Mount;
use gantry_model::pod::Pod;
use gantry_model::pod::volume::{Medium, VolumeSource};
use gantry_tests::leakcheck::{mounts, tagged_cgroups};
use gantry_tests::not_run;
use gantry_tests::place::{self, cgroup, driver};

/// What manifests describe, with volumes in a folder of their own.
pub(crate) struct VolumeFixture {
    pub(crate) root: tempfile::TempDir,
    pub(crate) volumes: HostVolumes,
    pods: Vec<Pod>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

pub(crate) fn place_of(text: &str) -> Result<VolumeFixture> {
    place::require_own_namespaces()?;
    let root = tempfile::tempdir()?;
    let file = root.path().join("pods.yaml");
    fs::write(&file, text.replace("ROOT", &root.path().to_string_lossy()))?;
    let loaded = manifest::load(&[file]).context("the manifest is right")?;
    let api: Arc<dyn Api> = Arc::new(loaded.objects);
    let node = Arc::new(NodeInfo {
        name: "n".into(),
        ips: Vec::new().into(),
        cluster_domain: "cluster.local".into(),
        cpu: 2000,
        memory: 1 << 30,
        ephemeral: 0,
        ..NodeInfo::default()
    });
    let volumes = HostVolumes::new(&root.path().join("kubelet"), api, node, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(VolumeFixture { root, volumes, pods: loaded.pods, runtime })
}

impl VolumeFixture {
    pub(crate) fn pod(&self) -> Result<&Pod> {
        self.pods.first().context("a pod")
    }

    pub(crate) fn pods(&self) -> &[Pod] {
        &self.pods
    }

    pub(crate) fn folder(&self) -> Result<PathBuf> {
        Ok(self.root.path().join("kubelet/pods").join(self.pod()?.uid.as_str()))
    }

    pub(crate) fn set_up(&self) -> Result<()> {
        Ok(self.runtime.block_on(self.volumes.set_up(self.pod()?))?)
    }

    pub(crate) fn mounts(&self) -> Result<Vec<Mount>> {
        let pod = self.pod()?;
        let container = pod.containers.first().context("a container")?;
        let facts = PodFacts { ips: vec!["10.0.0.2".into()] };
        let of = MountsOf { pod, container, attempt: 0, env: &[], facts: &facts, images: &[] };
        Ok(self.runtime.block_on(self.volumes.mounts(of))?)
    }

    pub(crate) fn tear_down(&self) -> Result<()> {
        Ok(self.runtime.block_on(self.volumes.tear_down(&self.pod()?.uid))?)
    }
}

pub(crate) fn mounted_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let below = mounts()?.into_iter().map(|mount| mount.point).filter(|point| point.starts_with(folder));
    Ok(below.collect())
}

const VOLUMES: &str = "
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {key: hidden}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  securityContext: {fsGroup: 4242}
  volumes:
  - {name: secret, secret: {secretName: s, defaultMode: 0400}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: disk, emptyDir: {}}
  - {name: host, hostPath: {path: ROOT/data, type: DirectoryOrCreate}}
  containers:
  - name: c
    image: i
    volumeMounts:
    - {name: host, mountPath: /a, subPath: sub/dir}
    - {name: host, mountPath: /b, subPath: file}
    - {name: secret, mountPath: /c, subPath: key}
    - {name: memory, mountPath: /d}
";

#[test]
fn memory_is_mounted_with_its_limit_and_belongs_to_the_group() -> Result<()> {
    let place = place_of(VOLUMES)?;
    place.runtime.block_on(volumes::contract::check(&place.volumes, place.pod()?))?;
    place.set_up()?;
    place.set_up()?;
    let folder = place.folder()?;
    assert_eq!(mounted_below(&folder)?.len(), 2, "one tmpfs each, however often it is set up");
    let memory = folder.join("volumes/kubernetes.io~empty-dir/memory");
    let size = rustix::fs::statvfs(&memory)?;
    assert_eq!(size.f_blocks * size.f_frsize, 1 << 20);
    let full = fs::write(memory.join("big"), vec![1; 2 << 20]).expect_err("more than the limit");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let key = folder.join("volumes/kubernetes.io~secret/secret/key");
    assert_eq!(fs::read_to_string(&key)?, "hidden");
    let stat = rustix::fs::stat(&key)?;
    assert_eq!((stat.st_mode & 0o777, stat.st_gid), (0o440, 4242));
    let stat = rustix::fs::stat(&memory)?;
    assert_eq!((stat.st_mode & 0o7777, stat.st_gid), (0o3777, 4242));
    // The host's own folder is nobody's to change.
    assert_eq!(rustix::fs::stat(place.root.path().join("data"))?.st_gid, 0);
    place.tear_down()?;
    assert_eq!(mounted_below(place.root.path())?, Vec::<PathBuf>::new());
    Ok(())
}

fn ask_for_pages(place: &mut VolumeFixture, resource: &str) -> Result<()> {
    let pod = place.pods.first_mut().context("a pod")?;
    let container = pod.containers.first_mut().context("a container")?;
    container.written.requests = [(resource.to_owned(), "1Gi".to_owned())].into();
    Ok(())
}

#[test]
fn huge_pages_are_mounted_in_the_size_that_the_pod_asks_for_and_belong_to_the_group() -> Result<()> {
    if !Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists() {
        not_run("the kernel has no huge pages of 2 MiB");
        return Ok(());
    }
    let mut place = place_of(VOLUMES)?;
    let pod = place.pods.first_mut().context("a pod")?;
    let volume = pod.volumes.iter_mut().find(|volume| volume.name == "memory").context("a volume")?;
    volume.source = VolumeSource::EmptyDir { medium: Medium::HugePages(None), size_limit: None };
    let refused = place.set_up().expect_err("nobody asks for pages");
    assert!(refused.to_string().contains("there is no resource request for huge pages"), "{refused}");
    ask_for_pages(&mut place, "hugepages-2Mi")?;
    place.set_up()?;
    place.set_up()?;
    let folder = place.folder()?;
    let on = folder.join("volumes/kubernetes.io~empty-dir/memory");
    let kinds: Vec<_> =
        mounts()?.into_iter().filter(|mount| mount.point == on).map(|mount| mount.kind).collect();
    assert_eq!(kinds, ["hugetlbfs"], "once, however often it is set up");
    assert_eq!(rustix::fs::statvfs(&on)?.f_bsize, 2 << 20);
    assert_eq!(fs::metadata(&on)?.gid(), 4242);
    ask_for_pages(&mut place, "hugepages-1Gi")?;
    let refused = place.set_up().expect_err("pages of 2Mi are mounted");
    assert!(
        refused.to_string().contains("pagesize '2Mi' and requested medium size '1Gi' differ"),
        "{refused}"
    );
    place.tear_down()?;
    assert_eq!(mounted_below(&folder)?, Vec::<PathBuf>::new());
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn a_sub_path_is_bound_from_below_its_volume_only() -> Result<()> {
    let place = place_of(VOLUMES)?;
    place.set_up()?;
    let data = place.root.path().join("data");
    fs::write(data.join("file"), "one")?;
    let made = place.mounts()?;
    let bound = |path: &str| -> Result<PathBuf> {
        let mount = made.iter().find(|mount| mount.container_path == path).context("the mount")?;
        Ok(mount.host_path.clone())
    };
    fs::write(bound("/a")?.join("new"), "x")?;
    assert_eq!(fs::read_to_string(data.join("sub/dir/new"))?, "x", "made where it was missing");
    assert_eq!(fs::read_to_string(bound("/b")?)?, "one");
    assert_eq!(fs::read_to_string(bound("/c")?)?, "hidden", "through the links of the projection");
    let count = mounted_below(&place.folder()?)?.len();
    place.mounts()?;
    assert_eq!(mounted_below(&place.folder()?)?.len(), count, "what is bound already is kept");
    // The container has exchanged the file: the next one gets what is there now.
    fs::remove_file(data.join("file"))?;
    fs::write(data.join("file"), "two")?;
    place.mounts()?;
    assert_eq!(fs::read_to_string(bound("/b")?)?, "two");
    // CVE-2021-25741: a link out of the volume in the sub-path's place.
    let outside = place.root.path().join("outside");
    fs::create_dir(&outside)?;
    fs::remove_dir_all(data.join("sub"))?;
    symlink(&outside, data.join("sub"))?;
    let error = place.mounts().expect_err("leads out of the volume").to_string();
    assert_eq!(error, "failed to prepare subPath for volumeMount \"host\" of container \"c\"");
    assert!(!outside.join("dir").exists());
    place.tear_down()?;
    assert_eq!(mounted_below(place.root.path())?, Vec::<PathBuf>::new());
    Ok(())
}

#[test]
fn trap_11_nothing_behind_a_mount_is_ever_removed() -> Result<()> {
    let place = place_of(VOLUMES)?;
    place.set_up()?;
    let data = place.root.path().join("data");
    fs::write(data.join("file"), "precious")?;
    place.mounts()?;
    let folder = place.folder()?;
    // What nobody remembers: the host's folder bound into an emptyDir, on the same disk.
    let left = folder.join("volumes/kubernetes.io~empty-dir/disk/left");
    fs::create_dir(&left)?;
    rustix::mount::mount_bind(&data, &left)?;
    // Somebody is still in the tmpfs.
    let memory = folder.join("volumes/kubernetes.io~empty-dir/memory");
    fs::write(memory.join("kept"), "kept")?;
    let open = fs::File::open(memory.join("kept"))?;
    let error = place.tear_down().expect_err("a volume is in use").to_string();
    assert!(error.contains("memory is still mounted"), "{error}");
    assert_eq!(fs::read_to_string(memory.join("kept"))?, "kept", "not one file is lost");
    assert!(folder.exists());
    assert_eq!(fs::read_to_string(data.join("file"))?, "precious");
    drop(open);
    place.tear_down()?;
    place.tear_down()?;
    assert!(!folder.exists());
    assert_eq!(fs::read_to_string(data.join("file"))?, "precious");
    assert_eq!(mounted_below(place.root.path())?, Vec::<PathBuf>::new());
    Ok(())
}

const CLASSES: &str = "
apiVersion: v1
kind: Pod
metadata: {name: guaranteed}
spec: {containers: [{name: c, image: i, resources: {limits: {cpu: 500m, memory: 64Mi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: burstable}
spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 250m}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: besteffort}
spec: {containers: [{name: c, image: i}]}
";

#[test]
fn pods_stand_in_the_tree_of_their_classes_and_leave_nothing() -> Result<()> {
    let place = place_of(CLASSES)?;
    let tag = format!("gantry_tree_{}", std::process::id());
    let tree = Tree::new(&format!("/{tag}"), 2000, driver())?;
    for pod in &place.pods {
        place.runtime.block_on(cgroups::contract::check(&tree, pod))?;
    }
    let mut parents = Vec::new();
    for pod in &place.pods {
        parents.push(place.runtime.block_on(tree.set_up(pod, &of_pod(pod, &tree.rules())))?);
        place.runtime.block_on(tree.set_up(pod, &of_pod(pod, &tree.rules())))?;
    }
    for (parent, (pod, class)) in
        parents.iter().zip(place.pods.iter().zip([None, Some("burstable"), Some("besteffort")]))
    {
        let own = format!("pod{}", pod.uid);
        let steps: Vec<&str> = [&tag, "kubepods"].into_iter().chain(class).chain([own.as_str()]).collect();
        assert_eq!(*parent, cgroup(&steps));
    }
    let value = |path: &str, v1: &str, v2: &str| -> Result<String> {
        let folders = tagged_cgroups(&tag)?;
        let found = folders.iter().filter(|folder| folder.ends_with(path.trim_start_matches('/')));
        let mut files =
            found.flat_map(|folder| [folder.join(v1), folder.join(v2)]).filter(|file| file.exists());
        let file = files.next().with_context(|| format!("{v1} or {v2} of {path}"))?;
        Ok(fs::read_to_string(file)?.trim().to_owned())
    };
    assert_eq!(value(&parents[0], "memory.limit_in_bytes", "memory.max")?, (64 << 20).to_string());
    let quota = value(&parents[0], "cpu.cfs_quota_us", "cpu.max")?;
    assert!(matches!(quota.as_str(), "50000" | "50000 100000"), "{quota}");
    let class = value(&cgroup(&[&tag, "kubepods", "burstable"]), "cpu.shares", "cpu.weight")?;
    let pods = value(&parents[1], "cpu.shares", "cpu.weight")?;
    assert_eq!(class, pods, "the class weighs what its only pod does");
    let best = value(&cgroup(&[&tag, "kubepods", "besteffort"]), "cpu.shares", "cpu.weight")?;
    assert!(matches!(best.as_str(), "2" | "1"), "{best}");
    leftovers_are_killed(&place, &tree, &parents[2], &tag)?;
    for pod in &place.pods {
        place.runtime.block_on(tree.tear_down(&pod.uid))?;
        place.runtime.block_on(tree.tear_down(&pod.uid))?;
    }
    assert_eq!(tagged_cgroups(&tag)?, Vec::<PathBuf>::new());
    Ok(())
}

/// A container's cgroup, as the runtime makes it, with a process that nobody stopped.
fn leftovers_are_killed(place: &VolumeFixture, tree: &Tree, parent: &str, tag: &str) -> Result<()> {
    let pod = place.pods.last().context("the last pod")?;
    let mut sleeper = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn()?;
    let mut entered = 0;
    for folder in tagged_cgroups(tag)?.iter().filter(|f| f.ends_with(parent.trim_start_matches('/'))) {
        let inner = folder.join("container");
        fs::create_dir(&inner)?;
        // A fresh cpuset takes nobody.
        if fs::write(inner.join("cgroup.procs"), sleeper.id().to_string()).is_ok() {
            entered += 1;
        }
    }
    ensure!(entered > 0, "no cgroup took the process");
    let torn = place.runtime.block_on(tree.tear_down(&pod.uid));
    if torn.is_err() {
        sleeper.kill()?;
    }
    torn?;
    let status = sleeper.wait()?;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
    Ok(())
}
