//! The effects a plan is made of. Pure: owns the types; never carries one out (that is
//! [`crate::pod::run`]). Made by the planner.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gantry_model::allocation::Allocation;
use gantry_model::cgroup::limits::Limits;
use gantry_model::resize::Step;

use crate::checkpoint::Marks;
use crate::pod::probing::ProbeKind;
use crate::runtime::Image;

/// One effect to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// `runs`: it has a sandbox that serves, so it was given them before.
    AllocateDevices {
        runs: bool,
    },
    /// Its claims to devices, before each sandbox.
    PrepareClaims,
    /// `actuated`: what its containers are held to, if they are.
    SetUpCgroup {
        actuated: Allocation,
    },
    SetUpVolumes,
    /// Objects or the pod's own fields have changed: what is in the volumes follows.
    RefreshVolumes,
    EnsureImage {
        container: String,
        attempt: u32,
    },
    /// `replaces`: there was one before, which has changed.
    RunSandbox {
        attempt: u32,
        cgroup_parent: String,
        replaces: bool,
    },
    /// `ended`: when the attempt before it was seen to have ended, if there was one.
    CreateContainer {
        container: String,
        attempt: u32,
        place: SandboxRef,
        image: Image,
        ended: Option<Duration>,
    },
    StartContainer {
        container: String,
        attempt: u32,
        id: String,
    },
    PostStart {
        container: String,
        id: String,
        address: String,
    },
    Probe {
        container: String,
        id: String,
        kind: ProbeKind,
        address: String,
    },
    /// `why`: to be told, when it was not yet.
    PreStop {
        container: String,
        id: String,
        address: String,
        deadline: Duration,
        why: Option<String>,
    },
    /// `why`: to be told, when it was not yet.
    StopContainer {
        container: String,
        id: String,
        deadline: Duration,
        why: Option<String>,
    },
    ReadLastWords {
        container: String,
        id: String,
        attempt: u32,
        file: Option<PathBuf>,
        log: Option<String>,
    },
    RemoveContainer {
        id: String,
    },
    /// `ids`: of the containers that run. `before`, `cgroup`: what containers and pod are held to.
    Resize {
        sandbox: String,
        steps: Vec<Step>,
        ids: BTreeMap<String, String>,
        before: Allocation,
        cgroup: Limits,
    },
    StopSandbox {
        id: String,
    },
    RemoveSandbox {
        id: String,
    },
    UnprepareClaims,
    TearDownVolumes,
    TearDownCgroup,
    Remember {
        marks: Marks,
    },
}

/// Where a container is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRef {
    /// The runtime's ID.
    pub sandbox: String,
    /// The sandbox's own.
    pub sandbox_attempt: u32,
    /// As the sandbox was given it.
    pub cgroup_parent: String,
    /// The pod's, primary first.
    pub ips: Vec<String>,
    /// The ID of the container whose processes it is to see; empty for none.
    pub target: String,
}

/// What an action is about: of one `Op` at most one is under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    Devices,
    Claims,
    Cgroup,
    Volumes,
    Refresh,
    Image(String),
    Sandbox,
    Container(String),
    PostStart(String),
    Probe(String, ProbeKind),
    PreStop(String),
    StopContainer(String),
    LastWords(String),
    RemoveContainer(String),
    Resize,
    StopSandbox(String),
    RemoveSandbox(String),
    NoClaims,
    NoVolumes,
    NoCgroup,
    Remember,
}

impl Op {
    /// Whether its end may be something that only the runtime's lists show.
    #[must_use]
    pub fn changes_runtime(&self) -> bool {
        match self {
            Self::Sandbox
            | Self::Container(_)
            | Self::StopContainer(_)
            | Self::RemoveContainer(_)
            | Self::Resize
            | Self::StopSandbox(_)
            | Self::RemoveSandbox(_) => true,
            Self::Devices
            | Self::Claims
            | Self::Cgroup
            | Self::Volumes
            | Self::Refresh
            | Self::Image(_)
            | Self::PostStart(_)
            | Self::Probe(..)
            | Self::PreStop(_)
            | Self::LastWords(_)
            | Self::NoClaims
            | Self::NoVolumes
            | Self::NoCgroup
            | Self::Remember => false,
        }
    }
}

impl Action {
    /// What it is about.
    #[must_use]
    pub fn op(&self) -> Op {
        match self {
            Self::AllocateDevices { .. } => Op::Devices,
            Self::PrepareClaims => Op::Claims,
            Self::SetUpCgroup { .. } => Op::Cgroup,
            Self::SetUpVolumes => Op::Volumes,
            Self::RefreshVolumes => Op::Refresh,
            Self::EnsureImage { container, .. } => Op::Image(container.clone()),
            Self::RunSandbox { .. } => Op::Sandbox,
            Self::CreateContainer { container, .. } | Self::StartContainer { container, .. } => {
                Op::Container(container.clone())
            }
            Self::PostStart { id, .. } => Op::PostStart(id.clone()),
            Self::Probe { container, kind, .. } => Op::Probe(container.clone(), *kind),
            Self::PreStop { id, .. } => Op::PreStop(id.clone()),
            Self::StopContainer { id, .. } => Op::StopContainer(id.clone()),
            Self::ReadLastWords { id, .. } => Op::LastWords(id.clone()),
            Self::RemoveContainer { id } => Op::RemoveContainer(id.clone()),
            Self::Resize { .. } => Op::Resize,
            Self::StopSandbox { id } => Op::StopSandbox(id.clone()),
            Self::RemoveSandbox { id } => Op::RemoveSandbox(id.clone()),
            Self::UnprepareClaims => Op::NoClaims,
            Self::TearDownVolumes => Op::NoVolumes,
            Self::TearDownCgroup => Op::NoCgroup,
            Self::Remember { .. } => Op::Remember,
        }
    }
}
