//! What AppArmor and SELinux shall know a container by. Owns where both come from; the rules are
//! `spec::apparmor`'s and `spec::selinux`'. Called by `create` and `sandbox::run`, on a blocking thread.

use gantry_proto::cri;
use gantry_proto::monitor::StartContainer;

use crate::error::Error;
use crate::node::Node;
use crate::selinux;
use crate::spec::container::Checked;
use crate::spec::selinux::Wanted;
use crate::store::record::SandboxRecord;

/// Adds the labels to a start whose mounts are those of the request and the sandbox's own. Returns SELinux' label as the
/// record has it: a privileged container has none and keeps its level all the same.
///
/// # Errors
/// A profile that the node does not have, a volume that can't be labelled.
pub(super) fn add(
    node: &Node,
    start: &mut StartContainer,
    config: &cri::ContainerConfig,
    checked: &Checked,
    sandbox: &SandboxRecord,
) -> Result<String, Error> {
    let security = checked.security();
    start.apparmor_profile = node.apparmor.of(security, &node.config.state)?;
    let wanted = Wanted::new(security.selinux_options.as_ref())?.like(&sandbox.process_label);
    let (process, mount) = selinux(node, &wanted);
    if !mount.is_empty() {
        // The sandbox's own files, which no request names, too.
        let of = |at: &str| config.mounts.iter().find(|mount| mount.container_path == at);
        for told in start.mounts.iter().filter(|told| told.image.is_none()) {
            if of(&told.destination).is_none_or(|asked| asked.selinux_relabel) {
                selinux::tree(&told.source, &mount)?;
            }
        }
    }
    start.mount_label = mount;
    if !start.privileged {
        start.process_label.clone_from(&process);
    }
    Ok(process)
}

/// The labels of a process and of its files, with a level that no pod has unless one is asked for.
pub(crate) fn selinux(node: &Node, wanted: &Wanted) -> (String, String) {
    node.selinux.labels(wanted, || {
        let sandboxes = node.store.sandboxes().into_iter().map(|sandbox| sandbox.record().process_label);
        let containers =
            node.store.containers().into_iter().map(|container| container.record().process_label);
        sandboxes.chain(containers).collect()
    })
}
