//! A runtime's answer to a call that failed. Owns its kinds and how it is told; never decides what
//! follows from it. Part of each `runtime::Error`. Pure.

/// What kind of failure a runtime reports; the rest is in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The thing is not there.
    NotFound,
    /// The runtime, or a registry behind it, cannot be reached.
    Unavailable,
    /// No answer in time: it may have happened all the same.
    TimedOut,
    /// The runtime does not do this.
    Unsupported,
    /// Anything else.
    Failed,
}

/// The runtime's answer to a call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For decisions.
    pub kind: FailureKind,
    /// For people.
    pub message: String,
    /// As Go's gRPC names the code of the answer; empty when there was no answer.
    pub code: &'static str,
}

impl Failure {
    /// With the code that is usual for its kind.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let code = match kind {
            FailureKind::NotFound => "NotFound",
            FailureKind::Unavailable => "Unavailable",
            FailureKind::TimedOut => "DeadlineExceeded",
            FailureKind::Unsupported => "Unimplemented",
            FailureKind::Failed => UNKNOWN,
        };
        Self { kind, message: message.into(), code }
    }

    /// As Go prints an error of gRPC.
    #[must_use]
    pub fn in_go(&self) -> String {
        match self.code {
            "" => self.message.clone(),
            code => format!("rpc error: code = {code} desc = {}", self.message),
        }
    }
}

/// What a runtime says that names no code: containerd's most frequent answer.
pub const UNKNOWN: &str = "Unknown";
