//! Containers: created, started, stopped, removed. Called by the RPC handlers and `sandbox::stop`.

mod accounts;
mod bundle;
pub(crate) mod create;
mod devices;
pub(crate) mod end;
pub(crate) mod hooks;
pub(crate) mod image_mounts;
mod image_volumes;
pub(crate) mod labels;
mod merged;
pub(crate) mod process;
mod propagation;
mod sources;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod target;
pub(crate) mod update;

use std::fs;
use std::io;

use gantry_proto::monitor::StartContainer;
use prost::Message;

use crate::error::Error;
use crate::handler::plan;
use crate::store::container::ContainerExit;
use crate::store::record::{ContainerRecord, SandboxRecord, StartFailure};
use crate::store::{Container, ContainerState};

/// File with the monitor's request, written at create: a start must not depend on anything that
/// could have changed since.
const START_FILE: &str = "start.pb";

/// The monitor's request as create wrote it.
///
/// # Errors
/// When the file is damaged or gone.
pub(crate) fn read_planned_start(container: &Container) -> Result<StartContainer, Error> {
    let path = container.folder.join(START_FILE);
    let wrap = |source| Error::Files { what: "read", path: path.clone(), source };
    let bytes = fs::read(&path).map_err(wrap)?;
    StartContainer::decode(bytes.as_slice()).map_err(|error| wrap(io::Error::other(error)))
}

/// What the container is, in the words of the OCI runtime specification; for those who read, as
/// `bundle/config.json` of one with hooks.
#[must_use]
pub(crate) fn specification(
    start: &StartContainer,
    sandbox: &SandboxRecord,
    container: &ContainerRecord,
) -> serde_json::Value {
    let mut all = bundle::contents(start, sandbox);
    all["annotations"] = serde_json::json!(plan::annotations(sandbox, container));
    all
}

/// The name that may exist once.
#[must_use]
pub(crate) fn reserved_name(name: &str, attempt: u32, sandbox: &str) -> String {
    format!("{name}_{sandbox}_{attempt}")
}

/// How a container whose start failed has ended, in containerd's words and number.
#[must_use]
pub(crate) fn start_error(failure: &StartFailure) -> ContainerExit {
    ContainerExit {
        exit_code: 128,
        started_at: 0,
        finished_at: failure.at,
        reason: "StartError",
        message: failure.message.clone(),
    }
}

impl ContainerState {
    /// For messages.
    #[must_use]
    pub(crate) fn reason_text(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running(_) => "running",
            Self::Exited(_) => "exited",
        }
    }
}

impl Container {
    /// The state's name in CRI, for messages that clients know.
    #[must_use]
    pub(crate) fn cri_state(&self) -> &'static str {
        match self.state() {
            ContainerState::Created => "CONTAINER_CREATED",
            ContainerState::Running(_) => "CONTAINER_RUNNING",
            ContainerState::Exited(_) => "CONTAINER_EXITED",
        }
    }

    /// Whether no process of it can run any more.
    #[must_use]
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self.state(), ContainerState::Running(_))
    }
}
