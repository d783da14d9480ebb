//! Names that are taken: of sandboxes `name_namespace_uid_attempt`, of containers with the sandbox's
//! id, as containerd builds them. Owns the reservation and who waits for whom: a call that is made again
//! while the first one runs, or after its answer was lost, gets what the first one made. A name never
//! outlives its attempt. Called by the RPC handlers and recovery.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::Notify;

use gantry_base::mutex::lock;
use gantry_image::Digest;

/// Taken names, each with who holds it.
#[derive(Debug, Default)]
pub(crate) struct Names {
    taken: Mutex<BTreeMap<String, NameHolder>>,
    /// Told of each attempt that has ended, either way.
    ended: Notify,
}

/// ```text
/// UnderWay ──made──▶ Committed ──object removed──▶ (free)
///     └──failed──▶ (free)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameState {
    UnderWay,
    Committed,
}

#[derive(Debug)]
struct NameHolder {
    id: String,
    /// Fingerprint of what was asked for; empty when that is not known.
    request: String,
    stage: NameState,
}

/// What became of asking for a name.
#[derive(Debug)]
pub(crate) enum Claim<'a> {
    /// Nobody has it: make the object.
    Mine(Reservation<'a>),
    /// The same was asked for before, and is there under this id.
    Done(String),
}

/// Frees the name when dropped, unless it was kept.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    names: &'a Names,
    id: String,
    committed: bool,
}

/// The name belongs to another object. In containerd's words: clients look for them.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("failed to reserve {kind} name {name:?}: name {name:?} is reserved for {id:?}")]
pub struct NameTaken {
    /// "sandbox" or "container".
    pub kind: &'static str,
    /// The name.
    pub name: String,
    /// Who has it.
    pub id: String,
}

/// What two requests that ask for the same have in common: maps have their keys in order, so equal
/// messages have equal bytes.
#[must_use]
pub(crate) fn fingerprint(request: &impl prost::Message) -> String {
    Digest::of(&request.encode_to_vec()).hex()
}

impl Names {
    /// Takes a name for `id`, or waits for the call that asked for the same under it and is under way.
    /// One that fails leaves the name to who waits.
    ///
    /// # Errors
    /// When another request has it.
    pub(crate) async fn claim(
        &self,
        kind: &'static str,
        name: &str,
        id: &str,
        request: &str,
    ) -> Result<Claim<'_>, NameTaken> {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // From here on no end is missed.
            ended.as_mut().enable();
            if let Some(claim) = self.try_claim(kind, name, id, request)? {
                return Ok(claim);
            }
            ended.await;
        }
    }

    /// None: the same is being made just now.
    fn try_claim(
        &self,
        kind: &'static str,
        name: &str,
        id: &str,
        request: &str,
    ) -> Result<Option<Claim<'_>>, NameTaken> {
        let mut taken = lock(&self.taken);
        match taken.get(name) {
            None => {
                let holder =
                    NameHolder { id: id.to_owned(), request: request.to_owned(), stage: NameState::UnderWay };
                taken.insert(name.to_owned(), holder);
                Ok(Some(Claim::Mine(Reservation { names: self, id: id.to_owned(), committed: false })))
            }
            Some(holder) if holder.request.is_empty() || holder.request != request => {
                Err(NameTaken { kind, name: name.to_owned(), id: holder.id.clone() })
            }
            Some(holder) if holder.stage == NameState::Committed => Ok(Some(Claim::Done(holder.id.clone()))),
            Some(_) => Ok(None),
        }
    }

    /// Takes a name for an object that exists, as its record says.
    ///
    /// # Errors
    /// When another one has it.
    pub(crate) fn restore(
        &self,
        kind: &'static str,
        name: &str,
        id: &str,
        request: &str,
    ) -> Result<(), NameTaken> {
        let mut taken = lock(&self.taken);
        if let Some(holder) = taken.get(name) {
            return Err(NameTaken { kind, name: name.to_owned(), id: holder.id.clone() });
        }
        let holder =
            NameHolder { id: id.to_owned(), request: request.to_owned(), stage: NameState::Committed };
        taken.insert(name.to_owned(), holder);
        Ok(())
    }

    /// Frees what `id` holds.
    pub(crate) fn release(&self, id: &str) {
        lock(&self.taken).retain(|_, holder| holder.id != id);
        self.ended.notify_waiters();
    }
}

impl Reservation<'_> {
    /// The object exists now: the name stays until it is forgotten.
    pub(crate) fn commit(mut self) {
        self.committed = true;
        for holder in lock(&self.names.taken).values_mut().filter(|holder| holder.id == self.id) {
            holder.stage = NameState::Committed;
        }
        self.names.ended.notify_waiters();
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.names.release(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn mine<'a>(names: &'a Names, id: &str, request: &str) -> Reservation<'a> {
        match names.claim("container", "web", id, request).await {
            Ok(Claim::Mine(reservation)) => reservation,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_name_is_free_again_when_its_attempt_fails_and_taken_when_it_is_kept() {
        let names = Names::default();
        drop(mine(&names, "1", "a").await);
        mine(&names, "2", "a").await.commit();
        let taken = names.claim("container", "web", "3", "b").await.unwrap_err();
        assert_eq!(
            taken.to_string(),
            r#"failed to reserve container name "web": name "web" is reserved for "2""#
        );
        names.release("2");
        mine(&names, "3", "b").await.commit();
    }

    #[tokio::test]
    async fn rt_4_the_same_asked_for_again_is_what_was_made_and_another_request_is_refused_at_once() {
        let names = Names::default();
        let first = mine(&names, "1", "a").await;
        assert!(names.claim("container", "web", "2", "b").await.is_err(), "while the first is under way");
        first.commit();
        assert!(matches!(names.claim("container", "web", "2", "a").await, Ok(Claim::Done(id)) if id == "1"));
        // Of a record that an earlier version wrote nobody knows what it was made for.
        names.restore("sandbox", "old", "9", "").unwrap();
        assert!(names.claim("sandbox", "old", "2", "").await.is_err());
    }

    #[tokio::test]
    async fn rt_4_a_call_beside_the_same_call_waits_for_its_end_and_goes_on_by_itself_if_it_failed() {
        for fails in [false, true] {
            let names = Names::default();
            let first = mine(&names, "1", "a").await;
            let second = names.claim("container", "web", "2", "a");
            let end = async {
                // Others get their turn first: the second one waits by now.
                tokio::task::yield_now().await;
                if fails { drop(first) } else { first.commit() }
            };
            let (second, ()) = tokio::join!(second, end);
            match second {
                Ok(Claim::Done(id)) if !fails => assert_eq!(id, "1"),
                Ok(Claim::Mine(_)) if fails => {}
                other => panic!("fails: {fails}: {other:?}"),
            }
        }
    }

    #[test]
    fn equal_messages_have_one_fingerprint() {
        let config = |pairs: [(&str, &str); 2]| gantry_proto::cri::PodSandboxConfig {
            labels: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            ..Default::default()
        };
        let one = fingerprint(&config([("a", "1"), ("b", "2")]));
        assert_eq!(one, fingerprint(&config([("b", "2"), ("a", "1")])));
        assert_ne!(one, fingerprint(&config([("a", "1"), ("b", "3")])));
    }
}
