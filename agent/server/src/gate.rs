//! Who gets in: everybody is asked who they are, then whether they may, before anything is looked at.
//! Owns the order and upstream's texts of refusals; never serves. Called by [`super::serve`].

use std::net::IpAddr;

use http::{HeaderMap, Method, StatusCode};
use rustls::pki_types::CertificateDer;

use super::answer::{self, Answer};
use super::authn::{Authenticator, AuthnFailure};
use super::authz::{self, Authorizer};
use super::refusals::{Refusals, cut};
use super::review::{Access, Error};

/// The door of the read-write port.
#[derive(Debug)]
pub(super) struct Gate {
    node: String,
    authenticator: Authenticator,
    authorizer: Authorizer,
    refusals: Refusals,
}

impl Gate {
    pub(super) fn new(node: String, authenticator: Authenticator, authorizer: Authorizer) -> Self {
        Self { node, authenticator, authorizer, refusals: Refusals::default() }
    }

    /// How many more tokens may be asked about.
    #[cfg(test)]
    pub(super) fn free(&self) -> Option<usize> {
        self.authenticator.free()
    }

    /// Nothing, or the refusal.
    pub(super) async fn check(
        &self,
        method: &Method,
        path: &str,
        chain: &[CertificateDer<'_>],
        headers: &mut HeaderMap,
        peer: Option<IpAddr>,
    ) -> Result<(), Answer> {
        let user = match self.authenticator.who(chain, headers).await {
            Ok(user) => user,
            Err(AuthnFailure::Crowded) => return Err(too_many_requests()),
            Err(AuthnFailure::Unauthorized(why)) => {
                if !why.is_empty()
                    && let Some(unsaid) = self.refusals.tell(peer)
                {
                    let (path, why) = (cut(path), cut(&why));
                    tracing::warn!(?peer, path, why, unsaid, "unable to authenticate a request");
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
                Err(Error::Crowded) => return Err(too_many_requests()),
                Err(error) => {
                    if let Some(unsaid) = self.refusals.tell(peer) {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        let (user, path) = (cut(&user.name), cut(path));
                        tracing::warn!(?peer, user, path, %error, cause, unsaid, "authorization error");
                    }
                    let text = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    );
                    return Err(answer::text(StatusCode::INTERNAL_SERVER_ERROR, text));
                }
            }
        }
        tracing::debug!(user = cut(&user.name), path = cut(path), "forbidden");
        let text = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(answer::text(StatusCode::FORBIDDEN, text))
    }
}

fn too_many_requests() -> Answer {
    answer::text(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.")
}
