//! The container whose pid namespace another one joins (NamespaceMode TARGET, as `kubectl debug --target`
//! asks for it). Owns the rule, containerd's: a running container of the same sandbox. Called by
//! `container::create` and, because it may have ended since, by `container::start`; the monitor, which
//! alone can be sure, looks once more.

use gantry_proto::cri;

use crate::error;
use crate::error::target::Error;
use crate::store::{ContainerState, RecordStore};

/// Checks the target of a request that has one, and completes its id.
///
/// # Errors
/// What is wrong with the target.
pub(super) fn resolve(
    store: &RecordStore,
    config: &mut cri::ContainerConfig,
    sandbox: &str,
) -> Result<(), error::Error> {
    let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
    let Some(options) = security.and_then(|security| security.namespace_options.as_mut()) else {
        return Ok(());
    };
    if options.pid() == cri::NamespaceMode::Target && !options.target_id.is_empty() {
        options.target_id = check(store, &options.target_id, sandbox)?;
    }
    Ok(())
}

/// The whole id of a container of `sandbox` that runs.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check(store: &RecordStore, id: &str, sandbox: &str) -> Result<String, error::Error> {
    let id = id.to_owned();
    let target = match store.container(&id) {
        Ok(target) => target,
        Err(source) => return Err(error::Error::Target(Error::Missing { id, source })),
    };
    let theirs = target.sandbox_id.clone();
    if theirs != sandbox {
        return Err(error::Error::Target(Error::Elsewhere { id, theirs, ours: sandbox.to_owned() }));
    }
    match target.state() {
        ContainerState::Running(_) => Ok(target.id.clone()),
        _ => Err(error::Error::Target(Error::NotRunning { id, state: target.cri_state() })),
    }
}
