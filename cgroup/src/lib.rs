//! The host's cgroup file systems: which there are, and which version holds the controllers. Agent, runtime
//! and `gantry doctor` ask here, so that they never differ.

mod layout;

pub use layout::{Error, Hierarchy, Layout};
