//! A manager whose plugin has given a device: for tests of who makes containers with devices, and of who tells of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_model::clock::SystemClock;
use gantry_model::pod::PodUid;

use super::state::{Device, PluginOptions, Request, State};
use super::{DeviceManager, DeviceOptions};

/// The first plugin's.
const GENERATION: u64 = 1;

fn list(healthy: bool) -> BTreeMap<String, Device> {
    [("a".to_owned(), Device { healthy, numa: Vec::new() })].into()
}

impl DeviceManager {
    /// The pod's container has the only device of the resource, `a`.
    pub(crate) fn of_test(pod: &PodUid, container: &str, resource: &str, options: DeviceOptions) -> Self {
        let mut state = State::default();
        assert_eq!(state.connect(resource, PluginOptions::default()), GENERATION);
        state.list(resource, GENERATION, list(true));
        let request = Request { pod, container, resource, count: 1, reusable: &BTreeSet::new() };
        let devices = ["a".to_owned()].into();
        state.reserve(request, &devices);
        assert!(state.allocate(request, &devices, options));
        state.release(resource, &devices);
        Self::with(None, state, Arc::new(SystemClock::new()), Arc::default())
    }

    /// The plugin says so of its device.
    pub(crate) async fn tell(&self, resource: &str, healthy: bool) {
        assert!(self.list(resource, GENERATION, list(healthy)).await);
    }
}
