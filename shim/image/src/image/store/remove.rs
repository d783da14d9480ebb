//! The going of an image: its names, its record, and then the layers that nobody needs. Owns the
//! order in which that becomes durable; never decides who needs a layer (that is `needed`). Called by
//! `Images::remove` on blocking threads.

use gantry_failpoint::failpoint;

use super::record::StoreChange;
use super::{ImageStore, StoreError};

impl ImageStore {
    /// Forgets an image and all its names, durably. False: there was none. Its layers are the
    /// caller's to release.
    ///
    /// Disk first: layers may go as soon as memory has forgotten the image, what is pulled next may
    /// get the same folders, and after a power cut a record on disk would then stand for half of the
    /// new files. After a failure, or a crash before this returns, the image is there as before.
    ///
    /// # Errors
    /// redb's, the journal's.
    pub(crate) fn remove_image(&self, id: &str) -> Result<bool, StoreError> {
        let _writing = self.writing();
        let mut journal = self.journal();
        if self.image_record(id).is_none() {
            return Ok(false);
        }
        let names = self.names_of(id);
        let change = [StoreChange::DropImage { id: id.to_owned(), names: names.clone() }];
        self.disk.apply(change.iter())?;
        failpoint!("image.dropped");
        journal.forget_dropped(&change)?;
        let [change] = change;
        if journal.names_any(&names) {
            // An earlier owner of a name has yet to reach the disk, and would have it again.
            journal.write(change.clone())?;
        }
        self.write(|state| state.note(change));
        Ok(true)
    }
}
