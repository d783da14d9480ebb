//! CSI drivers among the plugins of the folder. Owns the join of registry and list of drivers, and nothing else. Called by
//! [`super`].

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::{Handler, Plugin};
use crate::csi::drivers::Drivers;
use crate::csi::node_info::NodeInfo;

/// The type that they tell.
pub(crate) const TYPE: &str = "CSIPlugin";

/// Hands them to the list; a plugin's name is its driver's.
#[derive(Debug)]
pub(crate) struct CsiPlugins {
    pub(crate) drivers: Drivers,
    pub(crate) cluster: NodeInfo,
}

impl Handler for CsiPlugins {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        self.drivers.validate(&plugin.name, &plugin.endpoint, &plugin.versions)
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        self.drivers.register(&plugin.name, &plugin.endpoint, &plugin.versions, &self.cluster).boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        self.drivers.deregister(&plugin.name, &plugin.endpoint, &self.cluster).boxed()
    }
}
