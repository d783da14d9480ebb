//! What the API's last status said of a pod: all that an agent that begins anew can know of what the
//! runtime has forgotten. Owns the types; never decides anything. Made by [`crate::manifest::api`],
//! taken in by the worker's history. Pure.

use std::collections::BTreeMap;

use super::status::{ContainerState, Phase};
use crate::checkpoint::{Mark, Marks};
use crate::runtime::Exit;

/// One pod's. Empty for pods of files, and for those that no agent has met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Last {
    /// Its end, if it has one: such a pod is never started again (trap 3).
    pub end: Option<LastEnd>,
    /// Unix nanoseconds; 0 when no agent has taken it up.
    pub started_at: i64,
    /// By name; init, regular and ephemeral ones.
    pub containers: BTreeMap<String, LastContainer>,
    /// All its containers are being started anew.
    pub restarting: bool,
}

/// A terminal phase and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastEnd {
    /// Succeeded or Failed.
    pub phase: Phase,
    /// May be empty.
    pub reason: String,
    /// May be empty.
    pub message: String,
}

/// One container's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastContainer {
    /// The runtime's ID, without its name; empty before the first start.
    pub id: String,
    /// As the runtime named it.
    pub image: String,
    /// With registry and digest; may be empty.
    pub image_id: String,
    /// What it did.
    pub state: ContainerState,
    /// How the attempt before ended.
    pub last_exit: Option<Exit>,
    /// The attempt's number.
    pub restart_count: u32,
    /// Its startup probe had succeeded.
    pub started: bool,
    /// Its readiness probe had, too.
    pub ready: bool,
}

impl Last {
    /// How far its running containers had come, so that no condition flips with a new agent
    /// (trap 6).
    #[must_use]
    pub fn marks(&self) -> Marks {
        let running = self.containers.values().filter(|container| {
            !container.id.is_empty() && matches!(container.state, ContainerState::Running { .. })
        });
        let mark = |container: &LastContainer| match (container.ready, container.started) {
            (true, _) => Some(Mark::Ready),
            (false, true) => Some(Mark::Started),
            (false, false) => None,
        };
        running.filter_map(|c| Some((c.id.clone(), mark(c)?))).collect()
    }
}
