//! Rotation on real files, with a runtime that opens logs anew or does not.

use std::io::Read;
use std::sync::Mutex;

use super::super::{Answer, ImageUse, StoredImage};
use super::*;
use crate::clock::FakeClock;
use crate::runtime::{Failure, FailureKind};

#[derive(Debug)]
struct OneLog {
    path: PathBuf,
    refuses: bool,
    reopened: Mutex<u32>,
}

impl Keeper for OneLog {
    fn running(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { Ok(vec!["c".into(), "c".into()]) })
    }

    fn log_path<'a>(&'a self, _: &'a str) -> Answer<'a, String> {
        Box::pin(async { Ok(self.path.to_string_lossy().into_owned()) })
    }

    fn reopen_log<'a>(&'a self, _: &'a str) -> Answer<'a, ()> {
        Box::pin(async {
            if self.refuses {
                return Err(Failure::new(FailureKind::Failed, "no"));
            }
            *self.reopened.lock().unwrap() += 1;
            fs::write(&self.path, "").unwrap();
            Ok(())
        })
    }

    fn images(&self) -> Answer<'_, Vec<StoredImage>> {
        unreachable!()
    }

    fn images_in_use(&self) -> Answer<'_, Vec<ImageUse>> {
        unreachable!()
    }

    fn remove_image<'a>(&'a self, _: &'a str) -> Answer<'a, ()> {
        unreachable!()
    }

    fn image_folder(&self) -> Answer<'_, String> {
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
