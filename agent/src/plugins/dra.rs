//! DRA drivers among the plugins of the folder. Owns the join of registry and manager, and nothing else. Called by [`super`].

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::{Handler, Plugin};
use crate::dra::DraManager;

/// The type that they tell.
pub(crate) const TYPE: &str = "DRAPlugin";

/// Hands them to the manager; a plugin's name is its driver's.
#[derive(Debug)]
pub(crate) struct DraPlugins(pub(crate) DraManager);

impl Handler for DraPlugins {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        self.0.validate(&plugin.name, &plugin.endpoint, &plugin.versions)
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        self.0.register(&plugin.name, &plugin.endpoint, &plugin.versions).boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        async move { self.0.deregister(&plugin.name, &plugin.endpoint) }.boxed()
    }
}
