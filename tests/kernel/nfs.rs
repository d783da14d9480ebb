//! Volumes of an NFS server that the kernel of the small VM is: real mounts, by the machine's own mount(8).

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use gantry_agent::api::fake::{FakeApi, claim_to, volume_from};
use gantry_agent::api::{Api, NfsSource, PersistentSource, PersistentVolume};
use gantry_agent::node::NodeInfo;
use gantry_agent::volumes::Volumes;
use gantry_agent::volumes::host::HostVolumes;
use gantry_model::pod::volume::{ClaimRef, Volume, VolumeSource};
use gantry_model::pod::{Pod, PodUid};
use gantry_tests::{not_run, place};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::volumes::{VolumeFixture, mounted_below, place_of};

const NFSD: &str = "/proc/fs/nfsd";

/// The kernel's; gone with this.
struct NfsServer {
    mountd: Child,
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("run {program}"))?;
    ensure!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

impl NfsServer {
    /// Exports the folder to this machine; none on a host, whose server is not a test's, and in a machine with systemd, which
    /// has no NFS.
    fn start(export: &Path) -> Result<Option<Self>> {
        if !Path::new(place::VM_MARK).exists() || place::with_systemd() {
            return Ok(None);
        }
        fs::create_dir_all("/var/lib/nfs")?;
        for name in ["etab", "rmtab"] {
            fs::write(Path::new("/var/lib/nfs").join(name), "")?;
        }
        rustix::mount::mount("nfsd", NFSD, "nfsd", MountFlags::empty(), None)?;
        let of = format!("127.0.0.1:{}", export.display());
        run("exportfs", &["-o", "rw,sync,no_subtree_check,no_root_squash,insecure,fsid=1", &of])?;
        // It tells what NFS 3 lacks here, in the midst of the tests' own lines.
        let mut mountd = Command::new("rpc.mountd");
        let mountd = mountd.args(["--foreground", "-N", "3"]).stderr(Stdio::null()).spawn()?;
        let this = Self { mountd };
        // It waits so long for clients of a server before it, of which there are none.
        for name in ["nfsv4gracetime", "nfsv4leasetime"] {
            fs::write(Path::new(NFSD).join(name), "10")?;
        }
        this.serve(true)?;
        Ok(Some(this))
    }

    /// Serves, or does not: then nobody listens any more.
    fn serve(&self, serves: bool) -> Result<()> {
        match serves {
            true => run("rpc.nfsd", &["-N", "3", "-H", "127.0.0.1", "1"]),
            false => run("rpc.nfsd", &["0"]),
        }
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        let _ = self.serve(false);
        let _ = run("exportfs", &["-ua"]);
        let _ = self.mountd.kill();
        let _ = self.mountd.wait();
        let _ = rustix::mount::unmount(NFSD, UnmountFlags::empty());
    }
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  securityContext: {fsGroup: 4242}
  volumes:
  - {name: data, nfs: {server: 127.0.0.1, path: ROOT/export}}
  - {name: read, nfs: {server: 127.0.0.1, path: ROOT/export, readOnly: true}}
  containers:
  - name: c
    image: i
    volumeMounts:
    - {name: data, mountPath: /a}
    - {name: data, mountPath: /b, subPath: sub/dir}
    - {name: read, mountPath: /r}
";

/// The pod, and the server of its volumes.
fn start() -> Result<Option<(VolumeFixture, NfsServer)>> {
    let fixture = place_of(POD)?;
    let export = fixture.root.path().join("export");
    fs::create_dir(&export)?;
    let Some(server) = NfsServer::start(&export)? else {
        not_run("there is no NFS server: the small VM has one");
        return Ok(None);
    };
    Ok(Some((fixture, server)))
}

/// A kubelet that remembers nothing.
fn next_kubelet(fixture: &VolumeFixture) -> HostVolumes {
    let api: Arc<dyn Api> = Arc::new(FakeApi::default());
    HostVolumes::new(&fixture.root.path().join("kubelet"), api, Arc::new(NodeInfo::default()), false)
}

#[test]
fn an_export_is_written_through_the_kubelets_mount_and_unmounted_by_the_next_kubelet() -> Result<()> {
    let Some((fixture, _server)) = start()? else { return Ok(()) };
    fixture.set_up()?;
    let (folder, export) = (fixture.folder()?, fixture.root.path().join("export"));
    let (data, read) =
        (folder.join("volumes/kubernetes.io~nfs/data"), folder.join("volumes/kubernetes.io~nfs/read"));
    assert_eq!(mounted_below(&folder)?.len(), 2);
    fs::write(data.join("file"), "written")?;
    assert_eq!(fs::read_to_string(export.join("file"))?, "written");
    assert_eq!(fs::read_to_string(read.join("file"))?, "written");
    let refused = fs::write(read.join("file"), "again").expect_err("it is mounted ro");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(rustix::fs::stat(export.join("file"))?.st_gid, 0, "fsGroup changes nothing");
    let mounts = fixture.mounts()?;
    let seen: Vec<_> = mounts.iter().take(3).map(|m| (m.container_path.as_str(), m.read_only)).collect();
    assert_eq!(seen, [("/a", false), ("/b", false), ("/r", true)]);
    fs::write(mounts.get(1).context("the sub-path")?.host_path.join("part"), "of it")?;
    assert_eq!(fs::read_to_string(export.join("sub/dir/part"))?, "of it");
    let uid = &fixture.pod()?.uid;
    let usage = fixture.runtime.block_on(fixture.volumes.usage(uid, "data")).map_err(anyhow::Error::msg)?;
    ensure!(usage.is_some_and(|usage| usage.capacity_bytes > Some(0)), "it tells how full it is");
    // What is mounted stays, whoever comes.
    let next = next_kubelet(&fixture);
    fixture.runtime.block_on(next.set_up(fixture.pod()?))?;
    assert_eq!(mounted_below(&folder)?.len(), 3, "both volumes, and a part of one");
    fixture.runtime.block_on(next.reclaim(uid))?;
    assert_eq!(mounted_below(&folder)?, Vec::<std::path::PathBuf>::new());
    assert!(!folder.exists());
    assert_eq!(fs::read_to_string(export.join("file"))?, "written", "it is the server's");
    Ok(())
}

#[test]
fn a_dead_server_holds_up_who_asks_for_its_files_and_nobody_else() -> Result<()> {
    let Some((fixture, server)) = start()? else { return Ok(()) };
    fixture.set_up()?;
    server.serve(false)?;
    let pod = fixture.pod()?;
    let mut other = pod.clone();
    other.uid = PodUid::parse("other").context("a UID")?;
    other.volumes.retain(|volume| volume.name == "none");
    let usage = fixture.volumes.usage(&pod.uid, "data");
    let others = async {
        fixture.volumes.set_up(&other).await?;
        // What the pod has is not asked either.
        fixture.volumes.set_up(pod).await?;
        ensure!(!fixture.volumes.foreign().await?, "it is this kubelet's");
        fixture.volumes.list_orphans().await?;
        Ok(fixture.volumes.tear_down(&other.uid).await?)
    };
    fixture.runtime.block_on(async {
        tokio::pin!(usage);
        tokio::select! {
            told = &mut usage => bail!("nobody serves: {told:?}"),
            done = others => done?,
        }
        server.serve(true)?;
        let told = usage.await.map_err(anyhow::Error::msg)?;
        ensure!(told.is_some(), "it answers");
        Ok(())
    })?;
    // umount asks the server for the root of what is mounted, and waits; it is forced a minute later.
    server.serve(false)?;
    fixture.tear_down()?;
    assert!(mounted_below(fixture.root.path())?.is_empty() && !fixture.folder()?.exists());
    Ok(())
}

/// An API server's pods alone have claims: this one's is of a folder that nobody exports.
fn with_claim(fixture: &VolumeFixture) -> Result<(HostVolumes, Pod)> {
    let api = Arc::new(FakeApi::default());
    api.put_claim("c", claim_to("pv"));
    let source = NfsSource {
        server: "127.0.0.1".into(),
        path: "/no/such".into(),
        // Else mount.nfs tries for two minutes, by NFS 3 as well.
        mount_options: vec!["retry=0".into(), "nfsvers=4.2".into()],
    };
    let source = PersistentSource::Nfs(source);
    api.put_volume("pv", PersistentVolume { access_mode: "RWX", ..volume_from(source) });
    let mut pod = fixture.pod()?.clone();
    let claim = VolumeSource::Claim { claim: ClaimRef::Named("c".into()), read_only: true };
    pod.volumes = vec![Volume { name: "data".into(), source: claim }];
    let node = Arc::new(NodeInfo::default());
    Ok((HostVolumes::new(&fixture.root.path().join("kubelet"), api, node, false), pod))
}

#[test]
fn a_path_that_is_not_exported_is_told_in_the_words_of_mount() -> Result<()> {
    let Some((fixture, _server)) = start()? else { return Ok(()) };
    let (volumes, pod) = with_claim(&fixture)?;
    let told = fixture.runtime.block_on(volumes.set_up(&pod)).expect_err("nobody exports it").to_string();
    let words = "MountVolume.SetUp failed for volume \"pv\" : mount failed: exit status 32\nMounting command: mount\n";
    ensure!(told.starts_with(words), "{told}");
    let target = fixture.folder()?.join("volumes/kubernetes.io~nfs/pv");
    let arguments = format!(
        "\nMounting arguments: -t nfs -o nfsvers=4.2,retry=0,ro 127.0.0.1:/no/such {}\nOutput: mount.nfs: ",
        target.display()
    );
    ensure!(told.contains(&arguments) && told.contains("No such file or directory"), "{told}");
    assert_eq!((mounted_below(&fixture.folder()?)?.len(), target.exists()), (0, false));
    fixture.runtime.block_on(volumes.tear_down(&pod.uid))?;
    Ok(())
}
