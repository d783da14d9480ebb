//! One container in memory. Owns its record and its state.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::{Mutex, MutexGuard, watch};

use super::event_order::{EventOrder, Kind};
use super::persisted::{Persisted, Saving};
use super::record::ContainerRecord;
use crate::cgroup::rate::Rate;
use gantry_base::timeline::Recorder;
use gantry_image::usage::walker::Figure;

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerExit {
    /// Exit code, or 128 + signal; 128 for a start that failed; 255 when nobody saw the end.
    pub exit_code: i32,
    /// Unix nanoseconds. Of the record, where that has none: the news of the end came first.
    pub started_at: i64,
    /// Unix nanoseconds.
    pub finished_at: i64,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, `Unknown`.
    pub reason: &'static str,
    /// What to tell the user; empty when the code says it all.
    pub message: String,
}

/// ```text
/// Created ──start──▶ Running ──ends──▶ Exited ──remove──▶ (forgotten)
///     └──start fails──▶ Exited (128, StartError)
/// ```
#[derive(Debug, Clone)]
pub(crate) enum ContainerState {
    /// No process yet.
    Created,
    /// Its program runs; the descriptor reaches it even without the monitor.
    Running(Arc<OwnedFd>),
    /// Final.
    Exited(ContainerExit),
}

/// A container.
#[derive(Debug)]
pub(crate) struct Container {
    /// 64 hex digits.
    pub id: String,
    /// Its sandbox.
    pub sandbox_id: String,
    /// Folder of its record, its upper and its mount point.
    pub folder: PathBuf,
    operation: Mutex<()>,
    after: Mutex<()>,
    /// Spans of its making.
    pub spans: Recorder,
    /// CPU use per second.
    pub rate: Rate,
    /// Of its writable layer.
    pub writable: Arc<Figure>,
    /// Whether its stop signal has been sent: many programs take a second one as "at once".
    pub told_to_stop: AtomicBool,
    /// What the clients have heard of it.
    pub event_order: EventOrder,
    record: Persisted<ContainerRecord>,
    state: watch::Sender<ContainerState>,
}

impl Container {
    /// A container in `state` with this record.
    #[must_use]
    pub(crate) fn new(record: ContainerRecord, folder: PathBuf, state: ContainerState) -> Self {
        Self {
            id: record.id.clone(),
            sandbox_id: record.sandbox_id.clone(),
            folder,
            operation: Mutex::new(()),
            after: Mutex::new(()),
            spans: Recorder::default(),
            rate: Rate::default(),
            writable: Arc::default(),
            told_to_stop: AtomicBool::new(false),
            event_order: match state {
                ContainerState::Exited(_) => EventOrder::at(Kind::ContainerStoppedEvent),
                _ if record.started.is_some() => EventOrder::at(Kind::ContainerStartedEvent),
                _ => EventOrder::default(),
            },
            record: Persisted::new(record),
            state: watch::Sender::new(state),
        }
    }

    /// Held by whoever changes the container: start, stop, remove.
    pub(crate) async fn begin_operation(&self) -> MutexGuard<'_, ()> {
        self.operation.lock().await
    }

    /// Held by whoever does what is due after its end: its poststop hooks, and the word to its OCI runtime.
    pub(crate) async fn begin_after_end(&self) -> MutexGuard<'_, ()> {
        self.after.lock().await
    }

    /// The same, on a thread that may block.
    pub(crate) fn begin_after_end_blocking(&self) -> MutexGuard<'_, ()> {
        self.after.blocking_lock()
    }

    /// The record as it is now; who reads it holds no lock and copies nothing.
    #[must_use]
    pub(crate) fn record(&self) -> Arc<ContainerRecord> {
        self.record.get()
    }

    /// Changes the record: in memory at once, on disk when the future has ended.
    ///
    /// # Errors
    /// When the file can't be written; memory has the change.
    pub(crate) fn update(&self, change: impl FnOnce(&mut ContainerRecord)) -> Saving {
        self.record.update(&self.folder, change)
    }

    /// Current state.
    #[must_use]
    pub(crate) fn state(&self) -> ContainerState {
        self.state.borrow().clone()
    }

    /// Moves forward only: the news of an exit may overtake the answer to the start. Tells whether it
    /// moved.
    pub(crate) fn set_state(&self, state: ContainerState) -> bool {
        self.state.send_if_modified(|current| {
            let moves = matches!(
                (&*current, &state),
                (ContainerState::Created, ContainerState::Running(_) | ContainerState::Exited(_))
                    | (ContainerState::Running(_), ContainerState::Exited(_))
            );
            if moves {
                *current = state;
            }
            moves
        })
    }

    /// Waits for the end.
    pub(crate) async fn wait_for_end(&self) {
        let mut watch = self.state.subscribe();
        // The sender is in self: it can't be gone.
        let _ = watch.wait_for(|state| matches!(state, ContainerState::Exited(_))).await;
    }
}

impl ContainerExit {
    /// From an exit record. OOMKilled when the counter rose and the code is SIGKILL's, or that code
    /// passed on by a shell; an OOM that the container outlived is never blamed on a later exit.
    #[must_use]
    pub(crate) fn from_exit(exit: &gantry_monitor::exit::ExitRecord) -> Self {
        let (reason, message) = match exit.exit_code {
            _ if !exit.known => ("Unknown", "the container's monitor was gone when it ended"),
            137 if exit.oom_kills > 0 => ("OOMKilled", ""),
            0 => ("Completed", ""),
            _ => ("Error", ""),
        };
        Self {
            exit_code: exit.exit_code,
            started_at: exit.started_at,
            finished_at: exit.finished_at,
            reason,
            message: message.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_monitor::exit::ExitRecord;

    #[test]
    fn the_reason_follows_code_and_oom_counter() {
        for (exit, reason) in [
            (ExitRecord::with_exit_code(0, 1, 0), "Completed"),
            (ExitRecord::with_exit_code(3, 1, 0), "Error"),
            (ExitRecord::with_exit_code(137, 1, 1), "OOMKilled"),
            (ExitRecord::with_exit_code(137, 1, 0), "Error"),
            (ExitRecord::with_exit_code(1, 1, 2), "Error"),
            (ExitRecord::unknown(1), "Unknown"),
        ] {
            assert_eq!(ContainerExit::from_exit(&exit).reason, reason, "{exit:?}");
        }
    }
}
