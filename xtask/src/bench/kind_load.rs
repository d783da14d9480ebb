//! `cargo xtask bench kind-load`: `kind load` of an image of 300 MB onto a node of upstream's kubelet and containerd and onto
//! one of Gantry's, in one cluster, by turns. Owns the image, the turns and the table. Called by `main`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use gantry_tests::image::{Image, Layer};
use gantry_tests::saved;

use crate::kind::{self, Bed};
use crate::sh;
use crate::summary::Counts;

const CLUSTER: &str = "kind-load";
const IMAGE: &str = "localhost/bench/large:v1";
/// Of 60 MB each, which gzip makes no smaller.
const LAYERS: u64 = 5;
const LAYER: usize = 60_000_000;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct KindLoadArgs {
    /// Loads onto each node, each way
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
}

/// What `kind load` is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A name that docker knows: kind saves it to a file first
    DockerImage,
    /// The file
    ImageArchive,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::DockerImage => "docker-image",
            Self::ImageArchive => "image-archive",
        }
    }
}

/// Makes the cluster, loads, prints the table, takes the cluster away.
pub(crate) fn run(asked: &KindLoadArgs) -> Result<()> {
    sh::require_root("a kind cluster")?;
    let own = kind::programs_of(true)?;
    let (upstream, gantry) = (kind::upstream_image(&own)?, kind::node_image(&own)?);
    let counts = kind::on_cluster("kind-load", CLUSTER, &[&upstream, &gantry], |bed| {
        Counts::check("kind-load: the loads", loads(bed, asked.rounds))
    })?;
    if counts.failed > 0 {
        bail!("not green");
    }
    Ok(())
}

fn loads(bed: &Bed, rounds: u8) -> Result<()> {
    let archive = bed.folder.join("large.tar");
    write(&archive)?;
    let archive = archive.to_str().context("a path")?;
    bed.run(&["docker", "load", "--quiet", "--input", archive])?;
    let nodes = [("containerd", bed.control_plane()), ("gantry", format!("{CLUSTER}-worker"))];
    for way in [Way::DockerImage, Way::ImageArchive] {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            for ((_, node), times) in nodes.iter().zip(&mut times) {
                times.push(load(bed, way, archive, node)?);
            }
        }
        let [upstream, ours] = times.each_ref().map(|times| median(times));
        println!(
            "kind load {} of {} MB, median of {rounds}: containerd {upstream:.1} s ({}), gantry {ours:.1} s ({}): {:.1} times as fast",
            way.word(),
            LAYERS * LAYER as u64 / 1_000_000,
            list(&times[0]),
            list(&times[1]),
            upstream / ours
        );
    }
    Ok(())
}

/// Seconds of one load; the image is removed again.
fn load(bed: &Bed, way: Way, archive: &str, node: &str) -> Result<f64> {
    let what = match way {
        Way::DockerImage => IMAGE,
        Way::ImageArchive => archive,
    };
    bed.run(&["sync"])?;
    let begin = Instant::now();
    bed.run(&["kind", "load", way.word(), what, "--name", CLUSTER, "--nodes", node])?;
    let took: Duration = begin.elapsed();
    let inside = |words: &[&str]| bed.run(&[&["docker", "exec", node, "crictl"], words].concat());
    ensure!(inside(&["images", "--output", "json"])?.contains(IMAGE), "{node} has not got {IMAGE}");
    inside(&["rmi", IMAGE])?;
    Ok(took.as_secs_f64())
}

fn write(archive: &Path) -> Result<()> {
    let layers = (1..=LAYERS).map(|number| {
        Layer::default().file(&format!("data/{number}"), 0o644, gantry_tests::image::noise(number, LAYER))
    });
    let image = Image { layers: layers.collect(), cmd: vec!["/none".into()], ..Image::default() };
    fs::write(archive, saved::classic(&image.build()?, &[IMAGE])?)
        .with_context(|| archive.display().to_string())
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn list(times: &[f64]) -> String {
    times.iter().map(|time| format!("{time:.1}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert!((median(&[9.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert_eq!(list(&[1.0, 2.25]), "1.0, 2.2");
    }
}
