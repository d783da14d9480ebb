//! `cargo xtask bench pull`: builds what is measured, fetches what images are made of, enters namespaces of its
//! own, prints tables with ratios and writes all numbers as JSON. Owns command line and form; measures
//! nothing. Called by `main`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use gantry_tests::peers::Programs;
use gantry_tests::place;
use gantry_tests::pulls::{
    self, ImageShape, LinkLimits, Packing, Pull, PullBenchOptions, PullSeries, PullTable, ReplayStep, SHAPES,
};

use super::picture::{self, BarGroup};
use crate::cell::Cell;
use crate::{build, sh};

const FROM_AFAR: &str = "from afar: 200 Mbit/s a connection, 1 Gbit/s in all, 20 ms; medians, in seconds";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PullBenchArgs {
    /// Shapes of images: nginx-alpine, nginx, python, small (60 layers), giant (2 GB)
    #[arg(long, value_delimiter = ',', default_value = "nginx-alpine,nginx,python")]
    image: Vec<String>,
    /// gzip, zstd
    #[arg(long, value_delimiter = ',', default_value = "gzip")]
    packing: Vec<String>,
    /// Pulls of each image by each runtime
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Empty the page cache before each pull
    #[arg(long)]
    cold: bool,
    /// Through a line of 200 Mbit/s for each connection, 1 Gbit/s in all, 20 ms
    #[arg(long)]
    shaped: bool,
    /// Optimisations of ours, each of which is left out once
    #[arg(long, value_delimiter = ',')]
    disable: Vec<String>,
    /// The three steps that took a start from 35 s to 8 s: a smaller image, IfNotPresent, a registry nearby
    #[arg(long)]
    replay: bool,
    /// Without the peers
    #[arg(long)]
    alone: bool,
    /// Programs that are built already
    #[arg(long, hide = true)]
    built: Option<PathBuf>,
    /// Where all numbers go as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where a picture of the medians goes
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// Builds and fetches everything, then runs the other half in new namespaces.
pub(crate) fn outside(asked: &PullBenchArgs) -> Result<()> {
    sh::require_root("the bench")?;
    asked.wanted()?;
    let programs = match &asked.built {
        Some(programs) => std::path::absolute(programs)?,
        None => build::build(true)?,
    };
    if !asked.alone {
        Programs::build()?;
    }
    pulls::fetch()?;
    let own = std::env::current_exe().context("find this program")?;
    let cell = Cell::new()?;
    let mut command = cell.command(&own)?;
    command.arg("bench-pull-inside").args(asked.words()?);
    let ran = sh::run(command.env(place::BIN_DIR, programs));
    cell.close()?;
    ran
}

/// The bench itself.
pub(crate) fn inside(asked: &PullBenchArgs) -> Result<()> {
    let wanted = asked.wanted()?;
    super::show_machine();
    if asked.replay {
        let steps = pulls::replay(&PullBenchOptions { line: Some(LinkLimits::USUAL), ..wanted })?;
        show_steps(&steps);
        asked.draw(FROM_AFAR, &groups_of(&steps))?;
        return asked.keep(&steps);
    }
    let mut tables = Vec::new();
    pulls::run(&wanted, |table| {
        show(table, &wanted);
        tables.push(table.clone());
    })?;
    asked.draw(&format!("seconds until usable, {}", place_of(&wanted)), &groups(&tables))?;
    asked.keep(&tables)
}

fn groups(tables: &[PullTable]) -> Vec<BarGroup> {
    let row = |row: &PullSeries| (row.side.clone(), middle(row, |pull| pull.usable));
    tables.iter().map(|table| (table.image.name.clone(), table.rows.iter().map(row).collect())).collect()
}

fn groups_of(steps: &[ReplayStep]) -> Vec<BarGroup> {
    let rows =
        |step: &ReplayStep| step.rows.iter().map(|(side, all)| (side.clone(), median(all.clone()))).collect();
    steps.iter().map(|step| (step.name.to_owned(), rows(step))).collect()
}

fn place_of(wanted: &PullBenchOptions) -> String {
    let line =
        if wanted.line.is_some() { "200 Mbit/s a connection, 1 Gbit/s in all, 20 ms" } else { "loopback" };
    format!("{line}; page cache {}", if wanted.cold { "cold" } else { "warm" })
}

impl PullBenchArgs {
    fn draw(&self, title: &str, groups: &[BarGroup]) -> Result<()> {
        let Some(file) = &self.svg else { return Ok(()) };
        std::fs::write(file, picture::bars(title, groups)).with_context(|| file.display().to_string())
    }

    fn keep(&self, numbers: &impl serde::Serialize) -> Result<()> {
        let Some(file) = &self.json else { return Ok(()) };
        std::fs::write(file, serde_json::to_vec_pretty(numbers)?).with_context(|| file.display().to_string())
    }

    fn wanted(&self) -> Result<PullBenchOptions> {
        let shape = |name: &String| {
            let known: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            ImageShape::find_shape(name)
                .with_context(|| format!("no image {name}: there are {}", known.join(", ")))
        };
        let packing = |name: &String| match name.as_str() {
            "gzip" => Ok(Packing::Gzip),
            "zstd" => Ok(Packing::Zstd),
            other => bail!("no packing {other}: there are gzip and zstd"),
        };
        Ok(PullBenchOptions {
            shapes: self.image.iter().map(shape).collect::<Result<_>>()?,
            packings: self.packing.iter().map(packing).collect::<Result<_>>()?,
            rounds: self.rounds.max(1),
            cold: self.cold,
            line: self.shaped.then_some(LinkLimits::USUAL),
            disable: self.disable.clone(),
            alone: self.alone,
            cache: sh::cache_dir().join("pull"),
        })
    }

    /// The command line of it.
    fn words(&self) -> Result<Vec<String>> {
        let mut words = vec![
            format!("--image={}", self.image.join(",")),
            format!("--packing={}", self.packing.join(",")),
            format!("--rounds={}", self.rounds),
        ];
        words.extend(self.disable.iter().map(|name| format!("--disable={name}")));
        let flags = [
            ("--cold", self.cold),
            ("--shaped", self.shaped),
            ("--replay", self.replay),
            ("--alone", self.alone),
        ];
        words.extend(flags.iter().filter(|(_, is)| *is).map(|(word, _)| (*word).to_owned()));
        for (flag, file) in [("json", &self.json), ("svg", &self.svg)] {
            if let Some(file) = file {
                words.push(format!("--{flag}={}", std::path::absolute(file)?.display()));
            }
        }
        Ok(words)
    }
}

fn show(table: &PullTable, wanted: &PullBenchOptions) {
    let image = &table.image;
    println!(
        "\n{}: {} layers, {:.1} MB compressed, {:.1} MB unpacked, {} files; {}; {} rounds, in turns; medians",
        image.name,
        image.layers.len(),
        image.compressed() as f64 / 1e6,
        image.unpacked as f64 / 1e6,
        image.files,
        place_of(wanted),
        wanted.rounds,
    );
    println!(
        "{:<34}{:>10}{:>11}{:>9}{:>10}{:>9}{:>8}{:>8}   all usable, s",
        "", "usable s", "durable s", "cpu s", "anon MB", "disk MB", "time", "cpu"
    );
    let Some(first) = table.rows.first() else { return };
    let ours = (middle(first, |pull| pull.usable), middle(first, |pull| pull.processor));
    for row in &table.rows {
        let usable = middle(row, |pull| pull.usable);
        let durable = row.pulls.iter().all(|pull| pull.durable.is_some());
        let durable = durable.then(|| middle(row, |pull| pull.durable.unwrap_or_default()));
        let durable = durable.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}"));
        let processor = middle(row, |pull| pull.processor);
        let memory = row.pulls.iter().map(|pull| pull.memory).max().unwrap_or_default();
        let all: Vec<String> = row.pulls.iter().map(|pull| format!("{:.2}", pull.usable)).collect();
        println!(
            "{:<34}{usable:>10.2}{durable:>11}{processor:>9.2}{:>10.1}{:>9.1}{:>7.2}x{:>7.2}x   {}",
            row.side,
            memory as f64 / 1e6,
            middle(row, |pull| pull.disk as f64) / 1e6,
            usable / ours.0,
            processor / ours.1,
            all.join(" "),
        );
    }
}

fn show_steps(steps: &[ReplayStep]) {
    println!("\n{FROM_AFAR}");
    let sides = steps.first().map(|step| step.rows.as_slice()).unwrap_or_default();
    let names: String = sides.iter().map(|(side, _)| format!("{side:>20}")).collect();
    println!("{:<44}{names}", "");
    for step in steps {
        let middles = step.rows.iter().map(|(_, seconds)| format!("{:>20.3}", median(seconds.clone())));
        println!("{:<44}{}", step.name, middles.collect::<String>());
    }
}

/// The median; of an even number the lower one of the two in the middle.
fn middle(row: &PullSeries, of: impl Fn(&Pull) -> f64) -> f64 {
    median(row.pulls.iter().map(of).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}
