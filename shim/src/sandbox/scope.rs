//! A pod's scope: opened before its first process, closed after its last; and the slice of pods without a parent. Owns
//! the seed that opens a scope (docs/adr/0023-own-d-bus.md); never decides where one is, never ends what somebody else
//! has in a slice. Blocks. Called by `sandbox::run`, `sandbox::stop` and `sandbox::tidy_up`.

#![expect(clippy::disallowed_methods, reason = "runs our own pause program")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use gantry_failpoint::failpoint;
use gantry_systemd::{Property, Systemd, Value};

use super::cgroup_placement;
use crate::cgroup::{Cgroup, Layout};
use crate::error::Error;
use crate::node::Node;
use crate::store::record::{SandboxRecord, Scope};
use gantry_monitor::init::pause::SEED;

/// How long systemd waits for processes that were sent SIGKILL already, before and after it sends its own.
const STOP_MICROSECONDS: u64 = 1_000_000;

/// A process that keeps a scope open until pause does. Dropping it ends and reaps it, which blocks; when this process
/// ends in whatever way, so does it, for its standard input does.
#[derive(Debug)]
pub(super) struct ScopeSeed(Child);

impl Drop for ScopeSeed {
    fn drop(&mut self) {
        // Ended by a teardown already: what was wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes the sandbox's scope, when it is to have one: systemd wants a process in it, and pause is to be cloned into
/// a cgroup that is there.
pub(super) fn open(node: &Node, record: &SandboxRecord) -> Result<Option<ScopeSeed>, Error> {
    let Some(scope) = &record.scope else { return Ok(None) };
    let systemd = Systemd::default();
    if record.owns_cgroup_parent {
        // Named as ours: `leave_slice` ends no other.
        systemd.start(&scope.slice, &own_slice(&node.config.state, node.layout.is_unified()))?;
        failpoint!("scope.slice"?);
    }
    let seed = spawn_seed(&node.programs.pause_path())
        .map_err(|source| Error::Seed { id: record.id.clone(), source })?;
    failpoint!("scope.seeded"?);
    let pid = seed.0.id();
    let made = systemd.start(&scope.unit, &properties(record, scope, pid, node.layout.is_unified()))?;
    if !made {
        // Ids are never used again: whoever made it did not mean this pod.
        return Err(Error::ScopeTaken(scope.unit.clone()));
    }
    failpoint!("scope.made"?);
    Cgroup::new(&node.layout, &record.pause_cgroup())?.enter_first(&scope.path, pid)?;
    failpoint!("scope.entered"?);
    Ok(Some(seed))
}

fn spawn_seed(pause: &str) -> std::io::Result<ScopeSeed> {
    let mut command = Command::new(pause);
    command.arg(SEED).env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C at the runtime's terminal ends the runtime, not a pod that is starting.
    command.process_group(0).spawn().map(ScopeSeed)
}

/// systemd reads them back from a file of lines, where it escapes only per cents.
fn escape_percent(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

fn accounting(unified: bool) -> impl Iterator<Item = Property> {
    let io = if unified { "IOAccounting" } else { "BlockIOAccounting" };
    ["CPUAccounting", "MemoryAccounting", io, "TasksAccounting"]
        .map(|name| Property::flag(name, true))
        .into_iter()
}

/// The pod's limits are its slice's, or its own cgroup's: the scope has none, not even systemd's default of tasks.
fn properties(record: &SandboxRecord, scope: &Scope, pid: u32, unified: bool) -> Vec<Property> {
    let pod = &record.pod;
    let name = escape_percent(&format!("{}/{}", pod.namespace, pod.name));
    let mut list = vec![
        Property::text("Description", &format!("gantry pod {name} {}", record.id)),
        Property::text("Slice", &scope.slice),
        Property { name: "PIDs", value: Value::Numbers(vec![pid]) },
        Property::number("TasksMax", u64::MAX),
        Property::number("TimeoutStopUSec", STOP_MICROSECONDS),
        Property::flag("DefaultDependencies", false),
    ];
    list.extend(accounting(unified));
    list.extend(delegation(unified));
    list
}

/// The scope's cgroups are ours. On v1 systemd's `Delegate` is without the devices (since version 254), and a controller that
/// no unit in a slice has is taken from the slice: with it goes each of its cgroups that is empty just then, as a
/// container's is from its making to its first process.
fn delegation(unified: bool) -> Vec<Property> {
    let mut list = vec![Property::flag("Delegate", true)];
    if !unified {
        let controllers = vec!["devices".to_owned()];
        list.push(Property { name: "DelegateControllers", value: Value::Texts(controllers) });
    }
    list
}

/// Ends what is left in it, and the unit.
pub(super) fn close(layout: &Layout, scope: &Scope) -> Result<(), Error> {
    let cgroup = Cgroup::new(layout, &scope.path)?;
    // systemd would ask politely first, and wait.
    cgroup.kill_tree();
    failpoint!("scope.killed"?);
    let stopped = Systemd::default().stop(&scope.unit);
    failpoint!("scope.stopped"?);
    // Of v1 it knows only its own hierarchies.
    cgroup.remove()?;
    Ok(stopped?)
}

/// Whose a slice is: of one runtime, for as long as its pods may be on.
fn owner_text(state: &Path) -> String {
    format!("gantry pods of {}", escape_percent(&state.to_string_lossy()))
}

fn own_slice(state: &Path, unified: bool) -> Vec<Property> {
    let mut list =
        vec![Property::text("Description", &owner_text(state)), Property::flag("DefaultDependencies", false)];
    list.extend(accounting(unified));
    list
}

/// Ends the slice of pods without a parent, once the last of them is gone: one that this runtime made, and that has
/// nobody in it. What another puts into it meanwhile runs on.
pub(super) fn leave_slice(node: &Node) -> Result<(), Error> {
    let root = &node.config.cgroup_root;
    let (systemd, slice) = (Systemd::default(), cgroup_placement::own_slice(root));
    let cgroup = Cgroup::new(&node.layout, &cgroup_placement::own_folder(root)?)?;
    if systemd.description(&slice)? != Some(owner_text(&node.config.state)) || !cgroup.is_vacant() {
        return Ok(());
    }
    systemd.stop_alone(&slice)?;
    // Of v1 it knows only its own hierarchies.
    Ok(cgroup.remove_if_empty()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_v1_the_devices_are_delegated_by_name() {
        let names = |unified| delegation(unified).iter().map(|property| property.name).collect::<Vec<_>>();
        assert_eq!(names(true), ["Delegate"]);
        assert_eq!(names(false), ["Delegate", "DelegateControllers"]);
        assert_eq!(delegation(false)[1].value, Value::Texts(vec!["devices".to_owned()]));
    }

    #[test]
    fn what_a_client_names_its_pod_is_one_line_of_a_unit() {
        assert_eq!(escape_percent("kube-system/a.b-c_1"), "kube-system/a.b-c_1");
        assert_eq!(escape_percent("a\nExecStop=/x\\\0%i"), "a_ExecStop_/x___i");
        assert_eq!(owner_text(Path::new("/run/gantry \n")), "gantry pods of /run/gantry__");
    }
}
