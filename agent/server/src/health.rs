//! `/healthz` and its parts, and `/metrics/slis`, which counts their results. Owns the form; never
//! what a check looks at. Called by [`super::serve`].

use std::fmt;
use std::sync::Arc;

use gantry_metrics::Metrics;
use http::StatusCode;

use super::answer::{self, Answer};

/// What a check looks at.
pub type Look = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// One check.
#[derive(Clone)]
pub struct Check {
    /// As in its path.
    pub name: String,
    /// Why not, if not.
    pub look: Look,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Check {
    /// Of that name.
    #[must_use]
    pub fn new(name: &str, look: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { name: name.to_owned(), look: Arc::new(look) }
    }
}

/// One check, or all of them. Details of a failure are for the log: anybody may be asking.
pub(super) fn healthz(checks: &[Check], which: Option<&str>, query: &str, metrics: &Metrics) -> Answer {
    if let Some(name) = which.filter(|name| !name.is_empty()) {
        return match checks.iter().find(|check| check.name == name).map(|check| (check.look)()) {
            Some(Ok(())) => answer::text(StatusCode::OK, "ok"),
            Some(Err(why)) => {
                answer::error(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n"))
            }
            None => answer::not_found(),
        };
    }
    let parameters = super::query::pairs(query);
    let excluded = |name: &str| parameters.iter().any(|(key, value)| key == "exclude" && value == name);
    let (mut lines, mut healthy) = (String::new(), true);
    for check in checks {
        let name = check.name.as_str();
        if excluded(name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let result = (check.look)();
        metrics.healthcheck.set([name, "healthz"], f64::from(u8::from(result.is_ok())));
        let status = if result.is_ok() { "success" } else { "error" };
        metrics.healthchecks.inc([name, "healthz", status]);
        match result {
            Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
            Err(why) => {
                tracing::warn!(check = name, why, "healthz check failed");
                healthy = false;
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            }
        }
    }
    if !healthy {
        return answer::error(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n"));
    }
    let verbose = parameters.iter().any(|(key, _)| key == "verbose");
    answer::error(
        StatusCode::OK,
        if verbose { format!("{lines}healthz check passed\n") } else { "ok".to_owned() },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said(answer: Answer) -> (u16, String) {
        let status = answer.status().as_u16();
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn checks_one_by_one_and_together() {
        let metrics = Metrics::default();
        let good = vec![Check::new("ping", || Ok(()))];
        let bad = vec![Check::new("ping", || Ok(())), Check::new("syncloop", || Err("too long".to_owned()))];
        let ask = |checks: &[Check], which, query| said(healthz(checks, which, query, &metrics));
        assert_eq!(ask(&good, None, "").await, (200, "ok".into()));
        assert_eq!(ask(&good, None, "verbose").await, (200, "[+]ping ok\nhealthz check passed\n".into()));
        let all = "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
        assert_eq!(ask(&bad, None, "").await, (500, all.into()));
        assert_eq!(ask(&bad, None, "exclude=syncloop").await, (200, "ok".into()));
        assert_eq!(ask(&bad, Some("syncloop"), "").await, (500, "internal server error: too long\n".into()));
        assert_eq!(ask(&bad, Some("ping"), "").await, (200, "ok".into()));
        assert_eq!(ask(&bad, Some("other"), "").await.0, 404);
        assert_eq!(metrics.healthchecks.get(["syncloop", "healthz", "error"]), Some(1.0));
    }
}
