//! What somebody may do here. Owns the mapping of a path to subresources of the node and the answers
//! of the API server, kept as long as upstream keeps them; never authenticates. Called by
//! [`super::gate`].

use std::time::Duration;

use super::cache::Cache;
use super::review::{Access, Error, Reviews};
use super::user::User;

/// Keys longer than this are asked about each time.
const LONGEST: usize = 10_000;

/// How is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everybody may do everything.
    AlwaysAllow,
    /// The API server is asked.
    Webhook {
        /// cacheAuthorizedTTL.
        allowed_for: Duration,
        /// cacheUnauthorizedTTL.
        denied_for: Duration,
    },
}

/// Decides.
#[derive(Debug)]
pub(super) enum Authorizer {
    AlwaysAllow,
    Webhook {
        reviews: Reviews,
        kept: Box<Cache<(User, Access), bool>>,
        allowed_for: Duration,
        denied_for: Duration,
    },
}

impl Authorizer {
    pub(super) fn new(mode: Mode, reviews: Option<Reviews>) -> Option<Self> {
        match (mode, reviews) {
            (Mode::AlwaysAllow, _) => Some(Self::AlwaysAllow),
            (Mode::Webhook { allowed_for, denied_for }, Some(reviews)) => {
                Some(Self::Webhook { reviews, kept: Box::default(), allowed_for, denied_for })
            }
            (Mode::Webhook { .. }, None) => None,
        }
    }

    pub(super) async fn may(&self, user: &User, access: &Access) -> Result<bool, Error> {
        match self {
            Self::AlwaysAllow => Ok(true),
            Self::Webhook { reviews, kept, allowed_for, denied_for } => {
                let ask = reviews.access(user, access);
                if size(user) > LONGEST {
                    return kept.ask(ask).await;
                }
                let keep = |allowed: &bool| if *allowed { *allowed_for } else { *denied_for };
                kept.get((user.clone(), access.clone()), keep, ask).await
            }
        }
    }
}

fn size(user: &User) -> usize {
    let extra =
        user.extra.iter().map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>());
    user.name.len()
        + user.uid.len()
        + user.groups.iter().map(String::len).sum::<usize>()
        + extra.sum::<usize>()
}

/// The verb of a review; empty for methods that no role can name.
pub(super) fn verb(method: &http::Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// What of the node a path is about: the first that is allowed is enough.
pub(super) fn subresources(path: &str) -> Vec<&'static str> {
    let below =
        |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let fine = match () {
        () if below("/pods") || below("/runningpods") => Some("pods"),
        () if below("/healthz") => Some("healthz"),
        () if below("/configz") => Some("configz"),
        () => None,
    };
    let last = match () {
        () if below("/stats") => "stats",
        () if below("/metrics") => "metrics",
        () if below("/logs") => "log",
        () if below("/checkpoint") => "checkpoint",
        () if below("/statusz") => "statusz",
        () if below("/flagz") => "configz",
        () => "proxy",
    };
    fine.into_iter().chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_is_about() {
        for (path, expected) in [
            ("/pods", &["pods", "proxy"][..]),
            ("/pods/", &["pods", "proxy"]),
            ("/podsx", &["proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz/ping", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/stats/summary", &["stats"]),
            ("/metrics", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/metricsx", &["proxy"]),
            ("/logs/", &["log"]),
            ("/checkpoint/a/b/c", &["checkpoint"]),
            ("/statusz", &["statusz"]),
            ("/flagz", &["configz"]),
            ("/exec/a/b/c", &["proxy"]),
            ("/containerLogs/a/b/c", &["proxy"]),
            ("/debug/pprof/", &["proxy"]),
            ("/", &["proxy"]),
        ] {
            assert_eq!(subresources(path), expected, "{path}");
        }
    }
}
