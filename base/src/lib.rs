//! What agent, runtime, CNI plugins and programs all want of the standard library and of the kernel, and nothing of
//! Kubernetes: no domain type lives here. Depends on nothing of ours.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests run programs, spawn tasks and write files")
)]

pub mod error;
pub mod files;
pub mod flock;
pub mod mountinfo;
pub mod mutex;
pub mod open;
pub mod selinux;
pub mod timeline;
