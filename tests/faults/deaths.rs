//! What dies in the middle of a pull: the runtime at each stage of it, and the power.

use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::cri::Cri;
use gantry_tests::crooked::Fault;
use gantry_tests::node::Programs;
use gantry_tests::place;
use gantry_tests::poll::{bound, poll};
use gantry_tests::power;

use crate::bed::Bed;

const PATIENCE: Duration = Duration::from_secs(60);
/// The next boot's.
const NEXT_BOOT: &str = "11111111-2222-4333-8444-555555555555";

/// What is asked for, and after which of its bytes nothing more comes.
type Stage = fn(&Bed) -> (String, u64);

/// How much of the large layer the node says that it has.
fn arrived(bed: &Bed) -> Result<u64> {
    let image = Some(cri::ImageSpec { image: bed.image.clone(), ..Default::default() });
    let answer = bed.node.cri().image_status(cri::ImageStatusRequest { image, verbose: true })?;
    let pull = answer.info.get("pull").context("no pull is under way")?;
    let pull: serde_json::Value = serde_json::from_str(pull)?;
    let layers = pull["layers"].as_array().context("no layers yet")?;
    let large =
        layers.iter().find(|layer| layer["digest"] == bed.large()).context("not the large layer yet")?;
    large["downloaded"].as_u64().with_context(|| format!("{large}"))
}

/// Begins a pull that can't end by itself, waits until `part` has been asked for and, of the large layer, so many
/// bytes are there, and kills the runtime.
fn killed_at(bed: &mut Bed, part: &str, bytes: u64) -> Result<()> {
    let client = Cri::new(&bed.node.socket())?;
    let image = Some(cri::ImageSpec { image: bed.image.clone(), ..Default::default() });
    let (send, ended) = channel();
    let pulling = std::thread::spawn(move || {
        let answer = client.pull_image(cri::PullImageRequest { image, ..Default::default() });
        // The test may have failed and gone.
        let _ = send.send(answer.is_ok());
    });
    let mut asked = Vec::new();
    poll("the pull to be there", PATIENCE, || {
        asked.extend(bed.way.seen());
        let is_there = asked.iter().any(|seen| seen.target.contains(part));
        if is_there { Ok(()) } else { Err(format!("{asked:?}")) }
    })?;
    if part == bed.large() {
        poll("so much of it to be there", PATIENCE, || match arrived(bed) {
            Ok(found) if found == bytes => Ok(()),
            other => Err(format!("{other:?} of {bytes}")),
        })?;
    }
    bed.node.kill()?;
    ensure!(!ended.recv_timeout(bound(PATIENCE)).context("the call did not end")?, "the pull ended well");
    pulling.join().map_err(|_| anyhow::anyhow!("the thread that pulls"))?;
    Ok(())
}

#[test]
fn a_runtime_that_is_killed_at_any_stage_leaves_nothing_and_pulls_again() -> Result<()> {
    let stages: [Stage; 5] = [
        |_| ("/manifests/".to_owned(), 10),
        |bed| (bed.built.config.digest.clone(), 5),
        |bed| (bed.large().to_owned(), 0),
        |bed| (bed.large().to_owned(), bed.length() / 2),
        |bed| (bed.large().to_owned(), bed.length() - 1),
    ];
    for stage in stages {
        let mut bed = Bed::new()?;
        let (part, bytes) = stage(&bed);
        let at = || format!("{part} after {bytes} bytes");
        bed.way.spoil(&part, 1, Fault::Stall(bytes));
        killed_at(&mut bed, &part, bytes).with_context(at)?;
        bed.way.mend();
        bed.node.restart().with_context(at)?;
        bed.bare().with_context(at)?;
        bed.survives().with_context(at)?;
    }
    Ok(())
}

/// Where the runtime keeps what it has not yet told the disk (docs/adr/0024-failpoints.md).
const BEFORE_THE_DISK: &str = "flush.synced";

#[test]
fn a_power_cut_right_after_a_pull_costs_the_image_and_nothing_else() -> Result<()> {
    let places = tempfile::tempdir()?;
    let mut bed = Bed::new()?;
    let folder = place::bin_dir()?.join(place::FAILPOINTS);
    let variables = vec![("GANTRY_FAILPOINTS".to_owned(), places.path().to_owned())];
    bed.node.restart_of(Programs { gantry: folder.join("gantry"), folder, variables })?;
    std::fs::write(places.path().join(BEFORE_THE_DISK), "stall")?;
    bed.pull().map_err(anyhow::Error::msg)?;
    let reached = places.path().join(format!("{BEFORE_THE_DISK}.reached"));
    poll(
        "the flush to begin",
        PATIENCE,
        || {
            if reached.exists() { Ok(()) } else { Err("not yet".to_owned()) }
        },
    )?;
    bed.whole()?;
    bed.node.kill()?;
    // The disk never saw what the files hold.
    for layer in std::fs::read_dir(bed.node.root().join("layers"))? {
        let file = layer?.path().join("srv/large");
        if file.exists() {
            std::fs::File::create(&file)?;
        }
    }
    let flag = power::cycle(bed.node.roots(), NEXT_BOOT)?;
    bed.node.set_flags(&[flag]);
    bed.node.restart_of(Programs::built()?)?;
    bed.bare()?;
    bed.survives()
}
