//! What the API server is asked about a request: whose token is this, may this user do that. Owns
//! the two calls, how often each is tried again and how many of each run at once; never keeps an answer.
//! Called by [`super::authn`] and [`super::authz`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::Client;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::cache::Crowded;
use super::user::User;

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Tries in all, each a little later: 0.5 s, then half as long again each time.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// One try; a caller of ours waits no longer than all of them.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Somebody with many made-up tokens shall not keep the API server busy.
const AT_ONCE: usize = 32;

/// What failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("form the review")]
    Form(#[source] serde_json::Error),
    #[error("address the review")]
    Address(#[source] http::Error),
    #[error("ask the API server")]
    Ask(#[source] Box<kube::Error>),
    #[error("the API server did not answer within {} s", TIMEOUT.as_secs())]
    TimedOut,
    #[error("{0}")]
    Refused(String),
    #[error("too many requests wait for the API server")]
    Crowded,
}

impl From<Crowded> for Error {
    fn from(_: Crowded) -> Self {
        Self::Crowded
    }
}

/// Asks the API server.
#[derive(Clone)]
pub(super) struct Reviews {
    client: Client,
    tokens: Arc<Semaphore>,
    /// Another one: who shows a certificate shall not wait behind made-up tokens.
    access: Arc<Semaphore>,
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviews").finish_non_exhaustive()
    }
}

/// What somebody wants of this node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Access {
    pub(super) node: String,
    pub(super) verb: &'static str,
    pub(super) subresource: &'static str,
}

impl Reviews {
    pub(super) fn new(client: Client) -> Self {
        let room = || Arc::new(Semaphore::new(AT_ONCE));
        Self { client, tokens: room(), access: room() }
    }

    /// Whose token it is; `None` when it is nobody's.
    pub(super) async fn token(&self, token: &str) -> Result<Option<User>, Error> {
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let status = self.post(TOKENS, &self.tokens, &review).await?.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            let error = status.error.filter(|error| !error.is_empty());
            return error.map_or(Ok(None), |error| Err(Error::Refused(error)));
        }
        let user = status.user.unwrap_or_default();
        Ok(Some(User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    /// Whether the user may.
    pub(super) async fn access(&self, user: &User, access: &Access) -> Result<bool, Error> {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let extra: BTreeMap<_, _> = user.extra.clone();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: some(&user.name),
                uid: some(&user.uid),
                groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
                extra: (!extra.is_empty()).then_some(extra),
                resource_attributes: Some(ResourceAttributes {
                    verb: some(access.verb),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(access.subresource.to_owned()),
                    name: Some(access.node.clone()),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let status: Option<SubjectAccessReviewStatus> =
            self.post(ACCESS, &self.access, &review).await?.status;
        Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }

    async fn post<T: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        room: &Semaphore,
        review: &T,
    ) -> Result<T, Error> {
        // Never closed.
        let _room = room.acquire().await;
        let body = serde_json::to_vec(review).map_err(Error::Form)?;
        let mut wait = FIRST_WAIT;
        for tried in 1.. {
            let request = http::Request::post(path)
                .header("content-type", "application/json")
                .body(body.clone())
                .map_err(Error::Address)?;
            let error = match tokio::time::timeout(TIMEOUT, self.client.request::<T>(request)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if !may_pass(&error) => return Err(Error::Ask(Box::new(error))),
                Ok(Err(error)) => Error::Ask(Box::new(error)),
                Err(_) => Error::TimedOut,
            };
            if tried == TRIES {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
            wait = wait.mul_f64(1.5);
        }
        Err(Error::TimedOut)
    }
}

/// Whether it may go better the next time.
fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 503 | 504),
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}
