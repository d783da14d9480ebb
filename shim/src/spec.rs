//! From CRI's configuration to what the monitor is told. Pure: no file, clock or process is touched.
//! Owns what is honoured and what is refused: a field that would change the container and is not
//! honoured yet is an error that names it, never ignored. Called by `container::create` and
//! `sandbox::run`.

pub(crate) mod apparmor;
pub(crate) mod container;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod handler;
pub(crate) mod profiles;
pub(crate) mod resources;
pub(crate) mod sandbox;
pub(crate) mod selinux;
pub(crate) mod user;
pub(crate) mod userns;

use gantry_proto::cri;
use gantry_proto::monitor::NamespaceMode;

use crate::capabilities;
use crate::store::record::NamespaceModes;

/// A request that can't be honoured.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("{0} is missing from the request")]
    Missing(&'static str),
    #[error("{field} is not supported yet: leave it unset")]
    Unsupported { field: &'static str },
    #[error("{field}: {value:?} is not valid: {expected}")]
    Invalid { field: &'static str, value: String, expected: &'static str },
    #[error(transparent)]
    Capability(#[from] capabilities::Unknown),
    #[error("no command: neither the container nor image {0:?} names one")]
    NoCommand(String),
    #[error("user {user:?} is not in the image's /etc/passwd: give a number, or a user it has")]
    UnknownUser { user: String },
    #[error("group {group:?} is not in the image's /etc/group: give a number, or a group it has")]
    UnknownGroup { group: String },
    #[error("run_as_group is set without run_as_user or run_as_username")]
    GroupWithoutUser,
    #[error("user namespace configuration: {0}")]
    Users(String),
    #[error(
        "user namespace config for sandbox is different from container. Sandbox userns config: {sandbox} - \
         Container userns config: {container}"
    )]
    OtherUsers { sandbox: String, container: String },
    #[error("path {path:?} is mounted on {point:?} but it is not a {lacks} mount")]
    Propagation { path: String, point: String, lacks: &'static str },
    #[error("failed to generate apparmor spec opts: {0}")]
    AppArmor(String),
    #[error("the format of 'level' {0:?} is not correct")]
    SelinuxLevel(String),
    #[error("{count} {what}: at most {most} are possible")]
    TooMany { what: &'static str, count: usize, most: usize },
    #[error("signal {0:?} is unknown: use a name of signal(7) or a number")]
    Signal(String),
}

/// Field of every call that names an image.
pub(crate) const IMAGE_HANDLER: &str = "image.runtime_handler";

/// Refuses `field` when the caller set it.
fn refuse_if_set(set: bool, field: &'static str) -> Result<(), Error> {
    if set { Err(Error::Unsupported { field }) } else { Ok(()) }
}

/// The namespaces of a pod or container, each in a mode that this runtime has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Namespaces {
    net: NamespaceMode,
    pid: NamespaceMode,
    ipc: NamespaceMode,
}

impl Namespaces {
    /// Of a sandbox.
    fn of_sandbox(options: &cri::NamespaceOption) -> Result<Self, Error> {
        let of = Self::new(options)?;
        refuse_if_set(of.pid == NamespaceMode::Target, "namespace_options.pid of a sandbox")?;
        Ok(of)
    }

    /// Of a container. Whether the node's network, IPC and processes are its own is the sandbox's to say:
    /// a container that asks otherwise has what its sandbox has, as under containerd. A pid namespace
    /// can be its own all the same, or another container's.
    fn of_container(options: &cri::NamespaceOption, sandbox: &NamespaceModes) -> Result<Self, Error> {
        let of = Self::new(options)?;
        let sandboxs = |mode: i32| match cri::NamespaceMode::try_from(mode) {
            Ok(cri::NamespaceMode::Node) => NamespaceMode::Host,
            _ => NamespaceMode::Sandbox,
        };
        if of.pid == NamespaceMode::Target && options.target_id.is_empty() {
            return Err(Error::Missing("namespace_options.target_id"));
        }
        let pid = match of.pid {
            NamespaceMode::Private | NamespaceMode::Target => of.pid,
            NamespaceMode::Sandbox | NamespaceMode::Host => sandboxs(sandbox.pid),
        };
        Ok(Self { net: sandboxs(sandbox.network), pid, ipc: sandboxs(sandbox.ipc) })
    }

    fn new(options: &cri::NamespaceOption) -> Result<Self, Error> {
        let shared = |mode: i32, field| match cri::NamespaceMode::try_from(mode) {
            Ok(cri::NamespaceMode::Pod) => Ok(NamespaceMode::Sandbox),
            Ok(cri::NamespaceMode::Node) => Ok(NamespaceMode::Host),
            _ => Err(Error::Unsupported { field }),
        };
        let pid = match cri::NamespaceMode::try_from(options.pid) {
            Ok(cri::NamespaceMode::Container) => NamespaceMode::Private,
            Ok(cri::NamespaceMode::Target) => NamespaceMode::Target,
            _ => shared(options.pid, "namespace_options.pid")?,
        };
        Ok(Self {
            net: shared(options.network, "namespace_options.network")?,
            pid,
            ipc: shared(options.ipc, "namespace_options.ipc")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_in_a_mode_that_is_honoured_or_is_refused_by_name() {
        use cri::NamespaceMode::{Container, Target};
        let plain = Namespaces::new(&cri::NamespaceOption::default());
        let sandbox = NamespaceMode::Sandbox;
        assert_eq!(plain, Ok(Namespaces { net: sandbox, pid: sandbox, ipc: sandbox }));
        let options = cri::NamespaceOption { network: Container.into(), ..Default::default() };
        let refused = Namespaces::new(&options).unwrap_err();
        assert_eq!(refused, Error::Unsupported { field: "namespace_options.network" });
        let target = cri::NamespaceOption { pid: Target.into(), ..Default::default() };
        let refused = Namespaces::of_sandbox(&target).unwrap_err();
        assert_eq!(refused, Error::Unsupported { field: "namespace_options.pid of a sandbox" });
    }

    #[test]
    fn a_containers_namespaces_are_its_sandboxs_but_for_pids_of_its_own_or_a_targets() {
        use NamespaceMode::{Host, Private, Sandbox};
        use cri::NamespaceMode::{Container, Node, Pod, Target};
        // As kubelets send them, then as nobody should. Sandbox (pid, net and ipc), container, result.
        for (sandbox, container, (pid, rest)) in [
            ((Container, Pod), (Container, Pod), (Private, Sandbox)),
            ((Pod, Pod), (Pod, Pod), (Sandbox, Sandbox)),
            ((Node, Node), (Node, Node), (Host, Host)),
            ((Node, Pod), (Node, Pod), (Host, Sandbox)),
            ((Container, Node), (Container, Node), (Private, Host)),
            ((Container, Pod), (Target, Pod), (NamespaceMode::Target, Sandbox)),
            ((Pod, Pod), (Container, Pod), (Private, Sandbox)),
            ((Container, Pod), (Pod, Pod), (Sandbox, Sandbox)),
            ((Container, Pod), (Node, Node), (Sandbox, Sandbox)),
            ((Node, Node), (Pod, Pod), (Host, Host)),
            ((Node, Node), (Container, Pod), (Private, Host)),
        ] {
            let modes =
                NamespaceModes { network: sandbox.1.into(), pid: sandbox.0.into(), ipc: sandbox.1.into() };
            let mut options = cri::NamespaceOption {
                network: container.1.into(),
                pid: container.0.into(),
                ipc: container.1.into(),
                target_id: "t".into(),
                ..Default::default()
            };
            let found = Namespaces::of_container(&options, &modes);
            assert_eq!(found, Ok(Namespaces { net: rest, pid, ipc: rest }), "{sandbox:?} {container:?}");
            options.target_id.clear();
            assert_eq!(Namespaces::of_container(&options, &modes).is_err(), container.0 == Target);
        }
    }
}
