//! Hooks that run in the runtime itself: poststart once the container's program runs, poststop once for each
//! container that was started, when it has ended. Owns when each is due; how one is run is `init::hooks`'.
//! Called by `container::start`, `container::stop`, recovery and the event task.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use gantry_proto::monitor::{HookStage, Hooks};

use super::{bundle, planned};
use crate::error::{Error, chain};
use crate::init::hooks::{self, State};
use crate::store::Container;

/// Files beside the bundle's configuration, made before each: whoever finds one after an end of the runtime knows
/// that hooks have begun.
const POSTSTART: &str = "poststart";
const POSTSTOP: &str = "poststop";

/// The poststart hooks are through.
const STARTED: &str = "poststart.done";

/// Runs the poststart hooks, once; `pid` is the container's.
///
/// # Errors
/// The first that fails, or that nobody knows the end of: the container must not go on, as under runc.
pub(super) async fn poststart(
    container: &Arc<Container>,
    told: Option<Hooks>,
    pid: i32,
) -> Result<(), Error> {
    let Some(told) = told.filter(|told| hooks::any(Some(told), &[HookStage::HookPoststart])) else {
        return Ok(());
    };
    failpoint!("start.answered"?);
    let owned = container.clone();
    let job = move || {
        let folder = owned.folder.join(bundle::FOLDER);
        let wrap = |source| Error::Files { what: "take note of hooks in", path: folder.clone(), source };
        if !first(&folder, POSTSTART).map_err(wrap)? {
            let through = folder.join(STARTED).exists();
            return if through { Ok(()) } else { Err(Error::HooksInterrupted) };
        }
        let state = State { id: &owned.id, status: "running", pid };
        hooks::run(&told, HookStage::HookPoststart, state, &hooks::default_env(), None)?;
        first(&folder, STARTED).map_err(wrap)?;
        failpoint!("start.poststart"?);
        Ok(())
    };
    tokio::task::spawn_blocking(job).await?
}

/// Runs the poststop hooks, once. What they say changes nothing any more: it is logged. Blocks.
pub(crate) fn poststop(container: &Arc<Container>) {
    let folder = container.folder.join(bundle::FOLDER);
    let begun = || {
        let record = container.record();
        record.started.is_some() || record.start_failure.is_some()
    };
    if !folder.exists() || !begun() {
        return;
    }
    match first(&folder, POSTSTOP) {
        // An end is told of more than once.
        Ok(false) => return,
        Ok(true) => {}
        Err(error) => {
            tracing::warn!(folder = %folder.display(), "no poststop hooks: {error}");
            return;
        }
    }
    failpoint!("stop.poststop-begun");
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
    failpoint!("stop.poststop");
}

/// Whether nobody has been here before.
fn first(folder: &Path, name: &str) -> io::Result<bool> {
    match fs::OpenOptions::new().write(true).create_new(true).open(folder.join(name)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}
