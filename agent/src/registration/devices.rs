//! Extended resources that a device manager offered before: nobody here serves devices, so what an
//! earlier kubelet's plugins had is offered no more. Owns the earlier kubelet's checkpoint as far as
//! it names resources, and upstream's rule; never writes it. Called by [`super::machine`] and
//! [`super::compose`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use k8s_openapi::api::core::v1::NodeStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

use crate::admission::is_extended;

/// Whose resources they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Devices {
    /// No device manager has left a checkpoint: as upstream, every extended resource begins at 0.
    #[default]
    Unknown,
    /// Those of an earlier kubelet's plugins; others were told by somebody else.
    Of(BTreeSet<String>),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// The devices of each resource; null without any.
    registered_devices: Option<BTreeMap<String, serde_json::Value>>,
}

/// By `ROOT/device-plugins/kubelet_internal_checkpoint`. One that cannot be read names nobody who
/// could be trusted to be there.
pub(super) fn read(root_dir: &Path) -> Devices {
    let path = root_dir.join("device-plugins/kubelet_internal_checkpoint");
    let problem = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Devices::Unknown,
        Err(error) => error.to_string(),
        Ok(bytes) => match serde_json::from_slice::<Checkpoint>(&bytes) {
            Ok(found) => {
                return Devices::Of(found.data.registered_devices.unwrap_or_default().into_keys().collect());
            }
            Err(error) => error.to_string(),
        },
    };
    tracing::warn!(path = %path.display(), problem, "every extended resource is set to 0");
    Devices::Unknown
}

/// What no plugin serves is neither there nor free.
pub(super) fn reset(status: &mut NodeStatus, devices: &Devices) {
    let gone = |name: &String| match devices {
        Devices::Unknown => is_extended(name),
        Devices::Of(names) => names.contains(name),
    };
    let capacity = status.capacity.get_or_insert_default();
    let names: Vec<String> = capacity.keys().filter(|name| gone(name)).cloned().collect();
    let allocatable = status.allocatable.get_or_insert_default();
    for name in names {
        tracing::info!(resource = name, "no device plugin serves it: its capacity is set to 0");
        capacity.insert(name.clone(), Quantity("0".to_owned()));
        allocatable.insert(name, Quantity("0".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(devices: &Devices) -> serde_json::Value {
        let amounts = serde_json::json!({ "cpu": "2", "example.com/gpu": "4", "example.com/dongle": "1",
            "kubernetes.io/x": "3", "hugepages-2Mi": "0" });
        let status = serde_json::json!({ "capacity": amounts, "allocatable": amounts });
        let mut status: NodeStatus = serde_json::from_value(status).unwrap();
        reset(&mut status, devices);
        assert_eq!(status.capacity, status.allocatable);
        serde_json::to_value(status.capacity).unwrap()
    }

    #[test]
    fn resources_that_no_plugin_serves_are_set_to_nothing() {
        let all = after(&Devices::Unknown);
        assert_eq!((&all["example.com/gpu"], &all["example.com/dongle"]), (&"0".into(), &"0".into()));
        assert_eq!((&all["cpu"], &all["kubernetes.io/x"]), (&"2".into(), &"3".into()));
        let some = after(&Devices::Of(["example.com/gpu".to_owned()].into()));
        assert_eq!((&some["example.com/gpu"], &some["example.com/dongle"]), (&"0".into(), &"1".into()));
    }

    #[test]
    fn an_earlier_kubelets_checkpoint_names_its_plugins_resources() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(root.path()), Devices::Unknown);
        let folder = root.path().join("device-plugins");
        fs::create_dir(&folder).unwrap();
        let write = |text: &str| fs::write(folder.join("kubelet_internal_checkpoint"), text).unwrap();
        write(
            r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-1"]}},"Checksum":1}"#,
        );
        assert_eq!(read(root.path()), Devices::Of(["nvidia.com/gpu".to_owned()].into()));
        write(r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":1}"#);
        assert_eq!(read(root.path()), Devices::Of(BTreeSet::new()));
        write("{");
        assert_eq!(read(root.path()), Devices::Unknown);
    }
}
