//! Tokens of service accounts, by TokenRequest, kept until they are due. Owns the tokens; never writes
//! one to a file. Called by [`super`].
//!
//! As upstream's token manager: renewed after 80 % of its life or 24 hours, with some seconds of
//! jitter; the old one stays in use as long as it is valid and the server gives no new one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_model::clock::Clock;
use gantry_model::pod::PodUid;
use gantry_model::pod::token::TokenOf;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use kube::Client;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use super::{PATIENCE, RETRY};
use crate::api::{AccountToken, Error};

const SECOND: i64 = 1_000_000_000;
const LONGEST: i64 = 24 * 3600 * SECOND;
const JITTER: f64 = 10.0;

/// One token; times in Unix nanoseconds.
#[derive(Clone, PartialEq, Eq)]
struct CachedToken {
    token: String,
    expires: i64,
    /// Asked for, in seconds.
    life: i64,
}

impl CachedToken {
    fn told(&self) -> AccountToken {
        AccountToken { text: self.token.clone(), expires: self.expires }
    }
}

/// Whether it is time for a new one.
fn is_due(held: &CachedToken, now: i64, random: f64) -> bool {
    // Whole seconds of it, up to ten.
    #[expect(clippy::cast_possible_truncation, reason = "0 to 10")]
    let jitter = (random * JITTER) as i64 * SECOND;
    let issued = held.expires - held.life * SECOND;
    now > issued + LONGEST - jitter || now > held.expires - held.life * SECOND / 5 - jitter
}

/// One asker at a time for each.
type Slot = Arc<AsyncMutex<Option<CachedToken>>>;

pub(super) struct Tokens {
    client: Client,
    clock: Arc<dyn Clock>,
    slots: Mutex<BTreeMap<TokenOf, Slot>>,
}

impl Tokens {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock, slots: Mutex::default() }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<TokenOf, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn get(&self, of: &TokenOf) -> Result<AccountToken, Error> {
        let slot = self.slots().entry(of.clone()).or_default().clone();
        let mut held = slot.lock().await;
        let now = self.clock.wall_nanos();
        if let Some(held) = &*held
            && !is_due(held, now, gantry_model::random::fraction())
        {
            return Ok(held.told());
        }
        let why = match self.ask(of).await {
            Ok(new) => {
                let token = new.told();
                *held = Some(new);
                return Ok(token);
            }
            Err(why) => why,
        };
        match &*held {
            Some(held) if now < held.expires => {
                tracing::warn!(service_account = of.service_account, error = why, "cannot renew a token");
                Ok(held.told())
            }
            Some(_) => Err(Error {
                message: format!(
                    "token of {}/{} expired and refresh failed: {why}",
                    of.namespace, of.service_account
                ),
            }),
            None => Err(Error { message: format!("failed to fetch token: {why}") }),
        }
    }

    async fn ask(&self, of: &TokenOf) -> Result<CachedToken, String> {
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(of.pod.clone()),
            uid: Some(of.uid.to_string()),
        };
        let spec = TokenRequestSpec {
            audiences: Some(of.audiences.clone()),
            bound_object_ref: Some(bound),
            expiration_seconds: Some(of.seconds),
        };
        let body = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let body = serde_json::to_vec(&body).map_err(|error| error.to_string())?;
        let path =
            format!("/api/v1/namespaces/{}/serviceaccounts/{}/token", of.namespace, of.service_account);
        let mut wait = RETRY;
        loop {
            let request = http::Request::post(&path).header("Content-Type", "application/json");
            let request = request.body(body.clone()).map_err(|error| error.to_string())?;
            match timeout(PATIENCE * 4, self.client.request::<TokenRequest>(request)).await {
                Err(_) => return Err("the API server does not answer".to_owned()),
                Ok(Ok(answer)) => return cache_token(answer, of.seconds),
                // Just after the binding the authorizer may not know of the pod yet.
                Ok(Err(kube::Error::Api(status))) if status.code == 403 && wait < PATIENCE / 2 => {}
                Ok(Err(kube::Error::Api(status))) => return Err(status.message),
                Ok(Err(error)) => return Err(error.to_string()),
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// Those that are due.
    pub(super) fn due(&self) -> BTreeSet<TokenOf> {
        let now = self.clock.wall_nanos();
        let is = |slot: &Slot| match slot.try_lock() {
            Ok(held) => held.as_ref().is_some_and(|held| is_due(held, now, 0.0)),
            // Somebody is asking right now.
            Err(_) => false,
        };
        self.slots().iter().filter(|(_, slot)| is(slot)).map(|(of, _)| of.clone()).collect()
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.slots().retain(|of, _| of.uid != *uid);
    }
}

/// The server may give another life than asked for: what it says counts.
fn cache_token(answer: TokenRequest, asked: i64) -> Result<CachedToken, String> {
    let life = answer.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(asked);
    let none = || "the API server answered without a token".to_owned();
    let status = answer.status.ok_or_else(none)?;
    let (token, expires) = status.token.zip(status.expiration_timestamp).ok_or_else(none)?;
    let expires = i64::try_from(expires.0.as_nanosecond()).unwrap_or(i64::MAX);
    Ok(CachedToken { token, expires, life })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_12_a_token_is_due_at_four_fifths_of_its_life_or_after_a_day() {
        let hour = CachedToken { token: String::new(), expires: 3600 * SECOND, life: 3600 };
        for (now, random, due) in
            [(0, 1.0, false), (2869, 1.0, false), (2871, 1.0, true), (2879, 0.0, false), (2881, 0.0, true)]
        {
            assert_eq!(is_due(&hour, now * SECOND, random), due, "{now} s");
        }
        let week = CachedToken { token: String::new(), expires: 7 * LONGEST, life: 7 * 24 * 3600 };
        assert!(!is_due(&week, LONGEST - SECOND, 0.0));
        assert!(is_due(&week, LONGEST + SECOND, 0.0));
        // The clock went back: it is not due, and nothing loops.
        assert!(!is_due(&hour, -3600 * SECOND, 1.0));
    }
}
