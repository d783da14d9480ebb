//! A runtime that has what it is given and loses nothing. Passes for [`Keeper`] in tests.

use std::future::ready;
use std::sync::Mutex;

use super::{ImageUse, Keeper, KeeperFuture, StoredImage};

/// Lists as given; what is removed is listed all the same, and remembered.
#[derive(Debug, Default)]
pub(crate) struct FakeKeeper {
    running: Vec<String>,
    images: Vec<StoredImage>,
    removed: Mutex<Vec<String>>,
}

impl FakeKeeper {
    /// These run.
    pub(crate) fn running(ids: &[&str]) -> Self {
        Self { running: ids.iter().map(|id| (*id).to_owned()).collect(), ..Self::default() }
    }

    /// These are stored.
    pub(crate) fn storing(images: Vec<StoredImage>) -> Self {
        Self { images, ..Self::default() }
    }

    /// What was removed.
    pub(crate) fn removed(&self) -> Vec<String> {
        self.removed.lock().unwrap().clone()
    }
}

impl Keeper for FakeKeeper {
    fn running(&self) -> KeeperFuture<'_, Vec<String>> {
        Box::pin(ready(Ok(self.running.clone())))
    }

    fn log_path<'a>(&'a self, container: &'a str) -> KeeperFuture<'a, String> {
        Box::pin(ready(Ok(format!("/logs/{container}"))))
    }

    fn reopen_log<'a>(&'a self, _: &'a str) -> KeeperFuture<'a, ()> {
        Box::pin(ready(Ok(())))
    }

    fn images(&self) -> KeeperFuture<'_, Vec<StoredImage>> {
        Box::pin(ready(Ok(self.images.clone())))
    }

    fn images_in_use(&self) -> KeeperFuture<'_, Vec<ImageUse>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn remove_image<'a>(&'a self, id: &'a str) -> KeeperFuture<'a, ()> {
        self.removed.lock().unwrap().push(id.to_owned());
        Box::pin(ready(Ok(())))
    }

    fn image_folder(&self) -> KeeperFuture<'_, String> {
        Box::pin(ready(Ok("/images".to_owned())))
    }
}
