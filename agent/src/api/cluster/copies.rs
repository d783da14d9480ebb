//! Copies of single objects: each is followed by one task for as long as it is kept. Owns the tasks;
//! never decides what is kept. Called by [`super`].

#![expect(clippy::disallowed_methods, reason = "the watch is aborted with its last pod")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use gantry_kube_client::reflector::{self, Object, Query};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::super::references::Kind;
use super::{ClusterState, LAG, RETRY};

/// What is known of one object.
///
/// ```text
/// Asking ──listed──▶ Is(some or none) ──event──▶ Is …
///    └────refused──▶ Failed ──listed──▶ Is
/// ```
#[derive(Debug)]
pub(super) enum CopyState<T> {
    Asking,
    Is(Option<Arc<T>>),
    Failed(Arc<str>),
}

/// A copy that changes with its object.
pub(super) struct Copy<T> {
    known: watch::Receiver<CopyState<T>>,
    task: AbortHandle,
}

impl<T> Drop for Copy<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// By namespace and name.
pub(super) struct Copies<T>(BTreeMap<(String, String), Copy<T>>);

impl<T> Default for Copies<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Copies<T> {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<watch::Receiver<CopyState<T>>> {
        let copy = self.0.get(&(namespace.to_owned(), name.to_owned()))?;
        Some(copy.known.clone())
    }

    /// Lets go of the others, and begins those that are missing.
    pub(super) fn keep_only(
        &mut self,
        wanted: BTreeSet<(String, String)>,
        begin: impl Fn(&str, &str) -> Copy<T>,
    ) {
        self.0.retain(|key, _| wanted.contains(key));
        for (namespace, name) in wanted {
            let copy = || begin(&namespace, &name);
            self.0.entry((namespace.clone(), name.clone())).or_insert_with(copy);
        }
    }
}

/// Begins to follow an object. One that says that it never changes is read once.
pub(super) fn follow<K: Object, T: PartialEq + Send + Sync + 'static>(
    shared: &Arc<ClusterState>,
    kind: Kind,
    (namespace, name): (&str, &str),
    convert: fn(K) -> T,
    is_fixed: fn(&K) -> bool,
) -> Copy<T> {
    let query = Query { path: kind.path(namespace), field_selector: format!("metadata.name={name}") };
    let client = shared.client.clone();
    let (out, known) = watch::channel(CopyState::Asking);
    let (whom, namespace, name) =
        (Weak::clone(&Arc::downgrade(shared)), namespace.to_owned(), name.to_owned());
    let task = tokio::spawn(async move {
        sleep(LAG).await;
        let mut objects = reflector::reflect_soon::<K>(client, query, RETRY);
        loop {
            let now = objects.borrow_and_update().clone();
            let object = now.items.into_values().next();
            let fixed = object.as_ref().is_some_and(|object| is_fixed(object));
            let next = match (now.synced, now.failure) {
                (true, _) => Some(CopyState::Is(object.map(|object| Arc::new(convert((*object).clone()))))),
                (false, Some(failure)) => Some(CopyState::Failed(failure)),
                (false, None) => None,
            };
            if next.is_some_and(|next| replace(&out, next))
                && let Some(shared) = whom.upgrade()
            {
                shared.notify_followers(kind, &namespace, &name);
            }
            // Its watch ends with the receiver.
            if fixed || objects.changed().await.is_err() {
                return;
            }
        }
    });
    Copy { known, task: task.abort_handle() }
}

/// Puts the news in the place of what was known; true when pods are to hear of it.
fn replace<T: PartialEq>(out: &watch::Sender<CopyState<T>>, next: CopyState<T>) -> bool {
    let mut tell = false;
    out.send_if_modified(|known| {
        match (&*known, &next) {
            // What is known stays good while the server is away.
            (CopyState::Is(_), CopyState::Failed(_) | CopyState::Asking) => return false,
            (CopyState::Is(old), CopyState::Is(new)) if old == new => return false,
            (CopyState::Is(_), CopyState::Is(_)) => tell = true,
            _ => {}
        }
        *known = next;
        true
    });
    tell
}

/// The copy once it is known; else why it is not, as far as that is known.
pub(super) async fn settled<T>(
    mut copy: watch::Receiver<CopyState<T>>,
    patience: Duration,
) -> Result<Option<Arc<T>>, Option<String>> {
    let known = timeout(patience, copy.wait_for(|known| matches!(known, CopyState::Is(_)))).await;
    if let Ok(Ok(known)) = &known
        && let CopyState::Is(object) = &**known
    {
        return Ok(object.clone());
    }
    drop(known);
    match &*copy.borrow() {
        CopyState::Is(object) => Ok(object.clone()),
        CopyState::Failed(why) => Err(Some(why.to_string())),
        CopyState::Asking => Err(None),
    }
}
