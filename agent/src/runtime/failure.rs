//! What goes wrong with a runtime: which call, on what, and the runtime's words as Go prints them. Pure:
//! owns the errors of [`super::Runtime`]; never decides what follows. Made by [`super::cri`], read by
//! the pods' effects.

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
    fn in_go(&self) -> String {
        match self.code {
            "" => self.message.clone(),
            code => format!("rpc error: code = {code} desc = {}", self.message),
        }
    }
}

/// What a runtime says that names no code: containerd's most frequent answer.
const UNKNOWN: &str = "Unknown";

/// Which call failed, on what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is one call of the trait, each field what it was about")]
pub enum Error {
    #[error("observe pod {uid}")]
    Observe {
        uid: String,
        #[source]
        source: Failure,
    },
    #[error("list pods")]
    Pods {
        #[source]
        source: Failure,
    },
    #[error("look for image {image:?}")]
    Image {
        image: String,
        #[source]
        source: Failure,
    },
    #[error("pull image {image:?}")]
    PullImage {
        image: String,
        #[source]
        source: Failure,
    },
    #[error("run a sandbox for pod {pod}")]
    RunSandbox {
        pod: String,
        #[source]
        source: Failure,
    },
    #[error("stop sandbox {id}")]
    StopSandbox {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("remove sandbox {id}")]
    RemoveSandbox {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("create container {name}")]
    CreateContainer {
        name: String,
        #[source]
        source: Failure,
    },
    #[error("start container {id}")]
    StartContainer {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("run a command in container {id}")]
    ExecSync {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("stop container {id}")]
    StopContainer {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("remove container {id}")]
    RemoveContainer {
        id: String,
        #[source]
        source: Failure,
    },
    #[error("watch the runtime's events")]
    Changes {
        #[source]
        source: Failure,
    },
    #[error("ask the runtime what it can do")]
    Features {
        #[source]
        source: Failure,
    },
    #[error("read the stages of {of}")]
    Timeline {
        of: String,
        #[source]
        source: Failure,
    },
    /// Names the endpoint and the remedy.
    #[error("connect to the runtime at {endpoint}: check that it runs and that the address is right")]
    Connect {
        endpoint: String,
        #[source]
        source: Failure,
    },
    #[error("runtime endpoint {endpoint:?} is not of the form unix:///path")]
    Endpoint { endpoint: String },
}

impl Error {
    /// What the runtime said, for a status message.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Observe { source, .. }
            | Self::Pods { source }
            | Self::Image { source, .. }
            | Self::PullImage { source, .. }
            | Self::RunSandbox { source, .. }
            | Self::StopSandbox { source, .. }
            | Self::RemoveSandbox { source, .. }
            | Self::CreateContainer { source, .. }
            | Self::StartContainer { source, .. }
            | Self::ExecSync { source, .. }
            | Self::StopContainer { source, .. }
            | Self::RemoveContainer { source, .. }
            | Self::Changes { source }
            | Self::Features { source }
            | Self::Timeline { source, .. }
            | Self::Connect { source, .. } => Some(source),
            Self::Endpoint { .. } => None,
        }
    }

    /// The whole answer, as upstream puts it into events and messages where it does not take it apart:
    /// what becomes of sandboxes, of looking at an image, of commands and of stops.
    #[must_use]
    pub fn in_go(&self) -> String {
        self.failure().map_or_else(|| self.to_string(), Failure::in_go)
    }

    /// The same of a pull: upstream drops the code that says nothing.
    #[must_use]
    pub fn of_pull(&self) -> String {
        match self.failure() {
            Some(failure) if failure.code == UNKNOWN => failure.message.clone(),
            _ => self.in_go(),
        }
    }

    /// What the runtime said, or the error itself: upstream's words of containers that could not be
    /// made or started.
    #[must_use]
    pub fn detail(&self) -> String {
        self.failure().map_or_else(|| self.to_string(), |failure| failure.message.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_as_go_prints_it_or_without_its_code() {
        let of = |kind| Error::Image { image: "web".into(), source: Failure::new(kind, "no such thing") };
        let (known, unknown) = (of(FailureKind::NotFound), of(FailureKind::Failed));
        assert_eq!(known.in_go(), "rpc error: code = NotFound desc = no such thing");
        assert_eq!(unknown.in_go(), "rpc error: code = Unknown desc = no such thing");
        assert_eq!((known.of_pull(), unknown.of_pull()), (known.in_go(), "no such thing".to_owned()));
        assert_eq!(known.detail(), "no such thing");
        let silent = Failure { code: "", ..Failure::new(FailureKind::Unavailable, "connection refused") };
        let silent = Error::Connect { endpoint: "unix:///x".into(), source: silent };
        assert_eq!((silent.in_go(), silent.of_pull()), (silent.detail(), silent.detail()));
    }
}
