//! Device plugins that make themselves known as all plugins do, beside the registration of their own
//! (`device-plugins/kubelet.sock`). Called by [`super::Registry`].

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::{Handler, Plugin};
use crate::devices::DeviceManager;

/// The type that they tell.
pub(crate) const TYPE: &str = "DevicePlugin";

/// Hands them to the manager; a plugin's name is its resource's.
#[derive(Debug)]
pub(crate) struct DevicePlugins(pub(crate) DeviceManager);

impl Handler for DevicePlugins {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        DeviceManager::validate(&plugin.name, &plugin.versions)
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        self.0.connect(&plugin.name, &plugin.endpoint).boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        self.0.disconnect(&plugin.name, &plugin.endpoint).boxed()
    }
}
