//! The server: made of its settings and of what it answers from, and ended. Owns that nothing is served without an
//! authenticator and an authorizer; never a socket. Called by the kubelet's assembly.

use std::sync::Arc;

use gantry_model::drain;
use kube::Client;

use super::authn::{Authentication, Authenticator};
use super::authz::{Authorizer, Mode};
use super::context::{ServerContext, Settings};
use super::deps::ServerDeps;
use super::gate::Gate;
use super::health::Check;
use super::review::Reviews;

/// Why a server cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Named as upstream names it.
    #[error("no client provided, cannot use webhook authentication")]
    NoClientForTokens,
    /// Named as upstream names it.
    #[error("no client provided, cannot use webhook authorization")]
    NoClientForAccess,
}

/// The API of one node.
#[derive(Debug, Clone)]
pub struct Server {
    pub(super) inner: Arc<ServerContext>,
}

impl Server {
    /// Ready to listen. `client` asks the API server about tokens and rights.
    ///
    /// # Errors
    /// When it is to ask and has no client.
    pub fn new(
        settings: Settings,
        mut sources: ServerDeps,
        authentication: Authentication,
        mode: Mode,
        client: Option<Client>,
    ) -> Result<Self, Error> {
        let reviews = client.map(Reviews::new);
        let authenticator =
            Authenticator::new(authentication, reviews.clone()).ok_or(Error::NoClientForTokens)?;
        let authorizer = Authorizer::new(mode, reviews).ok_or(Error::NoClientForAccess)?;
        let gate = Gate::new(sources.node_name.clone(), authenticator, authorizer);
        let own = [Check::new("ping", || Ok(())), Check::new("log", || Ok(()))];
        sources.checks.splice(0..0, own);
        sources.metrics.metrics_provider.set(["cri"], 1.0);
        sources.metrics.node_name.set([&sources.node_name], 1.0);
        sources.metrics.cgroup_version.set([], if sources.stats.machine().is_unified() { 2.0 } else { 1.0 });
        let (drain, _) = drain::token();
        Ok(Self { inner: Arc::new(ServerContext { settings, sources, gate, drain }) })
    }

    /// Samples the machine and measures volumes until [`Self::end`]: rates and volumes are empty
    /// without.
    pub async fn keep_stats(&self) {
        let (sources, drain) = (&self.inner.sources, self.inner.drain.watcher());
        sources.stats.run(sources.stats_sources(), drain).await;
    }

    /// Ends the listeners; what is being answered gets a moment.
    pub fn end(&self) {
        self.inner.drain.start();
    }
}
