//! The image pull manager: a pod may use an image of the node only if it could have pulled it. Owns the
//! decision and what is recorded for it; never pulls. Called before and after each pull.
//!
//! ```text
//! intent ──pulled──▶ record of who may ──image removed──▶ nothing
//!    └─────failed────────────────────────────────────────▶ nothing
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use gantry_metrics::Metrics;
use gantry_model::clock::Clock;
use gantry_model::names::without_tag;

use super::keyring::{Coordinates, Offer, Origin};
use super::pull_records::{Credentials, Error, PullAccount, PullRecords, PullSecret, PulledRecord};
use crate::config::image_verification::Policy;
use crate::gc::StoredImage;

/// From so many secrets on no more are learnt from those who only look.
const ENOUGH: usize = 100;

/// Decides whether a pod may use an image that is on the node.
#[derive(Debug)]
pub(super) struct ImagePullManager {
    policy: Policy,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    /// Held over each look and change: records are read before they are written.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    records: PullRecords,
    /// Pulls under way, by image.
    under_way: BTreeMap<String, u32>,
}

/// What the records say before a pod was asked for its credentials.
enum PullVerification {
    /// The answer.
    Settled { pull: bool, result: &'static str },
    /// It hangs on these.
    Secrets(Credentials),
}

impl ImagePullManager {
    pub(super) fn open(
        root_dir: &Path,
        policy: Policy,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        let state = Mutex::new(State { records: PullRecords::open(root_dir)?, under_way: BTreeMap::new() });
        Ok(Self { policy, clock, metrics, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pulls that an earlier kubelet began and did not see the end of. One whose image is there was
    /// pulled, nobody knows with what: whoever wants it has to show that he may.
    pub(super) fn settle(&self, images: &[StoredImage]) {
        let now = self.now();
        let state = self.state();
        for intent in state.records.intents() {
            let Some(image) = images.iter().find(|image| image.names.contains(&intent)) else { continue };
            let settled = match state.records.read_pulled(&image.id) {
                Ok(Some(_)) => Ok(()),
                // What cannot be read says nothing.
                Ok(None) | Err(_) => state.records.write_pulled(&PulledRecord::new(&image.id, &now)),
            };
            if let Err(error) = settled.and_then(|()| state.records.forget_intent(&intent)) {
                tracing::error!(image = intent, %error, "failed to write an image pull record");
            }
        }
        self.count(&state.records);
    }

    /// Before a pull.
    pub(super) fn begins(&self, image: &str) -> Result<(), Error> {
        let mut state = self.state();
        state.records.intend(image)?;
        *state.under_way.entry(image.to_owned()).or_default() += 1;
        self.count(&state.records);
        Ok(())
    }

    /// After it, with what it was done.
    pub(super) fn record_pull_success(&self, image: &str, image_ref: &str, with: Option<&Offer>) {
        let mut state = self.state();
        match learn(&state.records, image, image_ref, &credentials_of(with), &self.now()) {
            Ok(()) => state.ends(image),
            // The intent stays: that the image was pulled here must not be forgotten.
            Err(error) => tracing::error!(image_ref, %error, "failed to write image pulled record"),
        }
        self.count(&state.records);
    }

    /// After it, in vain.
    pub(super) fn record_pull_failure(&self, image: &str) {
        let mut state = self.state();
        state.ends(image);
        self.count(&state.records);
    }

    /// Whether a pod has to pull the image although it is there; `offers` are asked for its
    /// credentials only when they matter.
    pub(super) async fn must_pull<'a>(
        &self,
        image: &str,
        image_ref: &str,
        offers: impl FnOnce() -> BoxFuture<'a, Vec<Offer>>,
    ) -> bool {
        let (pull, result) = match self.known(image, image_ref) {
            PullVerification::Settled { pull, result } => (pull, result),
            PullVerification::Secrets(known) => {
                let offers = offers().await;
                if self.may(image, image_ref, &known, &offers) {
                    (false, "credentialRecordFound")
                } else {
                    (true, "mustAuthenticate")
                }
            }
        };
        self.metrics.image_mustpull_checks.inc([result]);
        pull
    }

    fn known(&self, image: &str, image_ref: &str) -> PullVerification {
        let settled = |pull, result| PullVerification::Settled { pull, result };
        let state = self.state();
        let record = match state.records.read_pulled(image_ref) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(%error, "Unable to access cache records about image pulls");
                return settled(true, "error");
            }
        };
        let pulled_here = record.is_some() || state.under_way.contains_key(image);
        let pulled_here = match pulled_here {
            true => true,
            false => match state.records.is_intended(image) {
                Ok(intended) => intended,
                Err(error) => {
                    tracing::error!(%error, "Unable to access cache records about image pulls");
                    return settled(true, "error");
                }
            },
        };
        if !self.policy.verifies(image, pulled_here) {
            return settled(false, "credentialPolicyAllowed");
        }
        let known = record.and_then(|record| record.credential_mapping.get(without_tag(image)).cloned());
        match known {
            Some(known) if known.node_pods_accessible => settled(false, "credentialRecordFound"),
            Some(known)
                if !known.kubernetes_secrets.is_empty() || !known.kubernetes_service_accounts.is_empty() =>
            {
                PullVerification::Secrets(known)
            }
            Some(_) | None => settled(true, "mustAuthenticate"),
        }
    }

    /// Whether one of the pod's own credentials is known to fit.
    fn may(&self, image: &str, image_ref: &str, known: &Credentials, offers: &[Offer]) -> bool {
        for offer in offers {
            let Origin::Secret(_) = &offer.origin else { continue };
            let own = credentials_of(Some(offer));
            for (own, known_secret) in own
                .kubernetes_secrets
                .iter()
                .flat_map(|o| known.kubernetes_secrets.iter().map(move |k| (o, k)))
            {
                let same_hash = !known_secret.credential_hash.is_empty()
                    && own.credential_hash == known_secret.credential_hash;
                let same = known_secret.is(own);
                if (same_hash || same) && !(same_hash && same) && known.kubernetes_secrets.len() < ENOUGH {
                    // It counts from now on, whatever becomes of the other.
                    self.learn_secret(image, image_ref, own);
                }
                if same_hash || (same && known.kubernetes_secrets.len() < ENOUGH) {
                    return true;
                }
            }
        }
        // As upstream: of several the first stands for the pod.
        let account = offers.iter().find_map(|offer| match &offer.origin {
            Origin::ServiceAccount(account) => Some(account_of(account)),
            _ => None,
        });
        account.is_some_and(|account| known.kubernetes_service_accounts.contains(&account))
    }

    fn learn_secret(&self, image: &str, image_ref: &str, secret: &PullSecret) {
        let new = Credentials { kubernetes_secrets: vec![secret.clone()], ..Credentials::default() };
        if let Err(error) = learn(&self.state().records, image, image_ref, &new, &self.now()) {
            tracing::error!(image, image_ref, %error, "failed to write an image pulled record");
        }
    }

    /// Images were removed: of those that are not `left`, records of before `until` go.
    pub(super) fn prune(&self, left: &[String], until: i64) {
        let state = self.state();
        for record in state.records.all_pulled() {
            let updated = record.last_updated_time.parse::<jiff::Timestamp>();
            let older = updated.is_ok_and(|at| at.as_nanosecond() < i128::from(until));
            if !older || left.contains(&record.image_ref) {
                continue;
            }
            if let Err(error) = state.records.forget_pulled(&record.image_ref) {
                tracing::error!(image_ref = record.image_ref, %error, "failed to remove an ImagePulledRecord");
            }
        }
        self.count(&state.records);
    }

    fn count(&self, records: &PullRecords) {
        let (pulling, pulled) = records.counts();
        #[expect(clippy::cast_precision_loss, reason = "far fewer files than that")]
        let number = |count: usize| count as f64;
        self.metrics.image_pull_intents.set([], number(pulling));
        self.metrics.image_pulled_records.set([], number(pulled));
    }

    fn now(&self) -> String {
        let now = jiff::Timestamp::from_nanosecond(i128::from(self.clock.wall_nanos())).unwrap_or_default();
        now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

impl State {
    fn ends(&mut self, image: &str) {
        match self.under_way.get_mut(image) {
            Some(count) if *count > 1 => *count -= 1,
            _ => match self.records.forget_intent(image) {
                Ok(()) => {
                    self.under_way.remove(image);
                }
                Err(error) => tracing::error!(image, %error, "failed to remove image pull intent"),
            },
        }
    }
}

fn learn(
    records: &PullRecords,
    image: &str,
    image_ref: &str,
    new: &Credentials,
    now: &str,
) -> Result<(), Error> {
    let known = records.read_pulled(image_ref).unwrap_or_else(|error| {
        tracing::info!(image, %error, "failed to retrieve an ImagePulledRecord");
        None
    });
    let is_new = known.is_none();
    let mut record = known.unwrap_or_else(|| PulledRecord::new(image_ref, now));
    if record.merge(without_tag(image), new, now) || is_new {
        records.write_pulled(&record)?;
    }
    Ok(())
}

/// What is noted of the credentials that an image was got with.
fn credentials_of(offer: Option<&Offer>) -> Credentials {
    match offer.map(|offer| (&offer.origin, &offer.hash)) {
        None | Some((Origin::Node, _)) => {
            Credentials { node_pods_accessible: true, ..Credentials::default() }
        }
        Some((Origin::Secret(Coordinates { uid, namespace, name }), hash)) => {
            let secret = PullSecret {
                uid: uid.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                credential_hash: hash.clone(),
            };
            Credentials { kubernetes_secrets: vec![secret], ..Credentials::default() }
        }
        Some((Origin::ServiceAccount(account), _)) => {
            let accounts = vec![account_of(account)];
            Credentials { kubernetes_service_accounts: accounts, ..Credentials::default() }
        }
    }
}

fn account_of(account: &Coordinates) -> PullAccount {
    let Coordinates { uid, namespace, name } = account.clone();
    PullAccount { uid, namespace, name }
}

#[cfg(test)]
mod tests;
