//! Listens for shutdowns of the machine, and has its pods ended before it goes. Owns the delay lock, what the other parts
//! hear, and the way back to a bus that went away; never decides how long a pod may take. Started by the kubelet's wiring.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_metrics::Metrics;
use gantry_model::clock::Clock;
use gantry_model::drain::DrainWatcher;
use gantry_model::shutdown::Shutdown;
use jiff::Timestamp;
use tokio::sync::watch;

use super::decide;
use super::end::end_pods;
use super::logind::{DelayLock, Error, Logind, Session};
use super::record::{self, ShutdownSpan};
use super::words;
use crate::config::shutdown::{ShutdownPeriod, ShutdownPolicy};
use crate::events::sink::Recorder;
use crate::pod::worker::PodHandle;
use crate::pod_source::ApiPods;

/// Before the bus is tried again; doubled each time up to the longest.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// logind is asked so often whether it has read its configuration, as upstream: each time after twice the time.
const READS: u32 = 5;
const FIRST_READ: Duration = Duration::from_millis(100);
/// The API server may take so long to learn how the node is at the very end.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// What it stands on.
#[derive(Debug)]
pub(crate) struct ShutdownWorld {
    /// Of the machine.
    pub logind: Arc<dyn Logind>,
    /// Whom it ends.
    pub pods: watch::Receiver<Arc<[PodHandle]>>,
    /// What the API server has of them; none without one.
    pub seen: Option<watch::Receiver<ApiPods>>,
    /// Where admission and the node's report learn of it.
    pub shutdown: watch::Sender<Shutdown>,
    /// What of it the node's last report had.
    pub reported: watch::Receiver<Shutdown>,
    /// Hears of it.
    pub recorder: Recorder,
    /// Counts it.
    pub metrics: Arc<Metrics>,
    /// Its wall clock.
    pub clock: Arc<dyn Clock>,
    /// The kubelet's root folder.
    pub root: PathBuf,
}

/// The task.
#[derive(Debug)]
pub(crate) struct ShutdownManager {
    policy: ShutdownPolicy,
    world: ShutdownWorld,
    /// Shutdowns wait while it is there.
    lock: Option<DelayLock>,
}

impl ShutdownManager {
    /// Holds nothing yet.
    #[must_use]
    pub(crate) fn new(policy: ShutdownPolicy, world: ShutdownWorld) -> Self {
        Self { policy, world, lock: None }
    }

    /// Until the drain, which releases the lock.
    pub(crate) async fn run(mut self, mut drain: DrainWatcher) {
        tracing::info!(periods = ?self.policy.periods, "Creating node shutdown manager");
        if self.policy.recorded {
            record::recall(&self.world.root, &self.world.metrics);
        }
        tokio::select! {
            () = drain.wait_started() => {}
            () = self.watch_for_ever() => {}
        }
    }

    /// A bus that is not there yet, or not any more, is tried for ever: upstream gives up where the first try fails (#107043).
    async fn watch_for_ever(&mut self) {
        let (mut wait, mut last) = (FIRST_WAIT, String::new());
        loop {
            match self.watch().await {
                Ok(()) => {
                    tracing::error!("Ended to watching the node for shutdown events");
                    (wait, last) = (FIRST_WAIT, String::new());
                }
                Err(error) => {
                    let error = chain(&error);
                    if error != last {
                        tracing::error!(err = error, "Unable to watch the node for shutdown events");
                    }
                    last = error;
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// One connection, until it ends.
    async fn watch(&mut self) -> Result<(), Error> {
        let mut session = self.world.logind.connect().await?;
        let periods = self.periods(&*session).await?;
        match (session.is_shutting_down().await?, self.is_on()) {
            // It began while nobody listened. logind gives no lock any more: what can be done is done.
            (true, false) => self.shut_down(&periods).await,
            (true, true) => {}
            (false, was_on) => {
                if was_on {
                    self.cancel();
                }
                self.lock = Some(session.inhibit().await?);
            }
        }
        tracing::info!("watching the node for shutdown events");
        while let Some(begins) = session.announcement().await {
            tracing::info!(begins, "Shutdown manager detected new shutdown event");
            if begins {
                self.shut_down(&periods).await;
            } else {
                self.cancel();
                self.lock = Some(session.inhibit().await?);
            }
        }
        Ok(())
    }

    fn is_on(&self) -> bool {
        self.world.shutdown.borrow().is_on()
    }

    /// Those of the policy, where logind grants so much; it is asked to.
    async fn periods(&self, session: &dyn Session) -> Result<Vec<ShutdownPeriod>, Error> {
        let periods = &self.policy.periods;
        let requested = decide::requested(periods);
        let mut granted = session.max_delay().await?;
        if requested > granted {
            session.raise_max_delay(requested).await?;
            let mut wait = FIRST_READ;
            for read in 1..=READS {
                granted = session.max_delay().await?;
                if requested <= granted || read == READS {
                    break;
                }
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
        }
        if requested > granted {
            let by = self.world.logind.overruling();
            tracing::error!(
                ?requested,
                ?granted,
                by = ?by,
                "logind does not take the longer InhibitDelayMaxSec: pods get their share of what it grants; a drop-in \
                 whose name comes after 99-kubelet.conf wins over it, mask that by a link to /dev/null of the same name \
                 in /etc/systemd/logind.conf.d"
            );
        }
        Ok(decide::within(periods, granted))
    }

    fn cancel(&self) {
        self.world.recorder.node(words::announced(false));
        self.world.shutdown.send_replace(Shutdown::Not);
    }

    /// Ends the pods and releases the lock.
    async fn shut_down(&mut self, periods: &[ShutdownPeriod]) {
        self.world.recorder.node(words::announced(true));
        self.world.shutdown.send_replace(Shutdown::Ending);
        let begin = self.now();
        self.keep(ShutdownSpan { begin, end: None }).await;
        let pods = self.world.pods.borrow().clone();
        end_pods(periods, &pods, self.world.seen.as_ref()).await;
        // The last report of the node has no volume any more that nothing uses: others wait six minutes for one (PR 139660).
        self.world.shutdown.send_replace(Shutdown::Over);
        let mut reported = self.world.reported.clone();
        let last = reported.wait_for(|stage| *stage == Shutdown::Over);
        if tokio::time::timeout(LAST_REPORT, last).await.is_err() {
            tracing::warn!("the API server has not taken in the node's last report");
        }
        self.keep(ShutdownSpan { begin, end: Some(self.now()) }).await;
        self.lock = None;
        tracing::info!("Shutdown manager completed processing shutdown event, node will shutdown shortly");
    }

    async fn keep(&self, span: ShutdownSpan) {
        if self.policy.recorded {
            record::keep(self.world.root.clone(), span, &self.world.metrics).await;
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_nanosecond(self.world.clock.wall_nanos().into()).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}
