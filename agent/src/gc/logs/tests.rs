//! Rotation on real files, with a runtime that opens logs anew or does not.

use std::io::Read;
use std::os::unix::fs::symlink;
use std::sync::Mutex;

use gantry_model::clock::FakeClock;
use gantry_model::failure::{Failure, FailureKind};

use super::super::{ImageUse, KeeperFuture, StoredImage};
use super::*;
use gantry_model::drain;
use gantry_model::testing::fifo;

#[derive(Debug)]
struct OneLog {
    path: PathBuf,
    refuses: bool,
    reopened: Mutex<u32>,
}

impl Keeper for OneLog {
    fn running(&self) -> KeeperFuture<'_, Vec<String>> {
        Box::pin(async { Ok(vec!["c".into(), "c".into()]) })
    }

    fn log_path<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, String> {
        Box::pin(async { Ok(self.path.to_string_lossy().into_owned()) })
    }

    fn reopen_log<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, ()> {
        Box::pin(async {
            if self.refuses {
                return Err(Failure::new(FailureKind::Failed, "no"));
            }
            *self.reopened.lock().unwrap() += 1;
            fs::write(&self.path, "").unwrap();
            Ok(())
        })
    }

    fn images(&self) -> KeeperFuture<'_, Vec<StoredImage>> {
        unreachable!()
    }

    fn images_in_use(&self) -> KeeperFuture<'_, Vec<ImageUse>> {
        unreachable!()
    }

    fn remove_image<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, ()> {
        unreachable!()
    }

    fn image_folder(&self) -> KeeperFuture<'_, String> {
        unreachable!()
    }
}

const SETTINGS: Settings =
    Settings { max_size: 10, max_files: 4, workers: 2, interval: Duration::from_secs(10) };

fn keeper(folder: &Path, refuses: bool) -> OneLog {
    OneLog { path: folder.join("0.log"), refuses, reopened: Mutex::new(0) }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_log_that_is_full_is_rotated_and_old_ones_are_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let (keeper, clock) = (keeper(folder.path(), false), FakeClock::new(1_800_000_000));
    for round_number in 0..4 {
        fs::write(&keeper.path, format!("round {round_number} is long enough")).unwrap();
        assert!(round(SETTINGS, &keeper, &clock).await.is_empty());
        clock.step_wall(1);
    }
    assert_eq!(
        names(folder.path()),
        ["0.log", "0.log.20270115-080001.gz", "0.log.20270115-080002.gz", "0.log.20270115-080003"]
    );
    let packed = fs::File::open(folder.path().join("0.log.20270115-080002.gz")).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    assert_eq!(text, "round 2 is long enough");
    assert_eq!(*keeper.reopened.lock().unwrap(), 4);
    // A short one is left alone.
    fs::write(&keeper.path, "short").unwrap();
    assert!(round(SETTINGS, &keeper, &clock).await.is_empty());
    assert_eq!(fs::read_to_string(&keeper.path).unwrap(), "short");
}

/// Says how often it was asked, and of how many containers at once.
#[derive(Debug, Default)]
struct Slow {
    rounds: Mutex<Vec<tokio::time::Instant>>,
    open: Mutex<(usize, usize)>,
}

impl Keeper for Slow {
    fn running(&self) -> KeeperFuture<'_, Vec<String>> {
        self.rounds.lock().unwrap().push(tokio::time::Instant::now());
        Box::pin(async { Ok((0..6).map(|number| number.to_string()).collect()) })
    }

    fn log_path<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, String> {
        Box::pin(async {
            {
                let mut open = self.open.lock().unwrap();
                open.0 += 1;
                open.1 = open.1.max(open.0);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.open.lock().unwrap().0 -= 1;
            Ok(String::new())
        })
    }

    fn reopen_log<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, ()> {
        unreachable!()
    }

    fn images(&self) -> KeeperFuture<'_, Vec<StoredImage>> {
        unreachable!()
    }

    fn images_in_use(&self) -> KeeperFuture<'_, Vec<ImageUse>> {
        unreachable!()
    }

    fn remove_image<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, ()> {
        unreachable!()
    }

    fn image_folder(&self) -> KeeperFuture<'_, String> {
        unreachable!()
    }
}

#[tokio::test(start_paused = true)]
async fn so_many_logs_are_looked_at_at_once_and_so_often() {
    for (workers, interval) in [(1, 10), (3, 7)] {
        let (keeper, interval) = (Arc::new(Slow::default()), Duration::from_secs(interval));
        let (trigger, drain) = drain::token();
        let settings = Settings { workers, interval, ..SETTINGS };
        let clock = Arc::new(FakeClock::new(1_800_000_000));
        let rotating = tokio::spawn(run(settings, keeper.clone(), clock, drain));
        tokio::time::sleep(Duration::from_secs(100)).await;
        trigger.start();
        rotating.await.unwrap();
        assert_eq!(keeper.open.lock().unwrap().1, workers);
        // A round takes its time: six containers, a second for each of those that are looked at at once.
        let round = interval + Duration::from_secs(6 / workers as u64);
        let begins = keeper.rounds.lock().unwrap();
        assert!(begins.len() > 3 && begins.windows(2).all(|pair| pair[1] - pair[0] == round), "{begins:?}");
    }
}

#[tokio::test]
async fn a_runtime_that_does_not_open_it_anew_keeps_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let (keeper, clock) = (keeper(folder.path(), true), FakeClock::new(1_800_000_000));
    fs::write(&keeper.path, "this is long enough").unwrap();
    let errors = round(SETTINGS, &keeper, &clock).await;
    assert!(matches!(errors.as_slice(), [Error::Reopen { .. }]), "{errors:?}");
    assert_eq!(names(folder.path()), ["0.log"]);
}

#[tokio::test]
async fn a_log_that_was_taken_away_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (keeper, clock) = (keeper(folder.path(), false), FakeClock::new(1_800_000_000));
    assert!(round(SETTINGS, &keeper, &clock).await.is_empty());
    assert_eq!(names(folder.path()), ["0.log"]);
}

#[tokio::test]
async fn what_was_planted_beside_a_log_stays_and_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (keeper, clock) = (keeper(folder.path(), false), FakeClock::new(1_800_000_000));
    fs::write(at("secret"), "not for pods").unwrap();
    symlink(at("secret"), at("0.log.20200101-000001")).unwrap();
    fs::create_dir(at("0.log.20200101-000002")).unwrap();
    fifo(&at("0.log.20200101-000003"));
    fs::write(at("0.log.20200101-000004"), "an older one").unwrap();
    // More of them than files are kept.
    symlink(at("secret"), at("0.log.20200101-000005")).unwrap();
    fs::write(&keeper.path, "this is long enough").unwrap();
    let errors = tokio::time::timeout(Duration::from_secs(20), round(SETTINGS, &keeper, &clock)).await;
    let errors = errors.expect("the pipe is waited for");
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        names(folder.path()),
        [
            "0.log",
            "0.log.20200101-000001",
            "0.log.20200101-000002",
            "0.log.20200101-000003",
            "0.log.20200101-000004.gz",
            "0.log.20200101-000005",
            "0.log.20270115-080000",
            "secret",
        ]
    );
    // Exchanged after the folder was listed.
    for planted in ["0.log.20200101-000001", "0.log.20200101-000002", "0.log.20200101-000003"] {
        assert!(pack(&at(planted)).is_err(), "{planted}");
    }
    symlink(at("secret"), at("0.log.20270115-080000.tmp")).unwrap();
    assert!(pack(&at("0.log.20270115-080000")).is_err());
    assert_eq!(fs::read_to_string(at("secret")).unwrap(), "not for pods");
}

#[tokio::test]
async fn a_log_is_rotated_before_older_ones_are_compressed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (keeper, clock) = (keeper(folder.path(), false), FakeClock::new(1_800_000_000));
    fs::write(at("0.log.20200101-000001"), "first").unwrap();
    fs::write(at("0.log.20200101-000002"), "second").unwrap();
    // Nothing can be put in its place, as on a disk that is full.
    fs::create_dir(at("0.log.20200101-000001.gz")).unwrap();
    fs::write(&keeper.path, "this is long enough").unwrap();
    let errors = round(SETTINGS, &keeper, &clock).await;
    assert!(matches!(errors.as_slice(), [Error::File { what: "compress", .. }]), "{errors:?}");
    assert_eq!(*keeper.reopened.lock().unwrap(), 1);
    assert_eq!(
        names(folder.path()),
        [
            "0.log",
            "0.log.20200101-000001",
            "0.log.20200101-000001.gz",
            "0.log.20200101-000002.gz",
            "0.log.20270115-080000",
        ]
    );
}

/// As when /var/log hangs under everything else that needs tokio's threads, or the other way round.
#[test]
fn rotation_needs_none_of_tokios_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (keeper, clock) = (keeper(folder.path(), false), FakeClock::new(1_800_000_000));
    fs::write(&keeper.path, "this is long enough").unwrap();
    let mut one_thread = tokio::runtime::Builder::new_current_thread();
    let one_thread = one_thread.enable_all().max_blocking_threads(1).build().unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    one_thread.block_on(async {
        let holding = tokio::task::spawn_blocking(move || held.recv().is_err());
        let errors = tokio::time::timeout(Duration::from_secs(20), round(SETTINGS, &keeper, &clock)).await;
        drop(release);
        assert!(errors.expect("a thread of tokio's is waited for").is_empty());
        assert!(holding.await.unwrap());
    });
    assert_eq!(names(folder.path()), ["0.log", "0.log.20270115-080000"]);
}
