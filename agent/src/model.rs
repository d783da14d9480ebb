//! What the agent speaks of: pods and their parts, amounts, names, durations. Owns types and arithmetic that several
//! modules share; never a file, a socket, a task or a clock, and imports nothing of this crate. Called by all others.

pub mod admitted;
pub mod cgroup;
pub mod expand;
pub mod failure;
pub mod field_path;
pub mod go_duration;
pub mod mount;
pub mod names;
pub mod pod;
pub mod quantity;
pub mod requests;
pub mod signal;
pub mod token;
