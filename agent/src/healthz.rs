//! `/healthz`: what the kubelet's checks say, in upstream's words. Owns the list and the answers;
//! never what a check looks at. Served on its own port and beside the kubelet's API; asked by
//! systemd's watchdog.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Checks by name, in the order they came; "ping" is always there.
#[derive(Clone)]
pub(crate) struct Checks(Arc<Mutex<Vec<(&'static str, Check)>>>);

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.list().iter().map(|(name, _)| *name)).finish()
    }
}

impl Default for Checks {
    fn default() -> Self {
        let checks = Self(Arc::default());
        checks.add("ping", || Ok(()));
        // A log that blocks blocks us: who answers here is not blocked.
        checks.add("log", || Ok(()));
        checks
    }
}

impl Checks {
    fn list(&self) -> Vec<(&'static str, Check)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A check must answer at once.
    pub(crate) fn add(
        &self,
        name: &'static str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, Arc::new(check)));
    }

    /// The first that fails, with its reason.
    ///
    /// # Errors
    /// When one does.
    pub(crate) fn all(&self) -> Result<(), String> {
        self.list()
            .into_iter()
            .try_for_each(|(name, check)| check().map_err(|e| format!("checker {name} failed: {e}")))
    }

    /// `/healthz` and each check below it, with any method.
    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/healthz", any(root))
            .route("/healthz/", any(root))
            .route("/healthz/{name}", any(single))
            .with_state(self.clone())
    }
}

fn text(status: StatusCode, body: String) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body).into_response()
}

/// Values of one key of a query; `+` and escapes are not in any name of ours.
fn values<'a>(query: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    query.split('&').filter_map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name == key).then_some(value)
    })
}

async fn root(State(checks): State<Checks>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let excluded: BTreeSet<&str> = values(&query, "exclude").collect();
    let (mut unknown, mut lines, mut failed) = (excluded.clone(), String::new(), Vec::new());
    for (name, check) in checks.list() {
        if excluded.contains(name) {
            unknown.remove(name);
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if let Err(reason) = check() {
            lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            failed.push(format!("{name}: {reason}"));
        } else {
            lines.push_str(&format!("[+]{name} ok\n"));
        }
    }
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
        lines.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {}\n",
            names.join(", ")
        ));
    }
    if !failed.is_empty() {
        tracing::info!(failed = failed.join(", "), "healthz check failed");
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n"));
    }
    let verbose = values(&query, "verbose").next().is_some();
    text(StatusCode::OK, if verbose { format!("{lines}healthz check passed\n") } else { "ok".to_owned() })
}

async fn single(State(checks): State<Checks>, Path(name): Path<String>) -> Response {
    match checks.list().into_iter().find(|(known, _)| *known == name) {
        None => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        Some((_, check)) => match check() {
            Ok(()) => text(StatusCode::OK, "ok".to_owned()),
            Err(reason) => {
                text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {reason}\n"))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    async fn get(checks: &Checks, method: &str, path: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = checks.router().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), 4096).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn healthz_answers_in_upstreams_words() {
        let checks = Checks::default();
        checks.add("syncloop", || Ok(()));
        assert_eq!(get(&checks, "GET", "/healthz").await, (200, "ok".to_owned()));
        assert_eq!(get(&checks, "HEAD", "/healthz").await, (200, String::new()));
        assert_eq!(get(&checks, "GET", "/healthz/ping").await, (200, "ok".to_owned()));
        assert_eq!(get(&checks, "GET", "/healthz/nonsense").await.0, 404);
        assert_eq!(
            get(&checks, "GET", "/healthz?verbose&exclude=log").await.1,
            "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\nhealthz check passed\n"
        );
    }

    #[tokio::test]
    async fn a_failing_check_is_named_and_its_reason_withheld() {
        let checks = Checks::default();
        checks.add("syncloop", || Err("no sync in 5m".to_owned()));
        assert_eq!(
            get(&checks, "GET", "/healthz").await,
            (
                500,
                "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n"
                    .to_owned()
            )
        );
        let (status, text) = get(&checks, "GET", "/healthz/syncloop").await;
        assert_eq!((status, text.as_str()), (500, "internal server error: no sync in 5m\n"));
        assert_eq!(checks.all(), Err("checker syncloop failed: no sync in 5m".to_owned()));
        assert_eq!(get(&checks, "GET", "/healthz?exclude=syncloop").await.0, 200);
    }
}
