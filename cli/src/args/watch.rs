//! The flags of logs and stats. Owns their form; never acts. Parsed by [`crate::main`].

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::duration::duration;
use super::{ListFormat, PodName, RuntimeEndpoint, SomePods};

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) pods: SomePods,
    /// The container; when not given, the one of the annotation
    /// kubectl.kubernetes.io/default-container, or the first.
    #[arg(short, long)]
    pub(crate) container: Option<String>,
    /// Go on until the containers have ended.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Show every container of the pods; each line names its container.
    #[arg(long, conflicts_with = "container")]
    pub(crate) all_containers: bool,
    /// Begin each line with its pod and container; of several pods it always does.
    #[arg(long)]
    pub(crate) prefix: bool,
    /// Of the instance before the present one.
    #[arg(short, long, conflicts_with = "follow")]
    pub(crate) previous: bool,
    /// Only the last lines; all with -1, which is the default, but 10 with --selector.
    #[arg(long, value_name = "LINES", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub(crate) tail: Option<i64>,
    /// Only lines that are not older, as in 10s, 5m or 1h30m.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "since_time")]
    pub(crate) since: Option<Duration>,
    /// Only lines from this time on, as in 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub(crate) since_time: Option<Timestamp>,
    /// Each line with the time it was written at.
    #[arg(long)]
    pub(crate) timestamps: bool,
}

impl LogsArgs {
    /// How many of the last lines of each container; none for all.
    pub(crate) fn last(&self) -> Option<usize> {
        let default = if self.pods.selector.is_some() { 10 } else { -1 };
        usize::try_from(self.tail.unwrap_or(default)).ok()
    }
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Only this pod.
    #[arg(value_name = "POD")]
    pub(crate) pod: Option<PodName>,
    /// Only pods of this namespace.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// How to print.
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: ListFormat,
    /// Print again each second.
    #[arg(short, long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) runtime: RuntimeEndpoint,
}

#[cfg(test)]
mod tests {
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn last(words: &[&str]) -> Option<usize> {
        match Cli::try_parse_from(["gantry", "logs"].iter().chain(words)).unwrap().command {
            Command::Logs(args) => args.last(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_tail_is_kubectls() {
        assert_eq!(last(&["web"]), None);
        assert_eq!(last(&["web", "--tail=-1"]), None);
        assert_eq!(last(&["web", "--tail", "3"]), Some(3));
        assert_eq!(last(&["-l", "app=web"]), Some(10));
        assert_eq!(last(&["-l", "app=web", "--tail", "-1"]), None);
        let refused = |words: &[&str]| Cli::try_parse_from(["gantry", "logs"].iter().chain(words)).is_err();
        assert!(refused(&["web", "--tail=-2"]) && refused(&[]) && refused(&["web", "-l", "a=b"]));
        assert!(refused(&["web", "--since", "1s", "--since-time", "2026-01-31T12:00:00Z"]));
    }
}
