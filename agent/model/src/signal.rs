//! What a node can run short of, as eviction names it: signals, the resources they are about, the node conditions
//! that they make. Pure: owns the names; never a measurement or a threshold.

use std::collections::BTreeSet;
use std::fmt;

/// What a threshold is about. In the order in which they are seen to: memory before all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Memory of the machine.
    Memory,
    /// Memory of all pods together, within what is allocatable.
    AllocatableMemory,
    /// Room where the kubelet's folder and logs are.
    NodeFs,
    /// Inodes there.
    NodeFsInodes,
    /// Room where images are.
    ImageFs,
    /// Inodes there.
    ImageFsInodes,
    /// Room where containers' writable layers are.
    ContainerFs,
    /// Inodes there.
    ContainerFsInodes,
    /// Process IDs.
    Pids,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Memory,
        Self::AllocatableMemory,
        Self::NodeFs,
        Self::NodeFsInodes,
        Self::ImageFs,
        Self::ImageFsInodes,
        Self::ContainerFs,
        Self::ContainerFsInodes,
        Self::Pids,
    ];

    /// As upstream spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::AllocatableMemory => "allocatableMemory.available",
            Self::NodeFs => "nodefs.available",
            Self::NodeFsInodes => "nodefs.inodesFree",
            Self::ImageFs => "imagefs.available",
            Self::ImageFsInodes => "imagefs.inodesFree",
            Self::ContainerFs => "containerfs.available",
            Self::ContainerFsInodes => "containerfs.inodesFree",
            Self::Pids => "pid.available",
        }
    }

    /// None when it is no signal.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == text)
    }

    /// The node condition that it makes.
    #[must_use]
    pub fn pressure(self) -> Pressure {
        match self {
            Self::Memory | Self::AllocatableMemory => Pressure::Memory,
            Self::Pids => Pressure::Pid,
            _ => Pressure::Disk,
        }
    }

    /// What pods use of it.
    #[must_use]
    pub fn resource(self) -> Starved {
        match self {
            Self::Memory | Self::AllocatableMemory => Starved::Memory,
            Self::NodeFs | Self::ImageFs | Self::ContainerFs => Starved::Storage,
            Self::NodeFsInodes | Self::ImageFsInodes | Self::ContainerFsInodes => Starved::Inodes,
            Self::Pids => Starved::Pids,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What there is too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Starved {
    Memory,
    Storage,
    Inodes,
    Pids,
}

impl Starved {
    /// As messages and annotations have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Storage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}

impl fmt::Display for Starved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A condition of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Too little memory.
    Memory,
    /// Too little room or too few inodes.
    Disk,
    /// Too few process IDs.
    Pid,
}

impl Pressure {
    /// The condition's type.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Those that the node is under.
pub type Pressures = BTreeSet<Pressure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_each_signal_makes_a_condition() {
        for signal in Signal::ALL {
            assert_eq!(Signal::parse(signal.as_str()), Some(signal));
            let disk = signal.as_str().contains("fs.");
            assert_eq!(signal.pressure() == Pressure::Disk, disk, "{signal}");
            assert_eq!(
                signal.resource() == Starved::Inodes,
                signal.as_str().ends_with("inodesFree"),
                "{signal}"
            );
        }
        assert_eq!(Signal::parse("memory.avialable"), None);
    }
}
