//! Probes and lifecycle hooks as written. Owns the types; never runs one (that is
//! `probe`). Pure.

use std::time::Duration;

/// What a probe or a hook does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handler {
    /// Runs a command in the container.
    Exec {
        /// Program and arguments; no shell.
        command: Vec<String>,
    },
    /// Asks for a page.
    HttpGet(HttpGet),
    /// Opens a connection.
    Tcp {
        /// The pod's address when empty.
        host: String,
        /// Where.
        port: PortRef,
    },
    /// Asks the gRPC health service; probes only.
    Grpc {
        /// A number.
        port: u16,
        /// May be empty.
        service: String,
    },
    /// Waits; hooks only.
    Sleep(Duration),
}

/// As in HTTPGetAction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// The pod's address when empty.
    pub host: String,
    /// Where.
    pub port: PortRef,
    /// With its leading slash.
    pub path: String,
    /// HTTPS, whose certificate is not verified, as upstream.
    pub tls: bool,
    /// In order.
    pub headers: Vec<(String, String)>,
}

/// A port by number or by the name of one of the container's ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortRef {
    /// 1 to 65535.
    Number(u16),
    /// Looked up among the container's ports.
    Name(String),
}

/// One probe with its thresholds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What is asked; never `Sleep`.
    pub handler: Handler,
    /// After the container's start.
    pub initial_delay: Duration,
    /// How long one try may take.
    pub timeout: Duration,
    /// From one try to the next.
    pub period: Duration,
    /// Successes in a row that turn it good.
    pub success_threshold: u32,
    /// Failures in a row that turn it bad.
    pub failure_threshold: u32,
    /// Of the container's end when this probe is why; the pod's when not given.
    pub termination_grace: Option<Duration>,
}

/// A container's probes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Until it has succeeded the other two do not run.
    pub startup: Option<Probe>,
    /// Ends the container when it turns bad.
    pub liveness: Option<Probe>,
    /// Whether the container is ready.
    pub readiness: Option<Probe>,
}

/// A container's hooks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lifecycle {
    /// Right after the start; a failure ends the container.
    pub post_start: Option<Handler>,
    /// Before the stop signal, within the grace period.
    pub pre_stop: Option<Handler>,
    /// Sent instead of the image's stop signal, such as `SIGUSR1`.
    pub stop_signal: Option<String>,
}
