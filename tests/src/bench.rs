//! The first bench: a pod's start and an image's pull beside containerd, in one run, in turns, since
//! machines are shared and noisy and only ratios of one run count. Owns the measuring and the
//! numbers; prints nothing and keeps nothing. Called by `cargo xtask bench first`.

pub mod claims;
pub mod pods;
pub mod traffic;
mod usage;
mod watch;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use gantry_proto::cri;

use crate::containerd::{Containerd, ContainerdOptions, Tuning};
use crate::cri::Cri;
use crate::image::{Image, Layer};
use crate::node::Node;
use crate::place;
use crate::registry::Registry;

/// How many of each.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// One after the other.
    pub pods: usize,
    /// All by clients of their own at one time; none when 0.
    pub at_once: usize,
    pub pulls: usize,
}

/// The calls of one pod's life, of which the first three are its start.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    pub sandbox: Duration,
    pub create: Duration,
    pub start: Duration,
    pub stop: Duration,
    pub remove: Duration,
}

impl Start {
    #[must_use]
    pub fn total(&self) -> Duration {
        self.sandbox + self.create + self.start
    }
}

/// What one runtime needed, in the order of the run.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub starts: Vec<Start>,
    /// Those at once.
    pub together: Vec<Start>,
    pub pulls: Vec<Duration>,
}

/// Both runtimes' numbers.
#[derive(Debug, Clone)]
pub struct BenchOutcome {
    pub containerd: Measured,
    pub gantry: Measured,
    /// Compressed layers of one pulled image.
    pub image_bytes: u64,
    /// Files in it.
    pub image_files: usize,
}

/// The middle one, or the mean of the two in the middle; zero of none.
#[must_use]
pub fn median(times: impl IntoIterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort();
    let middle = times.len() / 2;
    match (times.get(middle.wrapping_sub(1)), times.get(middle)) {
        (Some(&low), Some(&high)) if times.len().is_multiple_of(2) => (low + high) / 2,
        (_, Some(&middle)) => middle,
        _ => Duration::ZERO,
    }
}

/// The one that so many per cent of them reach at most; zero of none.
#[must_use]
pub fn percentile(times: impl IntoIterator<Item = Duration>, percent: usize) -> Duration {
    let mut times: Vec<Duration> = times.into_iter().collect();
    times.sort();
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).copied().unwrap_or_default()
}

/// One runtime under measurement.
struct BenchSide<'a> {
    cri: &'a Cri,
    socket: PathBuf,
    /// Below `/TAG` its pods' cgroups are made.
    tag: &'a str,
    measured: Measured,
}

/// Runs everything; gantry is taken from [`place::bin_dir`].
///
/// # Errors
/// When a program is missing, or a runtime fails a call.
pub fn first(counts: Counts) -> Result<BenchOutcome> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let pause = push_pause(&registry)?;
    let (images, image_bytes, image_files) = push_big(&registry, counts.pulls)?;
    let containerd = Containerd::start(ContainerdOptions {
        registry: &registry,
        pause: &pause,
        portmap: false,
        tuning: Tuning::NONE,
    })?;
    let node = Node::start()?;
    let mut sides = [
        BenchSide {
            cri: containerd.cri(),
            socket: containerd.socket(),
            tag: containerd.tag(),
            measured: Measured::default(),
        },
        BenchSide {
            cri: node.cri(),
            socket: node.socket(),
            tag: node.roots().tag(),
            measured: Measured::default(),
        },
    ];
    let logs = tempfile::Builder::new().prefix("gantry-bench-").tempdir()?;
    for side in &sides {
        pull(side.cri, &pause)?;
        // Not counted: the first pod makes the bridge and warms caches.
        one_pod(side.cri, side.tag, &pause, logs.path(), "warm")?;
    }
    for number in 0..counts.pods {
        for turn in turns(number) {
            let side = &sides[turn];
            let start = one_pod(side.cri, side.tag, &pause, logs.path(), &number.to_string())?;
            sides[turn].measured.starts.push(start);
        }
    }
    for side in &mut sides {
        side.measured.together = together(side, &pause, logs.path(), counts.at_once)?;
    }
    for (number, image) in images.iter().enumerate() {
        for turn in turns(number) {
            // What the one before wrote is not the next one's burden.
            rustix::fs::sync();
            let begin = Instant::now();
            pull(sides[turn].cri, image)?;
            sides[turn].measured.pulls.push(begin.elapsed());
        }
    }
    let [containerd, gantry] = sides.map(|side| side.measured);
    Ok(BenchOutcome { containerd, gantry, image_bytes, image_files })
}

/// So many pods by as many clients, each with a connection of its own.
fn together(side: &BenchSide<'_>, image: &str, logs: &Path, pods: usize) -> Result<Vec<Start>> {
    let gate = Barrier::new(pods.max(1));
    let (gate, socket, tag) = (&gate, side.socket.as_path(), side.tag);
    std::thread::scope(|scope| {
        let client = |number: usize| {
            scope.spawn(move || {
                let cri = Cri::new(socket);
                gate.wait();
                one_pod(&cri?, tag, image, logs, &format!("once-{number}"))
            })
        };
        let clients: Vec<_> = (0..pods).map(client).collect();
        let joined = clients.into_iter().map(|client| client.join());
        joined.map(|started| started.map_err(|_| anyhow!("a client ended early"))?).collect()
    })
}

/// Who goes first changes from one to the next.
fn turns(number: usize) -> [usize; 2] {
    if number.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

fn pull(runtime: &Cri, image: &str) -> Result<()> {
    let image = Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() });
    runtime.pull_image(cri::PullImageRequest { image, ..Default::default() }).context("PullImage")?;
    Ok(())
}

/// Starts a pod with one container, then stops and removes it.
fn one_pod(runtime: &Cri, tag: &str, image: &str, logs: &Path, number: &str) -> Result<Start> {
    let config = sandbox(tag, logs, number)?;
    let begin = Instant::now();
    let request = cri::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
    let id = runtime.run_pod_sandbox(request).context("RunPodSandbox")?.pod_sandbox_id;
    let sandbox = begin.elapsed();
    let begin = Instant::now();
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: id.clone(),
        config: Some(container(image)),
        sandbox_config: Some(config),
    };
    let container_id = runtime.create_container(request).context("CreateContainer")?.container_id;
    let create = begin.elapsed();
    let begin = Instant::now();
    let request = cri::StartContainerRequest { container_id: container_id.clone() };
    runtime.start_container(request).context("StartContainer")?;
    let start = begin.elapsed();
    let request = cri::ContainerStatusRequest { container_id, verbose: false };
    let status = runtime.container_status(request).context("ContainerStatus")?.status.unwrap_or_default();
    ensure!(status.state() == cri::ContainerState::ContainerRunning, "a pod does not run: {status:?}");
    let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
    let begin = Instant::now();
    runtime.stop_pod_sandbox(request).context("StopPodSandbox")?;
    let stop = begin.elapsed();
    let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id };
    let begin = Instant::now();
    runtime.remove_pod_sandbox(request).context("RemovePodSandbox")?;
    Ok(Start { sandbox, create, start, stop, remove: begin.elapsed() })
}

fn sandbox(tag: &str, logs: &Path, number: &str) -> Result<cri::PodSandboxConfig> {
    let name = format!("bench-{number}");
    let log_directory = logs.join(tag).join(&name);
    std::fs::create_dir_all(&log_directory)?;
    Ok(cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            uid: format!("uid-{name}"),
            name: name.clone(),
            namespace: "bench".to_owned(),
            attempt: 0,
        }),
        hostname: name.clone(),
        log_directory: log_directory.to_string_lossy().into_owned(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: format!("/{tag}/{name}"),
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    })
}

fn container(image: &str) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: image.to_owned(), ..Default::default() }),
        log_path: "main.log".to_owned(),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources { oom_score_adj: 1000, ..Default::default() }),
            security_context: Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces()),
                ..Default::default()
            }),
        }),
        ..Default::default()
    }
}

fn namespaces() -> cri::NamespaceOption {
    cri::NamespaceOption { pid: cri::NamespaceMode::Container.into(), ..Default::default() }
}

fn push_pause(registry: &Registry) -> Result<String> {
    let program = std::fs::read(place::bin_dir()?.join("gantry-pause")).context("read gantry-pause")?;
    let layer = Layer::default().file("pause", 0o755, program);
    let image = Image { layers: vec![layer], entrypoint: vec!["/pause".into()], ..Image::default() };
    registry.push("bench/pause", "1", &image.build()?)
}

/// Where each of the three layers is filled from, and its bytes before compression: together about
/// 100 MB compressed, a few big programs and many small files, shaped like python's image.
const LAYERS: [(&str, u64); 3] =
    [("/usr/bin", 72 << 20), ("/usr/share", 55 << 20), ("/usr/lib/x86_64-linux-gnu", 16 << 20)];
/// A tar header of the plain kind takes no longer one.
const LONGEST_PATH: usize = 99;

/// An image for each round, no layer of which is in another: a runtime that keeps layers still pulls
/// a cold one. Returns references, compressed bytes and number of files of one.
fn push_big(registry: &Registry, rounds: usize) -> Result<(Vec<String>, u64, usize)> {
    let mut references = Vec::new();
    let (mut bytes, mut files) = (0, 0);
    for round in 0..rounds {
        let mut layers = Vec::new();
        files = 0;
        for (folder, enough) in LAYERS {
            let mut found = FileSelection { paths: Vec::new(), bytes: 0, enough };
            found.walk(Path::new(folder))?;
            ensure!(found.bytes >= enough, "{folder} holds {} bytes: not enough for the image", found.bytes);
            files += found.paths.len();
            layers.push(layer(&format!("{round} {folder}"), &found.paths)?);
        }
        let built = Image { layers, ..Image::default() }.build()?;
        bytes = built.layers.iter().map(|layer| layer.bytes.len() as u64).sum();
        references.push(registry.push("bench/big", &format!("{round}"), &built)?);
    }
    Ok((references, bytes, files))
}

/// The files as they are, after a first one that makes every compressed byte this round's own.
fn layer(mark: &str, paths: &[PathBuf]) -> Result<Layer> {
    let mut layer = Layer::default();
    let mut folders = BTreeSet::new();
    let shown = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned();
    layer = layer.file("round", 0o644, mark);
    for path in paths {
        let mut above: Vec<&Path> =
            path.ancestors().skip(1).filter(|above| above.parent().is_some()).collect();
        above.reverse();
        for folder in above {
            if folders.insert(folder.to_owned()) {
                layer = layer.dir(&shown(folder), 0o755);
            }
        }
        let content = std::fs::read(path).with_context(|| path.display().to_string())?;
        layer = layer.file(&shown(path), 0o755, content);
    }
    Ok(layer)
}

/// Regular files in the order of their names, until there are enough bytes.
struct FileSelection {
    paths: Vec<PathBuf>,
    bytes: u64,
    enough: u64,
}

impl FileSelection {
    fn walk(&mut self, folder: &Path) -> Result<()> {
        let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            if self.bytes >= self.enough {
                return Ok(());
            }
            let about = path.symlink_metadata().with_context(|| path.display().to_string())?;
            if about.is_dir() {
                self.walk(&path)?;
            } else if about.is_file() && path.as_os_str().len() <= LONGEST_PATH {
                self.bytes += about.len();
                self.paths.push(path);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        let ms = Duration::from_millis;
        assert_eq!(median([ms(9), ms(1), ms(2)]), ms(2));
        assert_eq!(median([ms(9), ms(1), ms(2), ms(4)]), ms(3));
        assert_eq!(median([]), Duration::ZERO);
    }

    #[test]
    fn nine_of_ten_are_at_most_the_ninetieth_percentile() {
        let times = (1..=10).rev().map(Duration::from_secs);
        assert_eq!(percentile(times.clone(), 90), Duration::from_secs(9));
        assert_eq!(percentile(times, 100), Duration::from_secs(10));
        assert_eq!(percentile([], 90), Duration::ZERO);
    }

    #[test]
    fn both_go_first_equally_often() {
        assert_ne!(turns(0), turns(1));
        assert_eq!(turns(0), turns(2));
    }
}
