//! What the agent's feature `containerd` hears from a real one: a pod whose image comes half and waits,
//! and whose container goes on while the kernel kills what it starts. The agent's own parts, all of them
//! real; only the command line is missing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gantry_agent::api::files::Files;
use gantry_agent::cgroups::tree::Tree;
use gantry_agent::checkpoint::CheckpointDir;
use gantry_agent::images::Images;
use gantry_agent::logs::dir::LogDir;
use gantry_agent::manifest::{self, Object};
use gantry_agent::node::{self, NodeInfo};
use gantry_agent::pod::run::Deps;
use gantry_agent::pod::status::PodStatus;
use gantry_agent::pod_workers::PodWorkers;
use gantry_agent::pod_workers::oom_survivor;
use gantry_agent::probe::net::NetProbe;
use gantry_agent::root::Root;
use gantry_agent::runtime::cri::{self, CriRuntime, Features};
use gantry_agent::runtime_ext::RuntimeExtensions;
use gantry_agent::users::{Range, UserRanges};
use gantry_agent::volumes::host::HostVolumes;
use gantry_model::cgroup::names::Driver;
use gantry_model::clock::SystemClock;
use gantry_model::pod::{Pod, PodUid};
use gantry_tests::containerd::{Containerd, ContainerdOptions, Tuning};
use gantry_tests::image::{Image, Layer};
use gantry_tests::paused_registry::PausedRegistry;
use gantry_tests::registry::Registry;
use gantry_tests::suite;
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(60);

/// It writes in pieces of so many bytes.
const BUFFER: u64 = 1 << 20;

/// Each round of it needs twice the memory that it may have; the shell outlives them.
const HOG: &str = "while :; do dd if=/dev/zero of=/dev/null bs=64M count=1; sleep 1; done";

#[test]
fn pulls_are_seen_as_they_come_and_an_oom_that_is_outlived_is_told() -> Result<()> {
    let registry = Registry::start()?;
    let images = suite::push_images(&registry)?;
    let containerd = Containerd::start(ContainerdOptions {
        registry: &registry,
        pause: &images.pause,
        portmap: false,
        tuning: Tuning::NONE,
    })?;
    let image = Image {
        layers: vec![Layer::busybox()?, Layer::default().file("noise", 0o644, noise(8 << 20))],
        cmd: vec!["/bin/sh".into()],
        env: vec!["PATH=/bin".into()],
        ..Image::default()
    };
    let built = image.build()?;
    let size = built.layers.last().context("a layer")?.bytes.len();
    let held = PausedRegistry::serve(&built)?;
    containerd.trust(&held.host())?;
    let before = containerd.snapshot()?;
    let tokio = tokio::runtime::Runtime::new()?;
    let lived = tokio.block_on(live(&containerd, &held, size));
    lived.with_context(|| containerd.log_tail())?;
    // Its connections end with it.
    drop(tokio);
    before.await_clean(&containerd.scope())
}

/// Bytes that no compression makes fewer.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(count);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

async fn live(containerd: &Containerd, held: &PausedRegistry, size: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let channel = cri::connect(&format!("unix://{}", containerd.socket().display())).await?;
    let (deps, _root) = deps(folder.path(), containerd.tag(), channel).await?;
    let (runtime_ext, image) = (deps.runtime_ext.clone(), held.reference());
    let pulls = runtime_ext.pulls.clone().context("containerd is not listened to")?;
    let mut agent = PodWorkers::start(Vec::new(), deps);
    agent.apply(vec![pod(&image)?]);
    let handle = agent.pods().first().cloned().context("no worker")?;

    // Half of the last layer, less what containerd holds in a buffer, and no more for as long as it is held.
    let half = u64::try_from(size / 2)?;
    let most = half.saturating_sub(BUFFER)..=half;
    let halfway = async {
        loop {
            let progress = pulls.progress(&image);
            let last = progress.as_ref().and_then(|progress| progress.layers.last());
            if let Some(last) =
                last.filter(|last| last.stage == "downloading" && most.contains(&last.downloaded))
            {
                ensure!(last.total == u64::try_from(size)?, "{last:?} of {size} bytes");
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let seen = tokio::time::timeout(PATIENCE, halfway).await;
    seen.with_context(|| format!("half a pull; it is {:?}", pulls.progress(&image)))??;
    held.release();

    let status = wait(&handle, "its pull's stages", |status| {
        status.reason == "Running" && status.spans.iter().any(|span| span.name == "image.layer.1.download")
    });
    let status = status.await?;
    ensure!(pulls.progress(&image).is_none(), "the pull goes on");
    let span = status.spans.iter().find(|span| span.name == "image.layer.1.download").context("a span")?;
    ensure!(span.start < span.end && span.detail == format!("{size} bytes"), "{span:?}");

    let told =
        |status: &PodStatus| status.events.iter().any(|event| event.note.reason == oom_survivor::REASON);
    let status = wait(&handle, "an event about the OOM", told).await?;
    let [container] = &status.containers[..] else { bail!("{:?}", status.containers) };
    ensure!(runtime_ext.out_of_memory(&container.id).is_some(), "nothing was counted");
    ensure!(container.restart_count == 0 && container.last_exit.is_none(), "it was restarted: {container:?}");
    let left = agent.clean_up().await;
    ensure!(left.is_empty(), "left behind: {left:?}");
    take_runcs(&format!(
        "/sys/fs/cgroup/unified/{}/kubepods/burstable/pod{}",
        containerd.tag(),
        handle.pod.uid
    ))
}

/// On a host with both versions runc joins the second one, too, which has no controllers, and leaves the
/// folders above its own there: they are nobody's, under upstream's kubelet as well. Only empty ones go.
fn take_runcs(pod: &str) -> Result<()> {
    for folder in Path::new(pod).ancestors().take(3).filter(|folder| folder.exists()) {
        std::fs::remove_dir(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(())
}

async fn wait(
    handle: &gantry_agent::pod::worker::PodHandle,
    what: &str,
    holds: impl FnMut(&PodStatus) -> bool,
) -> Result<PodStatus> {
    let waited = tokio::time::timeout(PATIENCE, handle.wait(holds)).await;
    waited.with_context(|| format!("{what}; the pod is {:?}", handle.status.borrow()))
}

fn pod(image: &str) -> Result<Pod> {
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "hungry" },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "c", "image": image, "command": ["/bin/sh", "-c", HOG],
            "resources": { "limits": { "memory": "32Mi" } } }] },
    });
    match manifest::parse_text(Path::new("hungry.json"), &text.to_string())?.into_iter().next() {
        Some(Object::Pod { pod, .. }) => Ok(*pod),
        other => bail!("{other:?} is no pod"),
    }
}

/// As `gantry agent` has them.
async fn deps(folder: &Path, tag: &str, channel: tonic::transport::Channel) -> Result<(Deps, Root)> {
    let root = Root::open(&folder.join("root"))?;
    let (root_dir, logs) = (root.path().to_owned(), folder.join("logs"));
    let metrics = Arc::default();
    let facts = node::facts(logs.clone(), &node::NodeOverrides::default())?;
    let resolver = facts.resolver.clone();
    let runtime = CriRuntime::new(channel.clone(), facts, Arc::clone(&metrics));
    let Features { runtime_name, recursive_read_only, .. } = runtime.features().await?;
    let runtime_ext = RuntimeExtensions::of(&runtime_name, &channel);
    let runtime = runtime.telling(runtime_ext.pulls.clone());
    let node = Arc::new(NodeInfo { runtime_name, resolver, ..node::info(&root_dir)? });
    let api = Arc::new(Files::default());
    let told = async |uid: &PodUid| runtime.users_of(uid).await;
    let users = UserRanges::load(root_dir.clone(), Range::default(), told).await;
    let deps = Deps {
        logs: Arc::new(LogDir::new(logs)),
        clock: Arc::new(SystemClock::new()),
        volumes: Arc::new(HostVolumes::new(&root_dir, api.clone(), node.clone(), recursive_read_only)),
        cgroups: Arc::new(Tree::new(&format!("/{tag}"), node.cpu, Driver::Cgroupfs)?),
        api,
        probe_io: Arc::new(NetProbe::new()?),
        devices: Default::default(),
        managers: Default::default(),
        dra: Default::default(),
        checkpoints: Arc::new(CheckpointDir::open(folder.join("checkpoints"), root.claims(), &root_dir)?),
        users: Arc::new(users.map_err(anyhow::Error::msg)?),
        sweeps: Arc::default(),
        metrics,
        probe_metrics: Arc::default(),
        network: watch::channel(None).1,
        images: Arc::new(Images::plain()),
        node,
        runtime: Arc::new(runtime),
        recorder: None,
        longest_wait: gantry_agent::pod::restart::LONGEST_WAIT,
        tracer: None,
        runtime_ext,
    };
    Ok((deps, root))
}
