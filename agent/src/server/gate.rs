//! Who gets in: everybody is asked who they are, then whether they may, before anything is looked at.
//! Owns the order and upstream's texts of refusals; never serves. Called by [`super::serve`].

use http::{HeaderMap, Method, StatusCode};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;

use super::answer::{self, Answer};
use super::authn::{Authenticator, Unauthorized};
use super::authz::{self, Authorizer};
use super::review::Access;

/// Requests that wait at the door at once: for an API server that does not answer, many come and
/// none goes. Those who are known to it already do not wait.
const WAITING: usize = 256;

/// The door of the read-write port.
#[derive(Debug)]
pub(super) struct Gate {
    room: Semaphore,
    node: String,
    authenticator: Authenticator,
    authorizer: Authorizer,
}

impl Gate {
    pub(super) fn new(node: String, authenticator: Authenticator, authorizer: Authorizer) -> Self {
        Self { room: Semaphore::new(WAITING), node, authenticator, authorizer }
    }

    /// How many more may wait.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.room.available_permits()
    }

    /// Nothing, or the refusal.
    pub(super) async fn check(
        &self,
        method: &Method,
        path: &str,
        chain: &[CertificateDer<'_>],
        headers: &mut HeaderMap,
    ) -> Result<(), Answer> {
        let Ok(_waiting) = self.room.try_acquire() else {
            let text = "Too many requests, please try again later.";
            return Err(answer::text(StatusCode::TOO_MANY_REQUESTS, text));
        };
        let user = match self.authenticator.who(chain, headers).await {
            Ok(user) => user,
            Err(Unauthorized(why)) => {
                if !why.is_empty() {
                    tracing::warn!(path, why, "unable to authenticate a request");
                }
                return Err(answer::text(StatusCode::UNAUTHORIZED, "Unauthorized"));
            }
        };
        let subresources = authz::subresources(path);
        let verb = authz::verb(method);
        for subresource in &subresources {
            let access = Access { node: self.node.clone(), verb, subresource };
            match self.authorizer.may(&user, &access).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::warn!(user = user.name, path, %error, cause, "authorization error");
                    let text = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    );
                    return Err(answer::text(StatusCode::INTERNAL_SERVER_ERROR, text));
                }
            }
        }
        tracing::debug!(user = user.name, path, "forbidden");
        let text = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(answer::text(StatusCode::FORBIDDEN, text))
    }
}
