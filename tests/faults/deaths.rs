//! What dies in the middle of a pull: the runtime at each stage of it, and the power.

use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_proto::cri;
use gantry_tests::cri::Cri;
use gantry_tests::fake_reboot;
use gantry_tests::fault_proxy::ProxyFault;
use gantry_tests::node::Programs;
use gantry_tests::place;
use gantry_tests::poll::{bound, poll};

use crate::fixture::PullFixture;

const PATIENCE: Duration = Duration::from_secs(60);
/// The next boot's.
const NEXT_BOOT: &str = "11111111-2222-4333-8444-555555555555";

/// What is asked for, and after which of its bytes nothing more comes.
type CutPoint = fn(&PullFixture) -> (String, u64);

/// How much of the large layer the node says that it has.
fn downloaded_bytes(fixture: &PullFixture) -> Result<u64> {
    let image = Some(cri::ImageSpec { image: fixture.image.clone(), ..Default::default() });
    let answer = fixture.node.cri().image_status(cri::ImageStatusRequest { image, verbose: true })?;
    let pull = answer.info.get("pull").context("no pull is under way")?;
    let pull: serde_json::Value = serde_json::from_str(pull)?;
    let layers = pull["layers"].as_array().context("no layers yet")?;
    let large =
        layers.iter().find(|layer| layer["digest"] == fixture.large()).context("not the large layer yet")?;
    large["downloaded"].as_u64().with_context(|| format!("{large}"))
}

/// Begins a pull that can't end by itself, waits until `part` has been asked for and, of the large layer, so many
/// bytes are there, and kills the runtime.
fn killed_at(fixture: &mut PullFixture, part: &str, bytes: u64) -> Result<()> {
    let client = Cri::new(&fixture.node.socket())?;
    let image = Some(cri::ImageSpec { image: fixture.image.clone(), ..Default::default() });
    let (send, ended) = channel();
    let pulling = std::thread::spawn(move || {
        let answer = client.pull_image(cri::PullImageRequest { image, ..Default::default() });
        // The test may have failed and gone.
        let _ = send.send(answer.is_ok());
    });
    let mut asked = Vec::new();
    poll("the pull to be there", PATIENCE, || {
        asked.extend(fixture.way.recorded_requests());
        let is_there = asked.iter().any(|seen| seen.target.contains(part));
        if is_there { Ok(()) } else { Err(format!("{asked:?}")) }
    })?;
    if part == fixture.large() {
        poll("so much of it to be there", PATIENCE, || match downloaded_bytes(fixture) {
            Ok(found) if found == bytes => Ok(()),
            other => Err(format!("{other:?} of {bytes}")),
        })?;
    }
    fixture.node.kill()?;
    ensure!(!ended.recv_timeout(bound(PATIENCE)).context("the call did not end")?, "the pull ended well");
    pulling.join().map_err(|_| anyhow::anyhow!("the thread that pulls"))?;
    Ok(())
}

#[test]
fn a_runtime_that_is_killed_at_any_stage_leaves_nothing_and_pulls_again() -> Result<()> {
    let stages: [CutPoint; 5] = [
        |_| ("/manifests/".to_owned(), 10),
        |fixture| (fixture.built.config.digest.clone(), 5),
        |fixture| (fixture.large().to_owned(), 0),
        |fixture| (fixture.large().to_owned(), fixture.length() / 2),
        |fixture| (fixture.large().to_owned(), fixture.length() - 1),
    ];
    for stage in stages {
        let mut fixture = PullFixture::new()?;
        let (part, bytes) = stage(&fixture);
        let at = || format!("{part} after {bytes} bytes");
        fixture.way.spoil(&part, 1, ProxyFault::Stall(bytes));
        killed_at(&mut fixture, &part, bytes).with_context(at)?;
        fixture.way.mend();
        fixture.node.restart().with_context(at)?;
        fixture.bare().with_context(at)?;
        fixture.survives().with_context(at)?;
    }
    Ok(())
}

/// Where the runtime keeps what it has not yet told the disk (docs/adr/0024-failpoints.md).
const BEFORE_THE_DISK: &str = "flush.synced";

#[test]
fn a_power_cut_right_after_a_pull_costs_the_image_and_nothing_else() -> Result<()> {
    let places = tempfile::tempdir()?;
    let mut fixture = PullFixture::new()?;
    let folder = place::bin_dir()?.join(place::FAILPOINTS);
    let variables = vec![("GANTRY_FAILPOINTS".to_owned(), places.path().to_owned())];
    fixture.node.restart_of(Programs { gantry: folder.join("gantry"), folder, variables })?;
    std::fs::write(places.path().join(BEFORE_THE_DISK), "stall")?;
    fixture.pull().map_err(anyhow::Error::msg)?;
    let reached = places.path().join(format!("{BEFORE_THE_DISK}.reached"));
    poll(
        "the flush to begin",
        PATIENCE,
        || {
            if reached.exists() { Ok(()) } else { Err("not yet".to_owned()) }
        },
    )?;
    fixture.whole()?;
    fixture.node.kill()?;
    // The disk never saw what the files hold.
    for layer in std::fs::read_dir(fixture.node.root().join("layers"))? {
        let file = layer?.path().join("srv/large");
        if file.exists() {
            std::fs::File::create(&file)?;
        }
    }
    let flag = fake_reboot::cycle(fixture.node.roots(), NEXT_BOOT)?;
    fixture.node.set_flags(&[flag]);
    fixture.node.restart_of(Programs::built()?)?;
    fixture.bare()?;
    fixture.survives()
}
