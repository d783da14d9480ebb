//! The tier `failpoints`: at every durable step of the runtime and of the monitor the runtime is killed, the
//! monitor is killed, the call is given up, and the step fails; then the call is made again and the pod is
//! removed, and nothing is lost, left or reserved. On programs that are built with failpoints
//! (docs/adr/0024-failpoints.md). Run by `cargo xtask test --tier failpoints`.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

mod fault;
mod life;
mod rows;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use gantry_tests::place;

use self::fault::FailpointFixture;
use self::life::PodKind;
use self::rows::{ROWS, TASKS, sites};

#[test]
fn every_place_in_the_source_has_a_row() -> Result<()> {
    let sites = sites()?;
    let tasks = TASKS.iter().map(|task| task.site);
    let rows: BTreeSet<&str> = ROWS.iter().map(|row| row.site).chain(tasks).collect();
    let cases: BTreeSet<String> = ROWS.iter().map(|row| format!("{} {:?}", row.site, row.kind)).collect();
    ensure!(cases.len() == ROWS.len(), "a row is there twice");
    let known: BTreeSet<&str> = sites.keys().map(String::as_str).collect();
    let missing: Vec<_> = known.difference(&rows).collect();
    let gone: Vec<_> = rows.difference(&known).collect();
    ensure!(missing.is_empty() && gone.is_empty(), "without a row: {missing:?}; without a place: {gone:?}");
    Ok(())
}

#[test]
fn programs_that_are_shipped_have_no_place() -> Result<()> {
    let built = place::bin_dir()?;
    let has_places = |program: &Path| -> Result<bool> {
        let bytes = std::fs::read(program)?;
        Ok(bytes.windows(fault::VARIABLE.len()).any(|window| window == fault::VARIABLE.as_bytes()))
    };
    for program in ["gantry", "gantry-monitor", "gantry-pause", "gantry-unpack"] {
        ensure!(!has_places(&built.join(program))?, "{program} has failpoints");
    }
    for program in ["gantry", "gantry-monitor"] {
        ensure!(
            has_places(&built.join(place::FAILPOINTS).join(program))?,
            "{program} should have failpoints"
        );
    }
    Ok(())
}

#[test]
fn rt_4_a_removal_that_is_asked_for_twice_at_once_is_told_once() -> Result<()> {
    ensure!(FailpointFixture::new()?.removed_twice_at_once()? == 1, "not told once");
    Ok(())
}

#[test]
fn a_panic_in_each_task_that_nobody_waits_for_ends_the_runtime_and_the_next_one_goes_on() -> Result<()> {
    let mut fixture = FailpointFixture::new()?;
    for task in TASKS {
        fixture.panics(task).with_context(|| task.site.to_owned())?;
    }
    Ok(())
}

#[test]
fn a_create_that_hangs_keeps_no_pod_from_being_stopped_and_ends_as_an_error() -> Result<()> {
    let mut fixture = FailpointFixture::new()?;
    for site in ["create.named", "create.folders", "create.planned", "create.record"] {
        let refused = fixture.removed_beside_a_create(site).with_context(|| site.to_owned())?;
        ensure!(refused.message().contains("not ready"), "{site}: {refused:?}");
    }
    Ok(())
}

#[test]
fn rt_4_every_fault_at_each_place_leaves_nothing_and_the_call_can_be_made_again() -> Result<()> {
    let sites = sites()?;
    let mut failed = Vec::new();
    let mut fixture = FailpointFixture::new()?;
    let has_users = fixture.has_users()?;
    for row in ROWS.iter().filter(|row| row.is_of_this_node()) {
        if row.kind == PodKind::Users && !has_users {
            show(&format!("{:<24}not here: this kernel has no user namespaces for pods", row.site));
            continue;
        }
        for fault in row.step.faults(sites.get(row.site).copied().unwrap_or(false)) {
            let began = Instant::now();
            let outcome = fixture.case(row, fault);
            show(&format!(
                "{:<24}{:<12}{:>6} ms",
                row.site,
                format!("{fault:?}"),
                began.elapsed().as_millis()
            ));
            if let Err(error) = outcome {
                let text = format!("{} {fault:?}: {error:#}", row.site);
                show(&text);
                failed.push(text);
                // What it left must not spoil the next.
                drop(std::mem::replace(&mut fixture, FailpointFixture::new()?));
            }
        }
    }
    ensure!(failed.is_empty(), "{} cases failed:\n{}", failed.len(), failed.join("\n"));
    Ok(())
}

#[expect(clippy::print_stderr, reason = "what a long test is at")]
fn show(text: &str) {
    eprintln!("{text}");
}
