//! Hooks that run in the runtime itself: poststart once the container's program runs, poststop once for each
//! container that was started, when it has ended. Owns when each is due; how one is run is `init::hooks`'. Those of
//! an OCI runtime's container are run by that program when it forgets the container (`container::stop`).
//! Called by `container::start`, `container::stop`, recovery and the event task.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use gantry_base::error::chain;
use gantry_failpoint::failpoint;
use gantry_proto::monitor::{HookStage, Hooks};

use super::{bundle, read_planned_start};
use crate::error::Error;
use crate::store::Container;
use gantry_monitor::init::hooks::{self, HookState};

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
        let state = HookState { id: &owned.id, status: "running", pid };
        hooks::run(&told, HookStage::HookPoststart, state, &hooks::default_env(), None)?;
        first(&folder, STARTED).map_err(wrap)?;
        failpoint!("start.poststart"?);
        Ok(())
    };
    tokio::task::spawn_blocking(job).await?
}

/// Runs the poststop hooks, once; whoever comes while they run waits for them. What they say changes nothing any
/// more: it is logged. Blocks.
pub(crate) fn poststop(container: &Arc<Container>) {
    let _running = container.begin_after_end_blocking();
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
    let ran = read_planned_start(container).map_err(|error| chain(&error)).and_then(|start| {
        if start.external.is_some() {
            // They have been run by the OCI runtime that made the container.
            return Ok(());
        }
        let state = HookState { id: &container.id, status: "stopped", pid: 0 };
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

#[cfg(test)]
mod tests {
    use gantry_proto::monitor::{Hook, StartContainer};
    use prost::Message;

    use super::*;
    use crate::container::START_FILE;
    use crate::store::ContainerState;
    use crate::store::record::{ContainerRecord, VERSION};

    /// One that has run, with this poststop hook.
    fn ended_container(folder: &Path, script: &str) -> Arc<Container> {
        let hook = Hook {
            stage: HookStage::HookPoststop.into(),
            path: "/bin/sh".into(),
            args: vec!["sh".into(), "-c".into(), script.into()],
            ..Hook::default()
        };
        let bundle = folder.join(bundle::FOLDER);
        let hooks = Hooks { bundle: bundle.display().to_string(), hooks: vec![hook], ..Hooks::default() };
        let start = StartContainer { hooks: Some(hooks), ..StartContainer::default() };
        fs::write(folder.join(START_FILE), start.encode_to_vec()).unwrap();
        fs::create_dir(&bundle).unwrap();
        let record: ContainerRecord = serde_json::from_value(serde_json::json!({
            "version": VERSION, "id": "c", "sandbox_id": "s", "boot_id": "b", "name": "web", "attempt": 0,
            "image": "i", "image_id": "sha256:1", "image_ref": "r", "labels": {}, "annotations": {}, "mounts": [],
            "log_path": "", "cgroup": "/c", "stop_signal": 15, "created_at": 1, "uid": 0, "gid": 0, "groups": [],
            "resources": "", "started": {"process": {"pid": 1, "start_time_ticks": 1}, "at": 1},
            "start_failure": null,
        }))
        .unwrap();
        Arc::new(Container::new(record, folder.to_owned(), ContainerState::Created))
    }

    #[test]
    fn who_comes_while_poststop_hooks_run_waits_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let script =
            format!("echo > {}; sleep 0.3; echo x >> {}", at("begun").display(), at("ran").display());
        let container = ended_container(folder.path(), &script);
        let first = container.clone();
        let runs = std::thread::spawn(move || poststop(&first));
        while !at("begun").exists() {
            assert!(!runs.is_finished(), "it did not run");
            std::thread::yield_now();
        }
        poststop(&container);
        assert_eq!(fs::read_to_string(at("ran")).unwrap_or_default(), "x\n");
        runs.join().unwrap();
        assert_eq!(fs::read_to_string(at("ran")).unwrap(), "x\n");
    }
}
