//! The flags of wait. Owns the form of what is waited for, kubectl's; never waits. Parsed by [`crate::main`].

use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::duration::duration;
use super::{AgentFlags, PodName, Selector};
use crate::jsonpath::JsonPath;

/// What kubectl takes for "as long as it may be".
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The pods: NAME, pod/NAME or NAMESPACE/NAME.
    #[arg(required_unless_present_any = ["selector", "all"], value_name = "POD")]
    pub(crate) pods: Vec<PodName>,
    /// What to wait for: condition=NAME[=VALUE], delete, create, or jsonpath='{PATH}'[=VALUE].
    #[arg(long = "for", value_name = "GOAL")]
    pub(crate) goal: Goal,
    /// How long to wait, as in 30s; 0 looks once, and a negative time is a week.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout, allow_hyphen_values = true)]
    pub(crate) timeout: Duration,
    /// The pods with these labels, as in app=web,tier!=db.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "pods")]
    pub(crate) selector: Option<Selector>,
    /// Every pod of the namespace.
    #[arg(long, conflicts_with_all = ["pods", "selector"])]
    pub(crate) all: bool,
    /// The pods' namespace; `default` when nothing says so.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// With --selector or --all: in every namespace.
    #[arg(short = 'A', long, conflicts_with_all = ["pods", "namespace"])]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) agent: AgentFlags,
}

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The pod is gone.
    Delete,
    /// It is there.
    Create,
    /// A condition has this status; both whatever their case.
    Condition(String, String),
    /// What the path leads to is this, or is there at all.
    Path(JsonPath, Option<String>),
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_lowercase().as_str() {
            "delete" => return Ok(Self::Delete),
            "create" => return Ok(Self::Create),
            _ => {}
        }
        if let Some(condition) = text.strip_prefix("condition=").filter(|name| !name.is_empty()) {
            let (name, value) = condition.split_once('=').unwrap_or((condition, "true"));
            return Ok(Self::Condition(name.to_owned(), value.to_owned()));
        }
        let Some(path) = text.strip_prefix("jsonpath=") else {
            return Err(format!("unrecognized condition: {text:?}"));
        };
        // A `=` within braces is the path's.
        let end = path.rfind('}').map_or(0, |at| at + 1);
        let (path, value) = match path.get(end..).and_then(|rest| rest.find('=')) {
            Some(at) => {
                let (path, value) = path.split_at(end + at);
                let value = value.trim_start_matches('=').trim_matches(['"', '\'']);
                if value.is_empty() {
                    return Err("jsonpath wait has to have a value after `=`".to_owned());
                }
                (path, Some(value.to_owned()))
            }
            None => (path, None),
        };
        Ok(Self::Path(path.trim_matches('\'').parse()?, value))
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        text => match text.strip_prefix('-') {
            Some(text) => duration(text).map(|_| WEEK),
            None => duration(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_as_kubectl_has_them() {
        let goal = |text: &str| text.parse::<Goal>();
        let condition = |name: &str, value: &str| Goal::Condition(name.to_owned(), value.to_owned());
        let path =
            |path: &str, value: Option<&str>| Goal::Path(path.parse().unwrap(), value.map(str::to_owned));
        for (text, want) in [
            ("delete", Goal::Delete),
            ("create", Goal::Create),
            ("condition=Ready", condition("Ready", "true")),
            ("condition=Ready=false", condition("Ready", "false")),
            ("jsonpath={.status.phase}=Running", path("{.status.phase}", Some("Running"))),
            ("jsonpath='{.status.podIP}'", path("{.status.podIP}", None)),
            (
                "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=True",
                path("{.status.conditions[?(@.type==\"Ready\")].status}", Some("True")),
            ),
        ] {
            assert_eq!(goal(text), Ok(want), "{text}");
        }
        for bad in ["", "ready", "condition=", "jsonpath={.a}=", "jsonpath={.a"] {
            assert!(goal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_time_is_one_look_and_less_is_a_week() {
        assert_eq!(timeout("0"), Ok(Duration::ZERO));
        assert_eq!(timeout("-1s"), Ok(WEEK));
        assert_eq!(timeout("1m30s"), Ok(Duration::from_secs(90)));
        assert!(timeout("x").is_err() && timeout("-").is_err());
    }
}
