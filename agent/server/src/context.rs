//! What every answer has at hand: settings, what is answered from, the gate. Owns nothing that changes but the
//! listeners' drain; never answers. Made by [`super::server`].

use std::path::PathBuf;
use std::time::Duration;

use gantry_model::drain::DrainTrigger;

use super::deps::ServerDeps;
use super::gate::Gate;
use super::route::Switches;

/// How the server behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What is served at all.
    pub switches: Switches,
    /// streamingConnectionIdleTimeout; nothing in either direction for so long ends a stream.
    pub stream_idle: Duration,
    /// The gate ExtendWebSocketsToKubelet: WebSockets that the API server would translate come here as they are.
    pub web_sockets: bool,
    /// What `/logs/` shows, `/var/log`.
    pub node_logs: PathBuf,
    /// podLogsDir.
    pub pod_logs: PathBuf,
    /// Where archives of containers go, `checkpoints` below the kubelet's root.
    pub checkpoints: PathBuf,
    /// enableSystemLogQuery: whether `/logs/?query=` asks for logs of services.
    pub system_log_query: bool,
    /// What reads the journal: a path, or a name that is looked for in PATH.
    pub journalctl: PathBuf,
}

/// One for all requests.
#[derive(Debug)]
pub(super) struct ServerContext {
    pub(super) settings: Settings,
    pub(super) sources: ServerDeps,
    pub(super) gate: Gate,
    /// Of the listeners.
    pub(super) drain: DrainTrigger,
}
