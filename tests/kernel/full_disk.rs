//! Images on a disk that is full, or that loses what it was given: what suffers is the pull, and never another
//! image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::image::{Image, Layer};
use gantry_tests::node::{Node, Roots};
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::registry::Registry;
use rustix::mount::{MountFlags, UnmountFlags};

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// A disk of 64 MiB with a thousand inodes for a node's root, in a file; gone with this.
struct SmallDisk {
    folder: PathBuf,
    /// In memory, where the file stands: when this is full, the disk loses what it is given.
    below: PathBuf,
}

impl SmallDisk {
    /// With so many bytes for the file, which takes room as it is written.
    fn new(roots: &Roots, bytes: usize) -> Result<Self> {
        let disk = Self { folder: roots.path("root"), below: roots.path("below") };
        for folder in [&disk.folder, &disk.below] {
            fs::create_dir_all(folder)?;
        }
        let size = std::ffi::CString::new(format!("size={bytes}"))?;
        rustix::mount::mount("none", &disk.below, "tmpfs", MountFlags::empty(), size.as_c_str())?;
        let file = disk.below.join("disk.img");
        fs::File::create(&file)?.set_len(64 * MIB as u64)?;
        busybox(&["mke2fs", "-F", "-i", "65536"], &[&file])?;
        busybox(&["mount", "-t", "ext4", "-o", "loop"], &[&file, &disk.folder])?;
        Ok(disk)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        for folder in [&self.folder, &self.below] {
            let _ = rustix::mount::unmount(folder, UnmountFlags::DETACH);
        }
    }
}

fn busybox(words: &[&str], paths: &[&Path]) -> Result<()> {
    let output = Command::new("/bin/busybox").args(words).args(paths).output().context("run /bin/busybox")?;
    ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

struct Scene {
    // Before the node, whose folders go with it.
    disk: SmallDisk,
    node: Node,
    registry: Registry,
}

impl Scene {
    fn new(bytes: usize) -> Result<Self> {
        place::require_own_namespaces()?;
        let roots = Roots::new()?;
        let disk = SmallDisk::new(&roots, bytes)?;
        Ok(Self { disk, node: Node::start_on(roots)?, registry: Registry::start()? })
    }

    fn push(&self, name: &str, layer: Layer) -> Result<String> {
        self.registry.push(name, "t", &Image { layers: vec![layer], ..Image::default() }.build()?)
    }

    fn list_images(&self) -> Result<Vec<String>> {
        let images = self.node.cri().list_images(cri::ListImagesRequest::default())?.images;
        Ok(images.into_iter().flat_map(|image| image.repo_tags).collect())
    }

    /// The content of a file that one layer has.
    fn read(&self, name: &str) -> Result<Vec<u8>> {
        for layer in fs::read_dir(self.node.root().join("layers"))? {
            let file = layer?.path().join(name);
            if file.exists() {
                return Ok(fs::read(file)?);
            }
        }
        anyhow::bail!("no layer has {name}")
    }

    fn entries(&self, folder: &str) -> Result<usize> {
        Ok(fs::read_dir(self.node.root().join(folder))?.count())
    }

    /// A pull that finds no room costs nothing but itself.
    fn fails_alone(&self, layer: Layer, word: &str) -> Result<()> {
        let small = self.push("small", Layer::default().file("small", 0o644, "small"))?;
        self.node.pull(&small)?;
        let large = self.push("large", layer)?;
        let error = self.node.pull(&large).unwrap_err();
        let root = self.node.root().display().to_string();
        for word in [word, "no room in", root.as_str(), "remove files"] {
            assert!(error.message().contains(word), "{word:?} in {}", error.message());
        }
        assert_eq!((self.entries("layers")?, self.entries("ingest")?), (1, 0));
        assert_eq!((self.list_images()?, self.read("small")?), (vec![small.clone()], b"small".to_vec()));
        let other = self.push("other", Layer::default().file("other", 0o644, vec![7; 4 * MIB]))?;
        self.node.pull(&other)?;
        self.node.await_durable()?;
        assert_eq!(self.read("other")?, vec![7; 4 * MIB]);
        Ok(())
    }
}

#[test]
fn a_pull_that_runs_out_of_bytes_fails_alone_and_says_what_to_do() -> Result<()> {
    let scene = Scene::new(80 * MIB)?;
    scene.fails_alone(Layer::default().file("large", 0o644, vec![0; 80 * MIB]), "bytes are free")
}

#[test]
fn a_pull_that_runs_out_of_inodes_fails_alone_and_says_what_to_do() -> Result<()> {
    let scene = Scene::new(80 * MIB)?;
    let layer = (0..2000).fold(Layer::default(), |layer, at| layer.file(&format!("f{at}"), 0o644, ""));
    scene.fails_alone(layer, "inodes are free")
}

/// Bytes that no packing makes fewer.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(bytes).collect()
}

/// The pull's own files are whole in memory, and it ends well; what the disk has of them is another matter.
#[test]
fn an_image_that_the_disk_lost_goes_and_the_others_stay() -> Result<()> {
    let mut scene = Scene::new(32 * MIB)?;
    let small = scene.push("small", Layer::default().file("small", 0o644, "small"))?;
    scene.node.pull(&small)?;
    scene.node.await_durable()?;
    let large = scene.push("large", Layer::default().file("large", 0o644, noise(16 * MIB)))?;
    let filler = scene.disk.below.join("filler");
    // As far as it goes: all but what the disk has already.
    let mut file = fs::File::create(&filler)?;
    ensure!(std::io::copy(&mut std::io::repeat(1), &mut file).is_err(), "memory without end");
    drop(file);
    scene.node.pull(&large)?;
    poll("the image to go", PATIENCE, || match scene.list_images() {
        Ok(images) if images == [small.clone()] => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    let log = scene.node.log()?;
    let word = "the disk failed to write, and some of the image may be lost";
    assert!(log.contains(word), "{word:?} in {log}");
    // With room the disk is as good as new, and so is the image.
    fs::remove_file(&filler)?;
    scene.node.pull(&large)?;
    scene.node.await_durable()?;
    // Power cut: nothing is left but what the disk has.
    scene.node.kill()?;
    fs::remove_dir_all(scene.node.state())?;
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    scene.node.restart()?;
    assert_eq!((scene.list_images()?.len(), scene.read("small")?), (2, b"small".to_vec()));
    assert!(scene.read("large")? == noise(16 * MIB), "the disk has other bytes");
    Ok(())
}
