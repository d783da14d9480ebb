//! How far a pod's life has come, and how long it has lasted. Pure: owns the moves between stages; time is an argument. A
//! part of [`super::WorkerState`].

use std::time::Duration;

use crate::pod::plan::Ended;

/// What the containers have come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Progress {
    /// Some container has never run.
    #[default]
    Starting,
    /// Each has run; sticky.
    Started,
    /// All are being started anew.
    RestartingAll {
        /// Each had run before.
        started: bool,
    },
}

/// A pod's life.
///
/// ```text
/// Active: Starting ──each has run──▶ Started        ──why──▶ Ended, at the progress it had
///            └──▶ RestartingAll ◀──────┘ (and back)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its containers are to run.
    Active(Progress),
    /// It ends by itself; sticky.
    Ended {
        /// Why.
        why: Ended,
        /// Since when that is known.
        since: Duration,
        /// How far it had come.
        progress: Progress,
    },
}

impl Default for Stage {
    fn default() -> Self {
        Self::Active(Progress::default())
    }
}

impl Stage {
    fn progress(self) -> Progress {
        match self {
            Self::Active(progress) | Self::Ended { progress, .. } => progress,
        }
    }

    fn progress_mut(&mut self) -> &mut Progress {
        match self {
            Self::Active(progress) | Self::Ended { progress, .. } => progress,
        }
    }

    /// Why the pod ends by itself, and since when.
    #[must_use]
    pub fn ended(self) -> Option<(Ended, Duration)> {
        match self {
            Self::Active(_) => None,
            Self::Ended { why, since, .. } => Some((why, since)),
        }
    }

    /// Each container has run.
    #[must_use]
    pub fn has_started(self) -> bool {
        matches!(self.progress(), Progress::Started | Progress::RestartingAll { started: true })
    }

    /// All containers are being started anew.
    #[must_use]
    pub fn is_restarting_all(self) -> bool {
        matches!(self.progress(), Progress::RestartingAll { .. })
    }

    /// Each container has run.
    pub(super) fn note_started(&mut self) {
        let progress = self.progress_mut();
        *progress = match progress {
            Progress::Starting | Progress::Started => Progress::Started,
            Progress::RestartingAll { .. } => Progress::RestartingAll { started: true },
        };
    }

    /// It ends, whatever it was ending for.
    pub(super) fn end(&mut self, why: Ended, since: Duration) {
        *self = Self::Ended { why, since, progress: self.progress() };
    }

    /// All containers are started anew from here on.
    pub(super) fn begin_restart(&mut self) {
        let started = self.has_started();
        *self.progress_mut() = Progress::RestartingAll { started };
    }

    /// All of them are gone, and begin as in a new sandbox.
    pub(super) fn finish_restart(&mut self) {
        let started = self.has_started();
        *self.progress_mut() = if started { Progress::Started } else { Progress::Starting };
    }
}

/// How long the pod has been active, over restarts of the agent.
#[derive(Debug, Clone, Copy, Default)]
pub struct ActiveTime {
    before: Duration,
    begun: Duration,
}

impl ActiveTime {
    /// Taken up at `begun`.
    pub(super) fn since(begun: Duration) -> Self {
        Self { before: Duration::ZERO, begun }
    }

    /// So long before this agent.
    pub(super) fn inherit(&mut self, before: Duration) {
        self.before = before;
    }

    /// Nobody has told of a time before this agent.
    pub(super) fn is_new(self) -> bool {
        self.before.is_zero()
    }

    /// Until `now`.
    #[must_use]
    pub fn until(self, now: Duration) -> Duration {
        self.before + now.saturating_sub(self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(1);

    #[test]
    fn what_has_started_stays_so_over_a_restart_of_all_and_the_end() {
        let mut stage = Stage::default();
        assert!(!stage.has_started() && !stage.is_restarting_all() && stage.ended().is_none());
        stage.note_started();
        stage.begin_restart();
        assert!(stage.has_started() && stage.is_restarting_all());
        stage.end(Ended::DeadlineExceeded, AT);
        assert!(stage.has_started() && stage.is_restarting_all());
        stage.finish_restart();
        assert_eq!(
            stage,
            Stage::Ended { why: Ended::DeadlineExceeded, since: AT, progress: Progress::Started }
        );
    }

    #[test]
    fn a_restart_of_all_before_the_first_start_begins_with_starting_again() {
        let mut stage = Stage::default();
        stage.begin_restart();
        assert!(!stage.has_started());
        stage.finish_restart();
        assert_eq!(stage, Stage::Active(Progress::Starting));
        stage.begin_restart();
        stage.note_started();
        assert_eq!(stage, Stage::Active(Progress::RestartingAll { started: true }));
    }
}
