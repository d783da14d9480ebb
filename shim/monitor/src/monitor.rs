//! The monitor: one small process per pod that is the parent of pause and of every container, and
//! outlives the runtime. Owns the containers' processes, their log files and their exit records;
//! never reads an image, talks to a network, or has a second thread. Started by `sandbox::monitor_launch`
//! in the runtime as the program `gantry-monitor`.
//!
//! Descriptor 0 is the runtime's first connection, 1 the listener for later ones, 2 the monitor's
//! own log.

mod attach;
mod child;
mod children;
mod connection;
mod event_loop;
mod exec;
mod external;
mod log;
mod report;
mod spawn;
mod unclaimed_exits;

pub use event_loop::run;
pub use log::timestamp;
pub use spawn::start_time_ticks;

/// Parsed command line of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorOptions {
    /// Cgroup folders the monitor moves itself into: one per v1 hierarchy, or one on v2.
    pub cgroups: Vec<String>,
    /// oom_score_adj of the monitor.
    pub oom_score_adj: i32,
}

/// The monitor could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A start-up step or the event loop failed.
    #[error("{what}")]
    Step {
        /// What was being done.
        what: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The command line is not ours.
    #[error("unknown argument {0:?}: gantry-monitor is started by gantry, not by hand")]
    Argument(String),
}

impl From<crate::init::StepError> for Error {
    fn from(error: crate::init::StepError) -> Self {
        Self::Step { what: error.what, source: error.source }
    }
}

impl MonitorOptions {
    /// Reads `--cgroup PATH` (repeated) and `--oom-score-adj N`.
    ///
    /// # Errors
    /// On anything else.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self, Error> {
        let mut options = Self { cgroups: Vec::new(), oom_score_adj: 0 };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            match (name.as_str(), arguments.next()) {
                ("--cgroup", Some(path)) => options.cgroups.push(path),
                ("--oom-score-adj", Some(score)) => {
                    options.oom_score_adj = score.parse().map_err(|_| Error::Argument(score))?;
                }
                _ => return Err(Error::Argument(name)),
            }
        }
        Ok(options)
    }
}
