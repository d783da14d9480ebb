//! A certificate that is asked for anew before it ends, for as long as the kubelet runs. Owns when
//! and how often; never who uses it. Started by bootstrap and by the serving certificate.
//!
//! ```text
//! no certificate ─┐
//! 70–90 % of life ┼─► ask ─► wait ─► keep ─► show
//! other names ────┘     └─ failed: 2, 4, 8, 16, 32 … s
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_metrics::Metrics;
use gantry_model::clock::Clock;
use gantry_model::random;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{mpsc, watch};

use super::csr::{self, NODES, Signer, Template};
use super::pair::{Leaf, Pair};
use super::store::{self, Store};
use super::{Current, Notice};

/// How long one request may wait for its signature.
const SIGNED_WITHIN: Duration = Duration::from_secs(15 * 60);

/// The clock may jump: nothing is slept through that is longer.
const LOOK: Duration = Duration::from_secs(10);

const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// Whose credentials ask for a certificate: those that are current, or those of the bootstrap.
pub type Ask = Box<dyn Fn(bool) -> Result<kube::Client, super::client::Error> + Send + Sync>;

/// A certificate under care.
pub struct Rotation {
    /// Where it is kept.
    pub store: Store,
    /// Who signs it.
    pub signer: Signer,
    /// What it should say; None asks for nothing.
    pub template: watch::Receiver<Option<Template>>,
    /// Where it is shown.
    pub current: watch::Sender<Option<Arc<Pair>>>,
    /// Through whom.
    pub ask: Ask,
    /// Where trouble is told.
    pub notices: mpsc::Sender<Notice>,
    /// Whether the API server answered the last time.
    pub healthy: watch::Sender<bool>,
    /// Ask at once, whatever there is.
    pub force: bool,
    /// A key that outlives a restart until its request is signed.
    pub key_file: Option<PathBuf>,
    /// Counts renewals that failed, and how old a certificate became.
    pub metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Rotation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rotation")
            .field("store", &self.store)
            .field("signer", &self.signer)
            .finish_non_exhaustive()
    }
}

/// When to ask again: after 70 to 90 % of its life, so that nodes that came together part.
#[must_use]
pub fn deadline(leaf: &Leaf, chance: f64) -> Timestamp {
    let life = leaf.not_after.duration_since(leaf.not_before);
    let part = life.mul_f64(0.2f64.mul_add(chance.clamp(0.0, 1.0), 0.7));
    leaf.not_before.checked_add(part).unwrap_or(leaf.not_after)
}

/// Between now and its end.
fn halfway(leaf: &Leaf, now: Timestamp) -> Timestamp {
    let half = leaf.not_after.duration_since(now) / 2;
    now.checked_add(half).unwrap_or(leaf.not_after)
}

/// Whether a certificate says all that is wanted; it may say more.
#[must_use]
pub fn satisfies(leaf: &Leaf, template: &Template) -> bool {
    leaf.common_name == template.common_name()
        && leaf.organizations.contains(NODES)
        && template.names.dns.is_subset(&leaf.dns)
        && template.names.ips.is_subset(&leaf.ips)
}

/// One that nobody changes any more stays as it is.
async fn wait_for_change(template: &mut watch::Receiver<Option<Template>>) {
    if template.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Whole seconds of its life, negative once it is over; without a certificate there is no end.
pub(super) fn remaining_seconds(current: &Current) -> f64 {
    let end = current.borrow().as_ref().map(|pair| pair.leaf().not_after);
    end.map_or(f64::INFINITY, |end| end.duration_since(Timestamp::now()).as_secs_f64().trunc())
}

fn until(time: Timestamp) -> Duration {
    Duration::try_from(time.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO)
}

impl Rotation {
    /// Until nobody looks at the certificate any more.
    pub async fn run(mut self) {
        let mut told = None;
        // Signers date back, and short-lived certificates seem old at once: half of what is left is
        // waited for in any case.
        let mut earliest = Timestamp::UNIX_EPOCH;
        loop {
            let Some(template) = self.template.borrow_and_update().clone() else {
                tokio::select! {
                    // Both only wait.
                    () = self.current.closed() => return,
                    () = wait_for_change(&mut self.template) => {}
                }
                continue;
            };
            let due = self.due(&template, earliest);
            tracing::debug!(signer = ?self.signer, rotate = %due, "certificate rotation deadline determined");
            if !self.rest(due, &mut told).await {
                return;
            }
            if self.template.has_changed().unwrap_or(false) || Timestamp::now() < due {
                continue;
            }
            if !self.renew(&template, &mut told).await {
                return;
            }
            if let Some(pair) = &*self.current.borrow() {
                earliest = halfway(pair.leaf(), Timestamp::now());
            }
        }
    }

    fn due(&mut self, template: &Template, earliest: Timestamp) -> Timestamp {
        if std::mem::take(&mut self.force) {
            return Timestamp::now();
        }
        match &*self.current.borrow() {
            Some(pair) if satisfies(pair.leaf(), template) => {
                deadline(pair.leaf(), random::fraction()).max(earliest)
            }
            _ => Timestamp::now(),
        }
    }

    /// Until it is time, or something else is wanted. False when nobody looks any more.
    async fn rest(&mut self, due: Timestamp, told: &mut Option<&'static str>) -> bool {
        loop {
            self.warn(told).await;
            let left = until(due);
            if left.is_zero() {
                return true;
            }
            tokio::select! {
                // All three only wait.
                () = self.current.closed() => return false,
                () = wait_for_change(&mut self.template) => return true,
                () = tokio::time::sleep(left.min(LOOK)) => {}
            }
        }
    }

    /// Until there is a new one, or something else is wanted. False when nobody looks any more.
    async fn renew(&mut self, template: &Template, told: &mut Option<&'static str>) -> bool {
        let mut pause = Duration::from_secs(2);
        loop {
            let attempt = self.once(template);
            let problem = tokio::select! {
                // A request that is given up is signed for nobody, and the API server forgets it.
                () = self.current.closed() => return false,
                problem = attempt => problem.err(),
            };
            let Some(problem) = problem else { return true };
            match self.signer {
                Signer::Client => self.metrics.certificate_manager_client_errors.inc([]),
                Signer::Serving => self.metrics.server_expiration_errors.inc([]),
            }
            let text = chain(&problem);
            tracing::warn!(signer = ?self.signer, error = text, "certificate request was not signed; trying again");
            self.warn(told).await;
            let jitter = pause.mul_f64(random::fraction() * 0.1);
            tokio::select! {
                () = self.current.closed() => return false,
                () = wait_for_change(&mut self.template) => return true,
                () = tokio::time::sleep(pause + jitter) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn once(&self, template: &Template) -> Result<(), Error> {
        let valid = self.current.borrow().as_ref().is_some_and(|pair| !pair.is_expired(Timestamp::now()));
        let client = (self.ask)(valid).map_err(Error::Client)?;
        let (key, name) = match &self.key_file {
            // The first certificate: the key and the name of its request outlive us.
            Some(path) if !valid => {
                let key = kept_key(path)?;
                let name = csr::digested_name(template, &key, self.signer);
                (key, Some(name))
            }
            _ => (csr::new_key()?, None),
        };
        let asked = csr::ask(client.clone(), template, &key, self.signer, name).await;
        self.healthy.send_replace(is_healthy(&asked));
        let signed = csr::wait(client, &asked?, SIGNED_WITHIN).await;
        if let (Some(path), Err(csr::Error::Refused(_) | csr::Error::Deleted(_))) = (&self.key_file, &signed)
        {
            // The same key would find the same answer.
            remove(path);
        }
        let pair = self.store.update(&signed?, key.serialize_pem().as_bytes(), Timestamp::now())?;
        if let Some(path) = &self.key_file {
            remove(path);
        }
        tracing::info!(signer = ?self.signer, ends = %pair.leaf().not_after, "certificate rotated");
        let old = self.current.send_replace(Some(Arc::new(pair)));
        if let (Some(old), Signer::Serving) = (old, self.signer) {
            let age = Timestamp::now().duration_since(old.leaf().not_before);
            self.metrics.certificate_manager_server_age.observe([], age.as_secs_f64());
        }
        Ok(())
    }

    /// Tells once that a certificate is overdue, and once that it has ended.
    async fn warn(&self, told: &mut Option<&'static str>) {
        let Some(leaf) = self.current.borrow().as_ref().map(|pair| pair.leaf().clone()) else { return };
        let notice = overdue(&leaf, self.signer, Timestamp::now());
        let reason = notice.as_ref().map(|notice| notice.reason);
        if *told == reason {
            return;
        }
        *told = reason;
        if let Some(notice) = notice {
            tracing::warn!(reason = notice.reason, "{}", notice.message);
            // Who does not listen is told by the log.
            let _ = self.notices.try_send(notice);
        }
    }
}

/// What there is to say about a certificate.
fn overdue(leaf: &Leaf, signer: Signer, now: Timestamp) -> Option<Notice> {
    let what = match signer {
        Signer::Client => "client",
        Signer::Serving => "serving",
    };
    let end = leaf.not_after;
    let (reason, message) = if now > end {
        ("CertificateExpired", format!("The kubelet's {what} certificate expired at {end}"))
    } else if now > deadline(leaf, 1.0).checked_add(grace(leaf)).unwrap_or(end) {
        (
            "CertificateOverdueForRefresh",
            format!("The kubelet's {what} certificate should have been replaced and expires at {end}"),
        )
    } else {
        return None;
    };
    Some(Notice { warning: true, reason, message })
}

/// For a request that is under way.
fn grace(leaf: &Leaf) -> SignedDuration {
    leaf.not_after.duration_since(leaf.not_before).mul_f64(0.02)
}

/// Upstream's reading of an answer: who refuses is alive.
fn is_healthy(asked: &Result<csr::PendingCsr, csr::Error>) -> bool {
    match asked {
        Ok(_) => true,
        Err(csr::Error::Create(source) | csr::Error::Get { source, .. }) => {
            matches!(&**source, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404))
        }
        Err(_) => false,
    }
}

fn remove(path: &std::path::Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove the key of a request");
        }
        _ => {}
    }
}

/// The key of a request that a restart cut short, or a new one, kept.
pub(super) fn kept_key(path: &std::path::Path) -> Result<rcgen::KeyPair, Error> {
    if let Ok(text) = std::fs::read_to_string(path) {
        match rcgen::KeyPair::from_pem(&text) {
            Ok(key) => return Ok(key),
            Err(error) => tracing::warn!(path = %path.display(), %error, "an unreadable key is replaced"),
        }
    }
    let key = csr::new_key()?;
    store::replace(path, key.serialize_pem().as_bytes(), 0o600)?;
    Ok(key)
}

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("a client to request certificates")]
    Client(#[source] super::client::Error),
    #[error("request a certificate")]
    Csr(#[from] csr::Error),
    #[error("keep a certificate")]
    Store(#[from] store::Error),
}

/// How long the kubelet stays without a valid certificate though the API server answers.
const WITHOUT: Duration = Duration::from_secs(5 * 60);

/// Resolves with a reason to end: somebody outside must give new credentials. One that has expired is
/// none, as for upstream's manager of certificates: it gets the five minutes, too. They are those of the
/// monotonic clock: a step of the other must not end the kubelet.
pub async fn must_exit(current: Current, healthy: watch::Receiver<bool>, clock: &dyn Clock) -> String {
    let mut last = (clock.mono(), wall(clock));
    loop {
        tokio::time::sleep(LOOK).await;
        let (mono, now) = (clock.mono(), wall(clock));
        if current.borrow().as_ref().is_some_and(|pair| !pair.is_expired(now)) {
            last = (mono, now);
            continue;
        }
        if mono.saturating_sub(last.0) < WITHOUT {
            continue;
        }
        let since = last.1;
        if *healthy.borrow() {
            return format!("no valid client certificate since {since} and the server is responsive");
        }
        tracing::error!(
            %since,
            "no valid client certificate is found but the server is not responsive: a restart may be necessary to \
             retrieve new initial credentials"
        );
    }
}

fn wall(clock: &dyn Clock) -> Timestamp {
    Timestamp::from_nanosecond(clock.wall_nanos().into()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
