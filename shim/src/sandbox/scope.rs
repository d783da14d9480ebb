//! A pod's scope: opened before its first process, closed after its last. Owns the seed that opens it (docs/adr/0023-own-d-bus.md);
//! never decides where it is. Blocks. Called by `sandbox::run` and `sandbox::stop`.

use std::process::{Child, Command, Stdio};

use gantry_systemd::{Property, Systemd, Value};

use super::place;
use crate::cgroup::{Cgroup, Layout};
use crate::error::Error;
use crate::store::record::{SandboxRecord, Scope};

/// A process that keeps a scope open until pause does. Dropping it ends and reaps it.
#[derive(Debug)]
pub(super) struct Seed(Child);

impl Drop for Seed {
    fn drop(&mut self) {
        // Ended by a teardown already: what was wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the sandbox's scope, when it is to have one: systemd wants a process in it, and pause is to be cloned into
/// a cgroup that is there.
pub(super) fn open(layout: &Layout, record: &SandboxRecord, pause: &str) -> Result<Option<Seed>, Error> {
    let Some(scope) = &record.scope else { return Ok(None) };
    let mut command = Command::new(pause);
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let seed = command.spawn().map_err(|source| Error::Seed { id: record.id.clone(), source })?;
    let seed = Seed(seed);
    let pid = seed.0.id();
    let made = Systemd::default().start(&scope.unit, properties(record, scope, pid))?;
    if !made {
        // Ids are never used again: whoever made it did not mean this pod.
        return Err(Error::ScopeTaken(scope.unit.clone()));
    }
    Cgroup::new(layout, &record.pause_cgroup())?.enter_first(pid)?;
    Ok(Some(seed))
}

/// The pod's limits are its slice's, or its own cgroup's: the scope has none, not even systemd's default of tasks.
fn properties(record: &SandboxRecord, scope: &Scope, pid: u32) -> Vec<Property> {
    let pod = &record.pod;
    let accounting = ["CPUAccounting", "MemoryAccounting", "IOAccounting", "TasksAccounting"];
    let mut list = vec![
        Property::text("Description", &format!("gantry pod {}/{}", pod.namespace, pod.name)),
        Property::text("Slice", &scope.slice),
        Property::flag("Delegate", true),
        Property { name: "PIDs", value: Value::Numbers(vec![pid]) },
        Property::number("TasksMax", u64::MAX),
        Property::flag("DefaultDependencies", false),
    ];
    list.extend(accounting.map(|name| Property::flag(name, true)));
    list
}

/// Ends what is left in it, and the unit.
pub(super) fn close(layout: &Layout, scope: &Scope) -> Result<(), Error> {
    let cgroup = Cgroup::new(layout, &scope.path)?;
    // systemd would ask politely first, and wait.
    cgroup.kill_tree();
    let stopped = Systemd::default().stop(&scope.unit);
    // Of v1 it knows only its own hierarchies.
    cgroup.remove()?;
    Ok(stopped?)
}

/// The slice of pods without a parent, once the last of them is gone.
pub(super) fn stop_slice(root: &str) -> Result<(), Error> {
    Ok(Systemd::default().stop(&place::own_slice(root))?)
}
