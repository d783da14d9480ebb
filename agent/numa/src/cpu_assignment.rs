//! Which of the CPUs that are free a container gets, as the kubelet's static policy chooses them. Pure. Called by the CPU
//! manager. The choice is upstream's to the letter, also where it looks odd: another kubelet goes on with our checkpoint.

mod accumulator;
mod combination;
mod distributed;
mod packed;

pub use distributed::take_distributed;
pub use packed::take_packed;

/// In which order single CPUs are given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CpuSort {
    /// A core's CPUs one after the other.
    #[default]
    Packed,
    /// A socket's CPUs by their number (`distribute-cpus-across-cores`).
    Spread,
}

/// No CPUs can be given. The words are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough { requested: usize, available: usize },
    #[error("failed to allocate cpus")]
    Failed,
    #[error("accounting error, not enough CPUs allocated, remaining: {remaining}")]
    TooFewGiven { remaining: i64 },
    /// `remaining` is below 0.
    #[error("accounting error, too many CPUs allocated, remaining: {remaining}")]
    TooManyGiven { remaining: i64 },
}

#[cfg(test)]
mod machines;
#[cfg(test)]
mod tests;
