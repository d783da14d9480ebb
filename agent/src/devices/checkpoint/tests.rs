//! The checkpoint's form and its checksum.

use super::*;

fn full() -> Checkpoint {
    let options = DeviceOptions { env: vec![("GPU".to_owned(), "0".to_owned())], ..DeviceOptions::default() };
    let entry = Entry {
        pod: "pod1".to_owned(),
        container: "con1".to_owned(),
        resource: "vendor.com/gpu".to_owned(),
        devices: [(-1, vec!["dev1".to_owned(), "dev2".to_owned()]), (0, vec!["dev3".to_owned()])].into(),
        options,
    };
    let registered = [("vendor.com/gpu".to_owned(), vec!["dev1".to_owned()])].into();
    Checkpoint { entries: vec![entry], registered }
}

#[test]
fn what_is_written_is_read() {
    for checkpoint in [full(), Checkpoint::default()] {
        assert_eq!(Checkpoint::decode(&checkpoint.encode().unwrap()).unwrap(), checkpoint);
    }
}

#[test]
fn the_file_has_upstreams_names() {
    let text = String::from_utf8(full().encode().unwrap()).unwrap();
    assert!(
        text.starts_with(
            r#"{"Data":{"PodDeviceEntries":[{"PodUID":"pod1","ContainerName":"con1","ResourceName":"vendor.com/gpu","DeviceIDs":{"-1":["dev1","dev2"],"0":["dev3"]},"AllocResp":"CggKA0dQVRIBMA=="}],"RegisteredDevices":{"vendor.com/gpu":["dev1"]}},"Checksum":"#
        ),
        "{text}"
    );
}

#[test]
fn the_checksum_is_over_what_spew_prints() {
    let File { data, .. } = serde_json::from_slice(&full().encode().unwrap()).unwrap();
    assert_eq!(
        print(&data).unwrap(),
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)[{PodUID:(string)pod1 \
         ContainerName:(string)con1 ResourceName:(string)vendor.com/gpu \
         DeviceIDs:(checkpoint.DevicesPerNUMA)map[-1:[dev1 dev2] 0:[dev3]] \
         AllocResp:([]uint8)[10 8 10 3 71 80 85 18 1 48]}] \
         RegisteredDevices:(map[string][]string)map[vendor.com/gpu:[dev1]]}"
    );
    let none = Data { pod_device_entries: None, registered_devices: Some(BTreeMap::new()) };
    assert_eq!(
        print(&none).unwrap(),
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> \
         RegisteredDevices:(map[string][]string)map[]}"
    );
}

/// #118371: a checkpoint that is corrupt ends nobody.
#[test]
fn a_changed_or_broken_file_is_an_error_that_says_what_is_wrong() {
    let text = String::from_utf8(full().encode().unwrap()).unwrap();
    let changed = text.replace("dev3", "dev4");
    let error = Checkpoint::decode(changed.as_bytes()).unwrap_err();
    assert!(error.to_string().starts_with("checkpoint is corrupted: its checksum is "), "{error}");
    assert!(Checkpoint::decode(b"").is_err());
    assert!(Checkpoint::decode(b"{}").is_err());
    let error = Checkpoint::decode(text.replace("CggK", "!!!!").as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "the plugin's answer for container con1 of pod pod1 is not base64");
}

/// Its checksum is the kubelet's own.
#[test]
fn a_checkpoint_that_upstreams_kubelet_wrote_is_read() {
    let content = br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}"#;
    let checkpoint = Checkpoint::decode(content).unwrap();
    assert_eq!(checkpoint.registered["nvidia.com/gpu"], ["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]);
    assert_eq!(checkpoint.encode().unwrap(), content);
}

/// As upstream's own code writes it: devices near to none, one and two NUMA nodes, all that a plugin may answer, and nothing.
#[test]
fn a_checkpoint_with_pods_that_upstreams_code_wrote_is_read_and_written_byte_for_byte() {
    let content = br#"{"Data":{"PodDeviceEntries":[{"PodUID":"0d7a2f9e-3c1b-4d52-9a77-5b8f7a1c2e11","ContainerName":"main","ResourceName":"vendor.com/gpu","DeviceIDs":{"-1":["dev1","dev2"],"0":["dev3"],"1":["dev3"]},"AllocResp":"CggKA0dQVRIBMBIKCgIvYRICL2IYARoZCggvZGV2L2dwdRIJL2Rldi9udWxsGgJydyIRCgx2ZW5kb3IuY29tL2ESAWIqEgoQdmVuZG9yLmNvbS9ncHU9MA=="},{"PodUID":"0d7a2f9e-3c1b-4d52-9a77-5b8f7a1c2e11","ContainerName":"second","ResourceName":"vendor.com/nic","DeviceIDs":{"-1":["n"]},"AllocResp":""}],"RegisteredDevices":{"vendor.com/gpu":["dev1","dev2","dev3"],"vendor.com/nic":[]}},"Checksum":2401470124}"#;
    let checkpoint = Checkpoint::decode(content).unwrap();
    let [main, second] = checkpoint.entries.as_slice() else { panic!("{checkpoint:?}") };
    let devices = [
        (-1, vec!["dev1".to_owned(), "dev2".to_owned()]),
        (0, vec!["dev3".to_owned()]),
        (1, vec!["dev3".to_owned()]),
    ];
    assert_eq!(main.devices, devices.into());
    let text = str::to_owned;
    let options = DeviceOptions {
        env: vec![(text("GPU"), text("0"))],
        mounts: vec![(text("/a"), text("/b"), true)],
        devices: vec![(text("/dev/gpu"), text("/dev/null"), text("rw"))],
        annotations: vec![(text("vendor.com/a"), text("b"))],
        cdi: vec![text("vendor.com/gpu=0")],
    };
    assert_eq!((&main.options, &second.options), (&options, &DeviceOptions::default()));
    assert_eq!(checkpoint.encode().unwrap(), content);
}
