//! The harness of every tier above unit tests: images, a real registry, a CRI client, a node of
//! one's own, and the check that nothing is left behind. Never asserts anything itself and never
//! touches the host outside the folders, cgroups and namespaces it was given. Used by the kernel
//! tier (`tests/kernel`), the CRI tier (`tests/cri`), `cargo xtask demo` and `cargo xtask bench`.

pub mod bench;
pub mod containerd;
pub mod cri;
pub mod http;
pub mod image;
pub mod leakcheck;
pub mod node;
pub mod peers;
pub mod place;
pub mod pod;
pub mod poll;
pub mod proc;
pub mod registry;
pub mod standalone;
pub mod suite;
