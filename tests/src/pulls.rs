//! The bench of pulls: the same images by several runtimes and settings in turns, since machines are shared and
//! noisy and only ratios of one run count. Owns the rounds and the numbers; prints nothing and keeps
//! nothing but images in the cache. Called by `cargo xtask bench pull`.

mod corpus;
mod disk;
mod image;
mod memory;
mod meter;
mod pack;
mod podman;
mod replay;
mod shaper;
mod side;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub use image::{ImageShape, PushedImage, SHAPES};
use memory::MemoryFiller;
pub use pack::Packing;
pub use replay::{ReplayStep, replay};
pub use shaper::LinkLimits;
pub use side::Pull;
use side::{Peer, PullSide};

use crate::registry::{self, Registry};
use crate::{debian, place};

/// The list of Debian's igzip in the cache of packages.
const IGZIP: &str = "igzip";

/// What to measure.
#[derive(Debug, Clone)]
pub struct PullBenchOptions {
    pub shapes: Vec<ImageShape>,
    pub packings: Vec<Packing>,
    pub rounds: usize,
    /// What the node has read before is out of its memory.
    pub cold: bool,
    /// The network; None: loopback as it is.
    pub line: Option<LinkLimits>,
    /// Optimisations each of which is left out once.
    pub disable: Vec<String>,
    /// Without the peers.
    pub alone: bool,
    /// Where images are kept.
    pub cache: PathBuf,
}

/// One runtime's pulls of one image.
#[derive(Debug, Clone, Serialize)]
pub struct PullSeries {
    pub side: String,
    /// In the order of the run.
    pub pulls: Vec<Pull>,
}

/// One image by all.
#[derive(Debug, Clone, Serialize)]
pub struct PullTable {
    pub image: PushedImage,
    pub rows: Vec<PullSeries>,
}

/// Downloads what images and peers need, outside of the bench's namespaces.
///
/// # Errors
/// When apt cannot be reached.
pub fn fetch() -> Result<()> {
    image::fetch()?;
    podman::fetch()?;
    debian::fetch_alone(IGZIP, &["isal", "libisal2"])
}

/// What all rounds share.
struct RoundFixture {
    registry: Registry,
    memory: MemoryFiller,
    images: Vec<PushedImage>,
    sides: Vec<PullSide>,
    /// Where the registry is found over the line, and by the node beside it.
    far: String,
    near: String,
    _igzip: tempfile::TempDir,
}

/// Runs everything; tells each table when it is done.
///
/// # Errors
/// When a program is missing, or a runtime fails a call.
pub fn run(wanted: &PullBenchOptions, mut tell: impl FnMut(&PullTable)) -> Result<()> {
    let stage = &RoundFixture::new(wanted)?;
    let RoundFixture { images, sides, far, .. } = stage;
    for image in images {
        let mut table = PullTable {
            image: image.clone(),
            rows: sides
                .iter()
                .map(|side| PullSeries { side: side.name.clone(), pulls: Vec::new() })
                .collect(),
        };
        for (at, _) in turns(wanted.rounds, sides.len()) {
            stage.prepare(&image.name, wanted.cold)?;
            let pull = sides[at].pull(&format!("{far}/{}", image.name))?;
            table.rows[at].pulls.push(pull);
        }
        tell(&table);
    }
    Ok(())
}

/// Which side's turn it is, and in which round: another one begins in each.
fn turns(rounds: usize, sides: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..sides).map(move |turn| ((round + turn) % sides, round)))
}

impl RoundFixture {
    fn new(wanted: &PullBenchOptions) -> Result<Self> {
        place::require_own_namespaces()?;
        ensure!(
            in_path("igzip").is_none() && in_path("unpigz").is_none(),
            "igzip or unpigz is in PATH: remove it"
        );
        std::fs::create_dir_all(&wanted.cache)?;
        // Where every node's folders will be.
        disk::mount(&wanted.cache, &std::env::temp_dir())?;
        let registry = Registry::start_on(registry::free_port()?, &wanted.cache.join("registry"))?;
        let mut images = Vec::new();
        for shape in &wanted.shapes {
            for packing in &wanted.packings {
                images.push(image::push_image(*shape, *packing, &registry, &wanted.cache)?);
            }
        }
        let near = registry.host();
        let far = match wanted.line {
            None => near.clone(),
            Some(line) => shaper::start(registry.addr(), line)?.to_string(),
        };
        let igzip = tempfile::Builder::new().prefix("gantry-igzip-").tempdir()?;
        let sides = sides(wanted, &registry, &[&near, &far], igzip.path())?;
        let memory = MemoryFiller::new(&wanted.cache)?;
        Ok(Self { registry, memory, images, sides, far, near, _igzip: igzip })
    }

    /// The registry is another machine: what it serves is in its memory, whatever the node's knows.
    fn prepare(&self, name: &str, cold: bool) -> Result<()> {
        if cold {
            rustix::fs::sync();
            std::fs::write("/proc/sys/vm/drop_caches", "3").context("drop the page cache")?;
        } else {
            self.memory.fill()?;
        }
        let (repository, tag) = name.split_once(':').context("a name without a tag")?;
        self.registry.warm(repository, tag)
    }
}

fn sides(
    wanted: &PullBenchOptions,
    registry: &Registry,
    hosts: &[&str],
    igzip: &Path,
) -> Result<Vec<PullSide>> {
    let mut sides = vec![PullSide::gantry(&[])?];
    for name in &wanted.disable {
        sides.push(PullSide::gantry(std::slice::from_ref(name))?);
    }
    if !wanted.alone {
        debian::extract(&debian::archives(IGZIP)?, igzip)?;
        for peer in [Peer::Default, Peer::Tuned, Peer::Synced] {
            sides.push(PullSide::containerd(peer, registry, igzip)?);
        }
        sides.push(PullSide::podman()?);
    }
    for side in &sides {
        hosts.iter().try_for_each(|host| side.trust(host))?;
    }
    Ok(sides)
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}
