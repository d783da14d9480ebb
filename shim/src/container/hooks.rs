//! Hooks that run in the runtime itself: poststart once the container's program runs, poststop once for each
//! container that was started, when it has ended. Owns when each is due; how one is run is `init::hooks`'.
//! Called by `container::start`, `container::stop` and the event task.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use gantry_proto::monitor::{HookStage, Hooks};

use super::{bundle, planned};
use crate::error::{Error, chain};
use crate::init::hooks::{self, State};
use crate::store::Container;

/// Beside the bundle's configuration: poststop has run.
const DONE: &str = "poststop";

/// Runs the poststart hooks; `pid` is the container's.
///
/// # Errors
/// The first that fails: the container must not go on, as under runc.
pub(super) async fn poststart(id: &str, told: Option<Hooks>, pid: i32) -> Result<(), Error> {
    let Some(told) = told.filter(|told| hooks::any(Some(told), &[HookStage::HookPoststart])) else {
        return Ok(());
    };
    let id = id.to_owned();
    let job = move || {
        let state = State { id: &id, status: "running", pid };
        hooks::run(&told, HookStage::HookPoststart, state, &hooks::default_env(), None)
    };
    Ok(tokio::task::spawn_blocking(job).await??)
}

/// Runs the poststop hooks, once. What they say changes nothing any more: it is logged. Blocks.
pub(crate) fn poststop(container: &Arc<Container>) {
    let folder = container.folder.join(bundle::FOLDER);
    let begun = || {
        let record = container.record();
        record.started.is_some() || record.start_failure.is_some()
    };
    if !folder.exists() || !begun() || !first(&folder) {
        return;
    }
    let ran = planned(container).map_err(|error| chain(&error)).and_then(|start| {
        if start.external.is_some() {
            // They have been run by the OCI runtime that made the container.
            return Ok(());
        }
        let state = State { id: &container.id, status: "stopped", pid: 0 };
        let told = start.hooks.unwrap_or_default();
        hooks::run(&told, HookStage::HookPoststop, state, &hooks::default_env(), None)
            .map_err(|error| error.to_string())
    });
    if let Err(error) = ran {
        tracing::warn!(container = container.id, "{error}");
    }
}

/// Whether nobody has been here before: an end is told of more than once.
fn first(folder: &Path) -> bool {
    match fs::OpenOptions::new().write(true).create_new(true).open(folder.join(DONE)) {
        Ok(_) => true,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::AlreadyExists {
                tracing::warn!(folder = %folder.display(), "no poststop hooks: {error}");
            }
            false
        }
    }
}
