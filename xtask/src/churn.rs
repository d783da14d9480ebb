//! `cargo xtask churn`: builds what is churned, enters namespaces of its own within a leak check, and shows what
//! happened. Owns nothing of the churn itself (that is `gantry_tests::churn`). Called by `main` and, with
//! `--full`, by `tiers`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use gantry_tests::churn::{self, ChurnOptions};
use gantry_tests::place;

use crate::cell::Cell;
use crate::{build, leakcheck, sh};

/// What was asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct ChurnArgs {
    /// How long
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// The same choices as another churn made, which printed its seed
    #[arg(long)]
    seed: Option<u64>,
    /// With optimisation, as users run it
    #[arg(long)]
    release: bool,
}

impl ChurnArgs {
    /// What the tier does.
    pub(crate) fn short() -> Self {
        ChurnArgs { minutes: 5, seed: None, release: false }
    }
}

/// Builds everything, then runs the other half in new namespaces.
pub(crate) fn outside(asked: &ChurnArgs) -> Result<()> {
    sh::require_root("churn")?;
    // A folder that was built before: nobody else's build changes it in the middle of half an hour.
    let programs = match std::env::var_os(place::BIN_DIR) {
        Some(_) if !asked.release => place::bin_dir()?,
        _ => build::build(asked.release)?,
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = asked.seed.unwrap_or(u64::from(now.subsec_nanos()) ^ now.as_secs());
    let own = std::env::current_exe().context("find this program")?;
    let cell = Cell::new()?;
    let mut command = leakcheck::checked(&cell)?;
    command.arg(own).arg("churn-inside").arg(format!("--minutes={}", asked.minutes));
    command.arg(format!("--seed={seed}")).env(place::BIN_DIR, programs);
    let ran = sh::run(&mut command);
    let closed = cell.close();
    ran.and(closed)
}

/// The churn itself.
pub(crate) fn inside(asked: &ChurnArgs) -> Result<()> {
    let seed = asked.seed.context("no seed")?;
    let wanted = ChurnOptions { time: Duration::from_secs(asked.minutes * 60), seed };
    churn::run(&wanted, |line| println!("{line}"))
}
