//! A manager whose plugin has given a device: for tests of who makes containers with devices, and of who tells of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use gantry_model::clock::SystemClock;
use gantry_model::pod::PodUid;

use super::state::{Device, PluginOptions, Request, State};
use super::{DeviceManager, DeviceOptions, FOLDER};

/// The first plugin's.
const GENERATION: u64 = 1;

fn list(healthy: bool) -> BTreeMap<String, Device> {
    [("a".to_owned(), Device { healthy, numa: Vec::new() })].into()
}

/// The only device of the resource, `a`, is the container's.
fn given(pod: &PodUid, container: &str, resource: &str, options: DeviceOptions) -> State {
    let mut state = State::default();
    assert_eq!(state.connect(resource, PluginOptions::default()), GENERATION);
    state.list(resource, GENERATION, list(true));
    let request = Request { pod, container, resource, count: 1, reusable: &BTreeSet::new(), nodes: None };
    let devices = ["a".to_owned()].into();
    state.reserve(request, &devices);
    assert!(state.allocate(request, &devices, options));
    state.release(resource, &devices);
    state
}

impl DeviceManager {
    /// The pod's container has the only device of the resource, `a`.
    pub(crate) fn of_test(pod: &PodUid, container: &str, resource: &str, options: DeviceOptions) -> Self {
        let state = given(pod, container, resource, options);
        Self::with(None, state, Arc::new(SystemClock::new()), Arc::default())
    }

    /// The same, written down below `root` for a kubelet that follows.
    pub(crate) async fn noted_below(root: &Path, pod: &PodUid, container: &str, resource: &str) -> Self {
        let folder = root.join(FOLDER);
        std::fs::create_dir_all(&folder).unwrap();
        let state = given(pod, container, resource, DeviceOptions::default());
        let manager = Self::with(Some(folder), state, Arc::new(SystemClock::new()), Arc::default());
        manager.save().await.unwrap();
        manager
    }

    /// A plugin registers, and has that device.
    pub(crate) async fn register_test(&self, resource: &str) {
        let generation = self.0.lock().state.connect(resource, PluginOptions::default());
        assert!(self.list(resource, generation, list(true)).await);
    }

    /// The plugin says so of its device.
    pub(crate) async fn tell(&self, resource: &str, healthy: bool) {
        assert!(self.list(resource, GENERATION, list(healthy)).await);
    }
}
