//! The counting side of probes: when the next try is due, and what a row of verdicts comes to.
//! Pure: owns thresholds, periods and the gate of the startup probe; never runs a try (that is an
//! effect). Kept by the worker's history, read by the planner and the status.
//!
//! Results hang on a container's *ID*: what is known of an old one says nothing of its successor
//! (trap 7). For each running container and probe:
//!
//! ```text
//!            due, tried            threshold of successes
//!  Counting ────────────▶ Counting ───────────────────────▶ Good ─┐ readiness, liveness: go on
//!      ▲                     │ threshold of failures              │ counting; startup: held
//!      └──── new ID ─────────┴───────────────────────────▶ Bad  ──┘ liveness, startup: held
//! ```

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use gantry_model::pod::probe::Probe;
use gantry_model::pod::{Container, Pod};

use crate::checkpoint::{Mark, Marks};

/// Which of a container's probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// Gates the other two.
    Startup,
    /// Ends the container.
    Liveness,
    /// Tells whether it may be used.
    Readiness,
}

/// In the order in which they matter.
pub const KINDS: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness];

impl ProbeKind {
    /// As the kubelet's events spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    /// The container's probe of this kind.
    #[must_use]
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.probes.startup.as_ref(),
            Self::Liveness => container.probes.liveness.as_ref(),
            Self::Readiness => container.probes.readiness.as_ref(),
        }
    }
}

/// A container that runs, as the counting sees it.
#[derive(Debug, Clone, Copy)]
pub struct Runner<'a> {
    /// What it is.
    pub container: &'a Container,
    /// This start of it.
    pub id: &'a str,
    /// When it was first seen running.
    pub since: Duration,
    /// How old it was then.
    pub age: Duration,
    /// Whether it ran before this agent did.
    pub adopted: bool,
}

/// What the last row of verdicts came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeOutcome {
    Counting,
    Good,
    Bad { since: Duration },
}

/// One probe of one running container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProbeState {
    id: String,
    next: Duration,
    last: Option<bool>,
    run: u32,
    outcome: ProbeOutcome,
    held: bool,
}

/// All rows of one pod.
#[derive(Debug, Clone, Default)]
pub struct Probing {
    rows: BTreeMap<(String, ProbeKind), ProbeState>,
}

impl Probing {
    /// Takes in what runs now: new IDs begin anew, what does not run is forgotten. `recalled` is
    /// what an earlier agent knew.
    pub fn absorb(&mut self, pod: &Pod, runners: &[Runner<'_>], recalled: &Marks) {
        self.rows
            .retain(|(name, _), row| runners.iter().any(|r| r.container.name == *name && r.id == row.id));
        for runner in runners {
            for kind in KINDS {
                let Some(probe) = kind.of(runner.container) else { continue };
                let key = (runner.container.name.clone(), kind);
                self.rows.entry(key).or_insert_with(|| first_row(pod, runner, kind, probe, recalled));
            }
        }
    }

    /// When the next try is due; none while the probe rests.
    #[must_use]
    pub fn due(&self, container: &Container, kind: ProbeKind) -> Option<Duration> {
        let row = self.rows.get(&(container.name.clone(), kind)).filter(|row| !row.held)?;
        let gated = kind != ProbeKind::Startup && !self.is_started(container, &row.id);
        (!gated).then_some(row.next)
    }

    /// A try begins.
    pub fn begin(&mut self, container: &Container, kind: ProbeKind, now: Duration) {
        if let (Some(row), Some(probe)) =
            (self.rows.get_mut(&(container.name.clone(), kind)), kind.of(container))
        {
            row.next = now + probe.period.max(Duration::from_secs(1));
        }
    }

    /// A try has ended; `good` is none when it counts for nothing. One of another ID is dropped.
    pub fn record(
        &mut self,
        container: &Container,
        kind: ProbeKind,
        id: &str,
        good: Option<bool>,
        now: Duration,
    ) {
        let (Some(row), Some(probe), Some(good)) =
            (self.rows.get_mut(&(container.name.clone(), kind)), kind.of(container), good)
        else {
            return;
        };
        if row.id != id || row.held {
            return;
        }
        row.run = if row.last == Some(good) { row.run.saturating_add(1) } else { 1 };
        row.last = Some(good);
        let threshold = if good { probe.success_threshold } else { probe.failure_threshold };
        if row.run < threshold {
            return;
        }
        row.outcome = match (good, row.outcome) {
            (true, _) => ProbeOutcome::Good,
            (false, bad @ ProbeOutcome::Bad { .. }) => bad,
            (false, _) => ProbeOutcome::Bad { since: now },
        };
        row.held = match kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => !good,
            ProbeKind::Readiness => false,
        };
    }

    /// Whether the container has started, as far as its startup probe tells.
    #[must_use]
    pub fn is_started(&self, container: &Container, id: &str) -> bool {
        container.probes.startup.is_none()
            || self.outcome(container, ProbeKind::Startup, id) == Some(ProbeOutcome::Good)
    }

    /// Whether the container is ready, as far as its readiness probe tells.
    #[must_use]
    pub fn ready(&self, container: &Container, id: &str) -> bool {
        container.probes.readiness.is_none()
            || self.outcome(container, ProbeKind::Readiness, id) == Some(ProbeOutcome::Good)
    }

    /// Since when this probe is bad.
    #[must_use]
    pub fn bad(&self, container: &Container, kind: ProbeKind, id: &str) -> Option<Duration> {
        match self.outcome(container, kind, id)? {
            ProbeOutcome::Bad { since } => Some(since),
            ProbeOutcome::Counting | ProbeOutcome::Good => None,
        }
    }

    /// What another agent would have to know of this container; none when it has nothing to forget.
    #[must_use]
    pub fn mark(&self, container: &Container, id: &str) -> Option<Mark> {
        if container.probes.readiness.is_some() && self.ready(container, id) {
            return Some(Mark::Ready);
        }
        (container.probes.startup.is_some() && self.is_started(container, id)).then_some(Mark::Started)
    }

    fn outcome(&self, container: &Container, kind: ProbeKind, id: &str) -> Option<ProbeOutcome> {
        self.rows.get(&(container.name.clone(), kind)).filter(|row| row.id == id).map(|row| row.outcome)
    }
}

fn first_row(pod: &Pod, runner: &Runner<'_>, kind: ProbeKind, probe: &Probe, recalled: &Marks) -> ProbeState {
    let mark = recalled.get(runner.id);
    let good = match kind {
        ProbeKind::Startup => mark.is_some(),
        ProbeKind::Readiness => mark == Some(&Mark::Ready),
        ProbeKind::Liveness => false,
    };
    let mut next = runner.since + probe.initial_delay.saturating_sub(runner.age);
    if runner.adopted {
        // A new agent finds all containers at once, and must not ask them all at once.
        next += probe.period.mul_f64(fraction((&pod.uid, &runner.container.name, kind)));
    }
    ProbeState {
        id: runner.id.to_owned(),
        next,
        last: None,
        run: 0,
        outcome: if good { ProbeOutcome::Good } else { ProbeOutcome::Counting },
        held: good && kind == ProbeKind::Startup,
    }
}

/// From 0 to 1, always the same for the same thing.
fn fraction(of: impl Hash) -> f64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    let low = u32::try_from(hasher.finish() & 0xffff).unwrap_or(0);
    f64::from(low) / 65536.0
}

#[cfg(test)]
mod tests;
