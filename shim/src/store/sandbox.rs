//! One sandbox in memory. Owns its record, its state and its connection to the monitor.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, watch};

use super::event_order::{EventOrder, Kind};
use super::persisted::{Persisted, Saving};
use super::record::SandboxRecord;
use crate::cgroup::rate::Rate;
use crate::monitor_client::MonitorClient;
use gantry_base::mutex::lock;
use gantry_base::timeline::Recorder;

/// How many of these may hang at once: the kubelet tries again and again.
const SOURCES: usize = 8;

/// ```text
/// Starting ──RunPodSandbox done──▶ Ready ──stop, or pause or monitor gone──▶ NotReady ──remove──▶ (forgotten)
///     └──failed: torn down──▶ (forgotten)
/// ```
/// CRI knows Ready and NotReady; a Starting sandbox is nobody's yet and is not listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxState {
    /// Being made; its caller has no id yet.
    Starting,
    /// Pause runs, the network is there.
    Ready,
    /// Stopped, or lost.
    NotReady,
}

/// A sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// 64 hex digits.
    pub id: String,
    /// Folder of its record.
    pub folder: PathBuf,
    operation: tokio::sync::Mutex<()>,
    /// Looks at mount sources of its containers.
    pub sources: Arc<Semaphore>,
    /// Spans of its making.
    pub spans: Recorder,
    /// CPU use per second.
    pub rate: Rate,
    /// What the clients have heard of it.
    pub event_order: EventOrder,
    record: Persisted<SandboxRecord>,
    state: watch::Sender<SandboxState>,
    monitor: Mutex<Option<MonitorClient>>,
}

impl Sandbox {
    /// A sandbox in `state` with this record.
    #[must_use]
    pub(crate) fn new(record: SandboxRecord, folder: PathBuf, state: SandboxState) -> Self {
        Self {
            id: record.id.clone(),
            folder,
            operation: tokio::sync::Mutex::new(()),
            sources: Arc::new(Semaphore::new(SOURCES)),
            spans: Recorder::default(),
            rate: Rate::default(),
            event_order: match state {
                SandboxState::NotReady => EventOrder::at(Kind::ContainerStoppedEvent),
                _ if record.complete => EventOrder::at(Kind::ContainerStartedEvent),
                _ => EventOrder::default(),
            },
            record: Persisted::new(record),
            state: watch::Sender::new(state),
            monitor: Mutex::new(None),
        }
    }

    /// Held by whoever changes the sandbox: stop, remove, add a container. Not while a container is being made.
    pub(crate) async fn begin_operation(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.operation.lock().await
    }

    /// The record as it is now; who reads it holds no lock and copies nothing.
    #[must_use]
    pub(crate) fn record(&self) -> Arc<SandboxRecord> {
        self.record.get()
    }

    /// Changes the record: in memory at once, on disk when the future has ended.
    ///
    /// # Errors
    /// When the file can't be written; memory has the change.
    pub(crate) fn update(&self, change: impl FnOnce(&mut SandboxRecord)) -> Saving {
        self.record.update(&self.folder, change)
    }

    /// Current state.
    #[must_use]
    pub(crate) fn state(&self) -> SandboxState {
        *self.state.borrow()
    }

    /// Moves to `state`; NotReady is final. Tells which state it left, if it moved.
    pub(crate) fn set_state(&self, state: SandboxState) -> Option<SandboxState> {
        let mut left = None;
        self.state.send_if_modified(|current| {
            let moves = *current != SandboxState::NotReady && *current != state;
            if moves {
                left = Some(std::mem::replace(current, state));
            }
            moves
        });
        left
    }

    /// Waits until the state is NotReady.
    pub(crate) async fn wait_lost(&self) {
        let mut watch = self.state.subscribe();
        // The sender is in self: it can't be gone.
        let _ = watch.wait_for(|state| *state == SandboxState::NotReady).await;
    }

    /// The connection to the monitor, if there is one.
    #[must_use]
    pub(crate) fn monitor(&self) -> Option<MonitorClient> {
        lock(&self.monitor).clone()
    }

    /// Sets or drops the connection.
    pub(crate) fn set_monitor(&self, client: Option<MonitorClient>) {
        *lock(&self.monitor) = client;
    }
}
