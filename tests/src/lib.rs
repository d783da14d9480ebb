//! The harness of every tier above unit tests: images, a real registry, a CRI client, a node of
//! one's own, and the check that nothing is left behind. Never asserts anything itself and never
//! touches the host outside the folders, cgroups and namespaces it was given. Used by the tiers
//! that need root (`tests/kernel`, `tests/cri`, `tests/standalone`) and by `cargo xtask`.

pub mod bench;
pub mod churn;
pub mod cluster;
pub mod containerd;
pub mod cri;
pub mod criu;
pub mod debian;
pub mod fake_reboot;
pub mod fault_proxy;
pub mod go;
pub mod http;
pub mod image;
pub mod leakcheck;
pub mod load;
pub mod netns;
pub mod nft;
pub mod node;
pub mod not_run;
pub mod paused_registry;
pub mod peers;
pub mod place;
pub mod pod;
pub mod poll;
pub mod proc;
pub mod prometheus;
pub mod pty;
pub mod pulls;
pub mod ready;
pub mod registry;
pub mod saved;
pub mod standalone;
pub mod stream_client;
pub mod suite;
pub mod system_calls;
pub mod tour;
pub mod websocket;

pub use not_run::{NOT_RUN, not_run};
