//! Names that are taken: of sandboxes `name_namespace_uid_attempt`, of containers with the sandbox's
//! id, as containerd builds them. Owns the reservation; a name never outlives its attempt. Called by
//! the RPC handlers and recovery.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lock;

/// Taken names, each with the id that holds it.
#[derive(Debug, Default)]
pub(crate) struct Names {
    taken: Mutex<BTreeMap<String, String>>,
}

/// Frees the name when dropped, unless it was kept.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    names: &'a Names,
    id: String,
    kept: bool,
}

/// The name belongs to another object.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("name {name:?} is reserved for {id:?}")]
pub struct Taken {
    /// The name.
    pub name: String,
    /// Who has it.
    pub id: String,
}

impl Names {
    /// Takes a name for `id`.
    ///
    /// # Errors
    /// When another id has it.
    pub(crate) fn reserve(&self, name: &str, id: &str) -> Result<Reservation<'_>, Taken> {
        let mut taken = lock(&self.taken);
        if let Some(holder) = taken.get(name) {
            return Err(Taken { name: name.to_owned(), id: holder.clone() });
        }
        taken.insert(name.to_owned(), id.to_owned());
        Ok(Reservation { names: self, id: id.to_owned(), kept: false })
    }

    /// Frees what `id` holds.
    pub(crate) fn release(&self, id: &str) {
        lock(&self.taken).retain(|_, holder| holder != id);
    }
}

impl Reservation<'_> {
    /// The object exists now: the name stays until it is forgotten.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.names.release(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_again_when_its_attempt_fails_and_taken_when_it_is_kept() {
        let names = Names::default();
        drop(names.reserve("web", "1").unwrap());
        names.reserve("web", "2").unwrap().keep();
        assert_eq!(names.reserve("web", "3").unwrap_err(), Taken { name: "web".into(), id: "2".into() });
        names.release("2");
        assert!(names.reserve("web", "3").is_ok());
    }
}
