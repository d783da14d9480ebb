//! Files of upstream's kubelet (checkpointer_test.go of 1.36.3) and ours.

use super::*;

/// Checksums that upstream's test has for these.
const ONE: (&str, u32) = (
    r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"067798be-454e-4be4-9047-1aa06aea63f7","ClaimName":"example","Namespace":"default","PodUIDs":{"139cdb46-f989-4f17-9561-ca10cfb509a6":{}},"DriverState":{"test-driver.cdi.k8s.io":{"Devices":[{"PoolName":"worker-1","DeviceName":"dev-1","ShareID":null,"RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]}]}}}]}"#,
    2_570_581_864,
);
const SHARED: (&str, u32) = (
    r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"067798be-454e-4be4-9047-1aa06aea63f7","ClaimName":"example","Namespace":"default","PodUIDs":{"139cdb46-f989-4f17-9561-ca10cfb509a6":{}},"DriverState":{"test-driver.cdi.k8s.io":{"Devices":[{"PoolName":"worker-1","DeviceName":"dev-1","ShareID":"aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa","RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]}]}}}]}"#,
    736_302_156,
);
const TWO: (&str, u32) = (
    r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"067798be-454e-4be4-9047-1aa06aea63f7","ClaimName":"example-1","Namespace":"default","PodUIDs":{"139cdb46-f989-4f17-9561-ca10cfb509a6":{}},"DriverState":{"test-driver.cdi.k8s.io":{"Devices":[{"PoolName":"worker-1","DeviceName":"dev-1","ShareID":null,"RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]}]}}},{"ClaimUID":"4cf8db2d-06c0-7d70-1a51-e59b25b2c16c","ClaimName":"example-2","Namespace":"default","PodUIDs":{"139cdb46-f989-4f17-9561-ca10cfb509a6":{}},"DriverState":{"test-driver.cdi.k8s.io":{"Devices":[{"PoolName":"worker-1","DeviceName":"dev-2","ShareID":null,"RequestNames":null,"CDIDeviceIDs":null}]}}}]}"#,
    2_820_117_767,
);
/// Of the issue #131513: what a kubelet has that has forgotten all its claims.
const EMPTY: (&str, u32) = (
    r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[]}"#,
    2_361_995_144,
);

fn file((data, checksum): (&str, u32)) -> String {
    format!("{{\"Data\":{},\"Checksum\":{checksum}}}", serde_json::to_string(data).unwrap())
}

#[test]
fn files_are_read_and_written_as_upstreams_to_the_byte() {
    for known in [ONE, SHARED, TWO, EMPTY] {
        let text = file(known);
        let read = decode(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(encode(Some(read)).unwrap()).unwrap(), text);
    }
    let first = String::from_utf8(encode(None).unwrap()).unwrap();
    assert!(first.contains(r#"\"ClaimInfoStateList\":null}"#), "{first}");
    assert_eq!(decode(first.as_bytes()).unwrap(), []);
}

#[test]
fn what_was_changed_or_is_none_is_no_checkpoint() {
    let (data, _) = ONE;
    assert!(matches!(decode(file((data, 1)).as_bytes()), Err(CheckpointError::Checksum)));
    assert!(matches!(decode(b"{"), Err(CheckpointError::Json(_))));
    // A version before share IDs.
    let old = data.replace("\"ShareID\":null,\"RequestNames\":[\"test request\"],", "");
    let read = decode(file((&old, crc32(old.as_bytes()))).as_bytes()).unwrap();
    assert_eq!(
        read[0].drivers.as_ref().unwrap()["test-driver.cdi.k8s.io"].devices.as_ref().unwrap()[0].pool,
        "worker-1"
    );
}
