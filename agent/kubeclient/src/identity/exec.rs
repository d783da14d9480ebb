//! Credential programs of a kubeconfig (client-go's exec plugins): run when credentials are needed, their answer kept
//! for as long as it counts. Owns the answer and the run; never a connection. Called by [`super::client`].
//!
//! read: [`config`] (pure) · understand: [`answer`] (pure)

#![expect(clippy::disallowed_methods, reason = "runs the credential program that a kubeconfig names")]

pub mod answer;
pub mod config;

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gantry_metrics::Metrics;
use jiff::Timestamp;
use tokio::process::Command;
use tokio::sync::{Mutex, watch};

use self::answer::Answer;
use self::config::{Config, InteractiveMode};
use super::{Current, Pair};

const INFO: &str = "KUBERNETES_EXEC_INFO";
/// More than anybody waits for a request.
const PATIENCE: Duration = Duration::from_secs(60);
/// As upstream.
const HELP: &str = "It looks like you are trying to use a client-go credential plugin that is not installed.\n\n\
                    To learn more about this feature, consult the documentation available at:\n      \
                    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins";

/// A program and what it said last. One is run at a time.
pub struct Program {
    config: Config,
    kept: Mutex<Option<Arc<Credentials>>>,
    certificate: watch::Sender<Option<Arc<Pair>>>,
}

/// What a request is made with.
#[derive(Clone)]
pub(super) struct Credentials {
    answer: Answer,
    /// Of the certificate: another number is another one.
    pub(super) generation: u64,
}

impl Credentials {
    /// None when the certificate is all there is.
    pub(super) fn token(&self) -> Option<&str> {
        Some(self.answer.token.as_str()).filter(|token| !token.is_empty())
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("config", &self.config).finish_non_exhaustive()
    }
}

impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config
    }
}

impl Eq for Program {}

impl Program {
    /// Runs nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, kept: Mutex::default(), certificate: watch::channel(None).0 }
    }

    /// The client certificate that it gave last.
    pub(super) fn certificate(&self) -> Current {
        self.certificate.subscribe()
    }

    /// What counts now; the program is run when nothing does.
    ///
    /// # Errors
    /// In upstream's words, when it gives nothing of use.
    pub(super) async fn credentials(&self, metrics: &Metrics) -> Result<Arc<Credentials>, String> {
        let mut kept = self.kept.lock().await;
        let counts = |one: &&Arc<Credentials>| one.answer.until.is_none_or(|until| Timestamp::now() <= until);
        match kept.as_ref().filter(counts) {
            Some(credentials) => Ok(credentials.clone()),
            None => self.refresh(&mut kept, metrics).await,
        }
    }

    /// The server did not accept `refused`: it is not used again, unless that is known already. What cannot be had
    /// anew is told, and the old one tried again.
    pub(super) async fn refuse(&self, refused: &Arc<Credentials>, metrics: &Metrics) {
        let mut kept = self.kept.lock().await;
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, refused))
            && let Err(error) = self.refresh(&mut kept, metrics).await
        {
            tracing::error!(error, "refreshing credentials");
        }
    }

    async fn refresh(
        &self,
        kept: &mut Option<Arc<Credentials>>,
        metrics: &Metrics,
    ) -> Result<Arc<Credentials>, String> {
        let ran = self.run().await;
        let (code, what) = match &ran {
            Ok(_) => (0, "no_error"),
            Err(failure) => failure.count(),
        };
        metrics.exec_plugin_calls.inc([&code.to_string(), what]);
        let ran = ran.map_err(|failure| self.words(&failure))?;
        let answer = answer::read(&ran, &self.config.api_version)?;
        let before = kept.as_ref().map(|kept| (kept.generation, &kept.answer.certificate));
        let shown = |pair: &Option<Arc<Pair>>| pair.as_ref().map(|pair| pair.key().cert.clone());
        let generation = match before {
            Some((generation, old)) if shown(old) == shown(&answer.certificate) => generation,
            Some((generation, _)) => generation + 1,
            None => 0,
        };
        self.certificate.send_replace(answer.certificate.clone());
        Ok(kept.insert(Arc::new(Credentials { answer, generation })).clone())
    }

    /// What it wrote to its standard output. What it complains of goes where the kubelet's own words go.
    async fn run(&self) -> Result<Vec<u8>, Failure> {
        if self.config.interactive_mode == InteractiveMode::Always {
            return Err(Failure::NoTerminal);
        }
        let authority = match self.config.cluster.as_ref().and_then(|cluster| cluster.authority.as_deref()) {
            Some(path) => {
                Some(std::fs::read(path).map_err(|error| Failure::Authority(path.to_owned(), error))?)
            }
            None => None,
        };
        let child = Command::new(&self.config.command)
            .args(&self.config.args)
            .envs(self.config.env.iter().map(|(name, value)| (name, value)))
            .env(INFO, self.config.info(authority.as_deref()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(Failure::Start)?;
        let output = match tokio::time::timeout(PATIENCE, child.wait_with_output()).await {
            Ok(output) => output.map_err(Failure::Start)?,
            Err(_) => return Err(Failure::Late),
        };
        if output.status.success() { Ok(output.stdout) } else { Err(Failure::Exit(output.status)) }
    }

    /// As upstream tells it.
    fn words(&self, failure: &Failure) -> String {
        let (name, hint) = (self.config.command.display(), &self.config.install_hint);
        match failure {
            Failure::NoTerminal => {
                "exec plugin cannot support interactive mode: standard input is not a terminal".to_owned()
            }
            Failure::Authority(path, error) => format!("read {}: {error}", path.display()),
            Failure::Start(error) if !is_missing(error) => format!("exec: {name}: {error}"),
            Failure::Start(_) if hint.is_empty() => format!("exec: executable {name} not found"),
            Failure::Start(_) => format!("exec: executable {name} not found\n\n{HELP}\n\n{hint}"),
            Failure::Late => format!("exec: executable {name} did not end within 60 s"),
            Failure::Exit(status) => {
                format!("exec: executable {name} failed with exit code {}", code_of(*status))
            }
        }
    }
}

/// Why a program gave nothing.
enum Failure {
    NoTerminal,
    Authority(PathBuf, io::Error),
    Start(io::Error),
    Late,
    Exit(ExitStatus),
}

impl Failure {
    /// Exit code and kind, as upstream counts them.
    fn count(&self) -> (i32, &'static str) {
        match self {
            Self::Start(error) if is_missing(error) => (1, "plugin_not_found_error"),
            Self::NoTerminal | Self::Authority(..) | Self::Start(_) => (1, "client_internal_error"),
            Self::Late => (-1, "plugin_execution_error"),
            Self::Exit(status) => (code_of(*status), "plugin_execution_error"),
        }
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// Go's code of a program that a signal ended is -1.
fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}

#[cfg(test)]
mod tests;
