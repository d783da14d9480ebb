//! One kubelet is stopped and the other started under twenty running pods, there and back. None of them may notice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use gantry_tests::cluster::kubelet::KubeletKind;
use gantry_tests::cluster::lives;
use gantry_tests::cluster::watched::Watched;
use serde_json::Value;

use crate::fixture::{ClusterFixture, NAMESPACE};
use crate::pods::{LABEL, TWENTY, twenty};
use crate::seconds;

/// How old the youngest container must be: what is younger, a kubelet may look at as at its own.
pub(crate) const AGE: Duration = Duration::from_secs(15);

pub(crate) fn run(fixture: &mut ClusterFixture) -> Result<()> {
    let time = seconds("GANTRY_SWAP_SECONDS", 60)?;
    fixture.apply(twenty())?;
    fixture.await_ready(&format!("{}={}", LABEL.0, LABEL.1), TWENTY)?;
    let ready = SystemTime::now();
    fixture.hold(AGE + Duration::from_secs(5), |_| Ok(()))?;
    let (before, mounts) = (fixture.containers()?, fixture.count_mounts()?);
    once(&mounts)?;
    println!("{} containers and {} mounts of {TWENTY} pods", before.len(), mounts.len());
    let mut watched = Watched::start(fixture.any(), NAMESPACE, TWENTY)?;
    for kind in [fixture.chosen, KubeletKind::Upstream] {
        fixture.swap_to(kind)?;
        fixture.hold(time, |_| {
            watched.check()?;
            assert_undisturbed(&watched.events())
        })?;
        ensure!(
            fixture.containers()? == before,
            "other containers run: {:?} instead of {before:?}",
            fixture.containers()?
        );
        let now = fixture.count_mounts()?;
        once(&now)?;
        ensure!(now == mounts, "other mounts: {now:?} instead of {mounts:?}");
        works(fixture)?;
    }
    let events = watched.events();
    assert_undisturbed(&events)?;
    let passed = ready.elapsed().context("the clock went back")?.as_secs();
    println!("{} events of the watch in {passed} s, none of a pod that was disturbed", events.len());
    fixture.clear()
}

pub(crate) fn assert_undisturbed(events: &[Value]) -> Result<()> {
    let wrongs: Vec<String> = lives::find_disturbed(events).into_iter().collect();
    ensure!(wrongs.is_empty(), "{}", wrongs.join("\n"));
    Ok(())
}

fn once(mounts: &BTreeMap<PathBuf, usize>) -> Result<()> {
    let twice: Vec<_> = mounts.iter().filter(|(_, times)| **times != 1).collect();
    ensure!(twice.is_empty(), "mounted more than once: {twice:?}");
    Ok(())
}

/// The kubelet of the moment serves pods that it did not make.
fn works(fixture: &ClusterFixture) -> Result<()> {
    let word = fixture.kubectl(&["exec", "kept-1", "-c", "main", "--", "cat", "/config/word", "/word"])?;
    ensure!(word == "kept-1kept-1", "{word:?}");
    fixture.kubectl(&["logs", "kept-3", "-c", "main"]).map(drop)
}
