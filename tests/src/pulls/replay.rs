//! What brought one team from 35 s for a pod's start to 8 s, step by step: a smaller image, a policy that does not ask
//! the registry again, a registry nearby. Owns the steps; how a pull is measured is `side`'s. Called by `cargo xtask bench
//! pull --replay`.

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{ImageShape, PullBenchOptions, PullSide, PushedImage, RoundFixture, turns};

/// One step by all.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayStep {
    pub name: &'static str,
    /// Side, and seconds in the order of the run.
    pub rows: Vec<(String, Vec<f64>)>,
}

const STEPS: [&str; 5] = [
    "python, from afar",
    "a smaller image (nginx-alpine), from afar",
    "the same once more, policy Always",
    "the same once more, policy IfNotPresent",
    "nginx-alpine, from nearby",
];

/// Runs all steps.
///
/// # Errors
/// As [`super::run`].
pub fn replay(wanted: &PullBenchOptions) -> Result<Vec<ReplayStep>> {
    let shape = |name| ImageShape::find_shape(name).with_context(|| format!("no image {name}"));
    let wanted =
        PullBenchOptions { shapes: vec![shape("python")?, shape("nginx-alpine")?], ..wanted.clone() };
    let stage = RoundFixture::new(&wanted)?;
    let [large, small] = stage.images.as_slice() else { anyhow::bail!("not two images") };
    let row = |side: &PullSide| (side.name.clone(), Vec::new());
    let step = |name| ReplayStep { name, rows: stage.sides.iter().map(row).collect() };
    let mut steps: Vec<ReplayStep> = STEPS.into_iter().map(step).collect();
    for (at, _) in turns(wanted.rounds, stage.sides.len()) {
        for (step, seconds) in steps.iter_mut().zip(one(&stage, &stage.sides[at], large, small, wanted.cold)?)
        {
            step.rows[at].1.push(seconds);
        }
    }
    Ok(steps)
}

/// The seconds of each step by one side.
fn one(
    stage: &RoundFixture,
    side: &PullSide,
    large: &PushedImage,
    small: &PushedImage,
    cold: bool,
) -> Result<[f64; STEPS.len()]> {
    let pulled = |host: &str, image: &PushedImage| -> Result<f64> {
        stage.prepare(&image.name, cold)?;
        Ok(side.pull(&format!("{host}/{}", image.name))?.usable)
    };
    let (first, second) = (pulled(&stage.far, large)?, pulled(&stage.far, small)?);
    let name = format!("{}/{}", stage.far, small.name);
    side.fetch(&name)?;
    let begun = Instant::now();
    side.fetch(&name)?;
    let always = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    side.look(&name)?;
    let present = begun.elapsed().as_secs_f64();
    side.drop_image(&name)?;
    Ok([first, second, always, present, pulled(&stage.near, small)?])
}
