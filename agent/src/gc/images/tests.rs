//! Rounds of the collector with a runtime in memory.

use std::sync::Mutex;

use gantry_model::clock::FakeClock;
use gantry_model::failure::FailureKind;

use super::super::{ImageUse, KeeperFuture, StoredImage};
use super::*;
use gantry_model::drain;

#[derive(Debug, Default)]
struct Store {
    images: Mutex<Vec<StoredImage>>,
    used: Vec<ImageUse>,
    stuck: bool,
}

impl Keeper for Store {
    fn running(&self) -> KeeperFuture<'_, Vec<String>> {
        unreachable!()
    }

    fn log_path<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, String> {
        unreachable!()
    }

    fn reopen_log<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, ()> {
        unreachable!()
    }

    fn images(&self) -> KeeperFuture<'_, Vec<StoredImage>> {
        Box::pin(async { Ok(self.images.lock().unwrap().clone()) })
    }

    fn images_in_use(&self) -> KeeperFuture<'_, Vec<ImageUse>> {
        Box::pin(async { Ok(self.used.clone()) })
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> KeeperFuture<'a, ()> {
        Box::pin(async move {
            if self.stuck {
                return Err(Failure::new(FailureKind::Failed, "read-only file system"));
            }
            self.images.lock().unwrap().retain(|image| image.id != id);
            Ok(())
        })
    }

    fn image_folder(&self) -> KeeperFuture<'_, String> {
        Box::pin(async { Ok("/images".into()) })
    }
}

fn collector(stuck: bool) -> (Collector, Arc<Store>) {
    let image = |id: &str| StoredImage { id: id.into(), names: vec![], size: 60, pinned: false };
    let images = Mutex::new(["a", "b", "c"].map(image).into());
    let store = Arc::new(Store {
        images,
        used: vec![ImageUse { image: "c".into(), container: "default/web/main".into() }],
        stuck,
    });
    let settings =
        Settings { high_percent: 85, low_percent: 80, min_age: Duration::ZERO, max_age: Duration::ZERO };
    (Collector::new(settings, store.clone(), Arc::new(FakeClock::new(0))), store)
}

fn ids(store: &Store) -> Vec<String> {
    store.images.lock().unwrap().iter().map(|image| image.id.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn only_as_much_goes_as_is_needed() {
    let (mut collector, store) = collector(false);
    let room = |_: &str| Ok(Disk { capacity: 1000, available: 160 });
    assert_eq!(collector.round(room).await, CollectionOutcome::default());
    let full = |_: &str| Ok(Disk { capacity: 1000, available: 150 });
    let outcome = collector.round(full).await;
    assert_eq!(outcome.freed, [("a".to_owned(), 60)]);
    assert_eq!(outcome.left, ["b", "c"]);
    assert_eq!(ids(&store), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_freed_is_told() {
    let (mut collector, store) = collector(false);
    let outcome = collector.round(|_| Ok(Disk { capacity: 1000, available: 0 })).await;
    assert_eq!(outcome.freed.len(), 2);
    let [Warning { reason: "FreeDiskSpaceFailed", message }] = outcome.warnings.as_slice() else {
        panic!("{outcome:?}")
    };
    assert!(message.contains("(100% of 1000 B used)") && message.contains("freed 120 bytes"), "{message}");
    assert_eq!(ids(&store), ["c"]);
    let outcome = collector.round(|_| Ok(Disk { capacity: 0, available: 0 })).await;
    let reasons =
        |outcome: CollectionOutcome| -> Vec<_> { outcome.warnings.iter().map(|told| told.reason).collect() };
    assert_eq!(reasons(outcome), ["InvalidDiskCapacity", "ImageGCFailed"]);
    // Once is nothing, twice in a row is told.
    assert_eq!(reasons(collector.round(|_| Ok(Disk { capacity: 1000, available: 900 })).await), [""; 0]);
    let gone = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    assert_eq!(reasons(collector.round(gone).await), [""; 0]);
    assert_eq!(reasons(collector.round(gone).await), ["ImageGCFailed"]);
}

#[tokio::test(start_paused = true)]
async fn age_counts_although_the_disk_cannot_be_seen() {
    let (mut collector, store) = collector(false);
    collector.settings.max_age = Duration::from_secs(60);
    let gone = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    collector.round(gone).await;
    assert_eq!(ids(&store), ["a", "b", "c"]);
    tokio::time::advance(Duration::from_secs(61)).await;
    let outcome = collector.round(gone).await;
    assert_eq!((outcome.for_age, ids(&store)), (2, vec!["c".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_removed_keeps_no_other_from_going() {
    let (mut collector, store) = collector(true);
    let first = collector.round(|_| Ok(Disk { capacity: 1000, available: 0 })).await;
    assert_eq!(first.warnings, []);
    let outcome = collector.round(|_| Ok(Disk { capacity: 1000, available: 0 })).await;
    assert_eq!((outcome.freed.len(), ids(&store).len()), (0, 3));
    let [Warning { reason: "ImageGCFailed", message }] = outcome.warnings.as_slice() else {
        panic!("{outcome:?}")
    };
    assert!(message.contains("a: read-only file system, b: read-only file system"), "{message}");
}

/// Upstream does not even look then, and so tells no disk's troubles.
#[tokio::test(start_paused = true)]
async fn it_is_off_at_100_percent_without_an_age_but_for_those_who_ask() {
    let (mut collector, store) = collector(false);
    collector.settings.high_percent = 100;
    let reclaimer = collector.reclaimer();
    let (_trigger, drain) = drain::token();
    let running = tokio::spawn(collector.run(drain, drop));
    tokio::time::sleep(EVERY * 3).await;
    assert_eq!(ids(&store), ["a", "b", "c"]);
    reclaimer.remove_unused().await.unwrap();
    assert_eq!(ids(&store), ["c"], "a container uses it");
    running.abort();
}
