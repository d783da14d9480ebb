//! The assembly of a kubelet: all parts of this crate, made, joined, started and drained. Owns their order; never
//! decides about a pod. Called by the command line, which has the arguments and the process: nothing in this crate
//! imports it.
//!
//! [`Kubelet::build`] checks and makes nothing; [`Kubelet::run`] starts the parts and ends with the drain.
//! [`session`] is the same without an API server, for `gantry run` and `gantry agent`.

mod error;
mod health;
mod host;
mod managers;
mod node_pods;
mod parts;
mod pod_deps;
mod run;
pub mod session;
mod spans;
mod watchdog;
mod wiring;

use std::fmt;
use std::io;
use std::time::Duration;

use tonic::transport::Channel;

pub use self::error::Error;
use crate::config::{KubeletConfiguration, KubeletFlags, Loaded};
pub use gantry_server::Verbosity;

/// Tells the service manager a state, sd_notify(3); whether somebody listens.
pub type Notify = fn(&str) -> io::Result<bool>;

/// What the process gives a kubelet.
pub struct KubeletDeps {
    /// Sets the log's verbosity.
    pub verbosity: Verbosity,
    /// READY=1 once it has started, WATCHDOG=1 as long as it is well.
    pub notify: Notify,
    /// How long the service manager waits for a sign of life, if it does.
    pub watchdog: Option<Duration>,
    /// The runtime, where this process has it; else it is reached at `containerRuntimeEndpoint`.
    pub runtime: Option<Channel>,
}

impl fmt::Debug for KubeletDeps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeletDeps").field("watchdog", &self.watchdog).finish_non_exhaustive()
    }
}

/// A kubelet that may run.
#[derive(Debug)]
pub struct Kubelet {
    flags: KubeletFlags,
    config: KubeletConfiguration,
    is_api_limit_set: bool,
    flagz: Vec<(String, String)>,
    name: String,
    deps: KubeletDeps,
}

impl Kubelet {
    /// Checks what it was told, and the machine. Nothing is made.
    ///
    /// # Errors
    /// When a part cannot use a setting, or upstream's kubelet would not start on this machine.
    pub fn build(loaded: Loaded, deps: KubeletDeps) -> Result<Self, Error> {
        let Loaded { flags, config, is_api_limit_set, flagz, notes: _ } = loaded;
        let name = host::name(&flags.hostname_override)?;
        wiring::judge(&flags, &config)?;
        host::judge(&flags, &config)?;
        Ok(Self { flags, config, is_api_limit_set, flagz, name, deps })
    }
}
