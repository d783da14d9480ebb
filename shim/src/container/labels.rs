//! What AppArmor and SELinux shall know a container by. Owns where both come from; the rules are
//! `spec::apparmor`'s and `spec::selinux`'. Called by `create` and `sandbox::run`, on a blocking thread.

use gantry_proto::cri;
use gantry_proto::monitor::StartContainer;

use crate::error::Error;
use crate::node::Node;
use crate::selinux;
use crate::spec::container::CheckedContainer;
use crate::spec::selinux::SelinuxOptions;
use crate::store::record::SandboxRecord;

/// SELinux' labels of a container: its process', and that of its files. Made once, since each may have a level of
/// its own. A privileged container has the first in its record alone, and keeps its level by that.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    pub(super) process: String,
    pub(super) files: String,
}

/// Those that a request comes to, in this sandbox.
///
/// # Errors
/// Options that make no label.
pub(super) fn of(
    node: &Node,
    config: &cri::ContainerConfig,
    sandbox: &SandboxRecord,
) -> Result<Labels, Error> {
    let security = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = security.and_then(|security| security.selinux_options.as_ref());
    let wanted = SelinuxOptions::new(options)?.with_default_label(&sandbox.process_label);
    let (process, files) = selinux(node, &wanted);
    Ok(Labels { process, files })
}

/// Adds the labels to a start whose mounts are those of the request, which have theirs, and files of our own.
///
/// # Errors
/// A profile that the node does not have, a file that can't be labelled.
pub(super) fn add(
    node: &Node,
    start: &mut StartContainer,
    config: &cri::ContainerConfig,
    checked: &CheckedContainer,
    labels: &Labels,
) -> Result<(), Error> {
    start.apparmor_profile = node.apparmor.of(checked.security(), &node.config.state)?;
    if !labels.files.is_empty() {
        let asked = |at: &str| config.mounts.iter().any(|mount| mount.container_path == at);
        let own = start.mounts.iter().filter(|told| told.image.is_none() && !asked(&told.destination));
        for told in own {
            selinux::tree(&told.source, &labels.files)?;
        }
    }
    start.mount_label.clone_from(&labels.files);
    if !start.privileged {
        start.process_label.clone_from(&labels.process);
    }
    Ok(())
}

/// The labels of a process and of its files, with a level that no pod has unless one is asked for.
pub(crate) fn selinux(node: &Node, wanted: &SelinuxOptions) -> (String, String) {
    node.selinux.labels(wanted, || {
        let sandboxes =
            node.store.sandboxes().into_iter().map(|sandbox| sandbox.record().process_label.clone());
        let containers =
            node.store.containers().into_iter().map(|container| container.record().process_label.clone());
        sandboxes.chain(containers).collect()
    })
}
