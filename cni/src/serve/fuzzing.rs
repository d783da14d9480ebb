//! What must hold for any configuration on a plugin's standard input. Called by `crate::fuzzing`.

use serde_json::Value;

use super::{CniCall, version_of};
use crate::chain::VERSIONS;
use crate::exec::Verb;
use crate::request::is_identifier;

/// Reads a call of each operation, runs none.
pub(crate) fn check_call(conf: &Value) {
    let input = conf.to_string();
    let variable = |name: &str| match name {
        "CNI_CONTAINERID" => "c1".to_owned(),
        "CNI_IFNAME" => "eth0".to_owned(),
        "CNI_NETNS" => "/run/netns/x".to_owned(),
        "CNI_PATH" => "/opt/cni/bin::/x".to_owned(),
        // Text of the caller's.
        "CNI_ARGS" => conf.get("args").map(Value::to_string).unwrap_or_default(),
        _ => String::new(),
    };
    assert!(VERSIONS.contains(&version_of(input.as_bytes()).as_str()));
    for verb in [Verb::Add, Verb::Del, Verb::Check, Verb::Status, Verb::Gc] {
        match CniCall::read(verb, &variable, input.as_bytes()) {
            Ok(call) => {
                assert!(is_identifier(&call.name) && VERSIONS.contains(&call.cni_version));
                assert!(call.bin_dirs.iter().all(|dir| !dir.as_os_str().is_empty()));
                let given = conf.get("prevResult").is_some_and(|found| !found.is_null());
                assert!(!matches!(call.previous(), Ok(found) if found.is_some() != given));
                // Without a list everything would be thrown away.
                let listed = conf.get("cni.dev/valid-attachments").or(conf.get("cni.dev/attachments"));
                assert!(listed.is_some() || call.valid_attachments().is_err());
            }
            Err(refusal) => assert!(!refusal.msg.is_empty()),
        }
    }
}
