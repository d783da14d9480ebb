//! The checkpoint of the CPU manager, in upstream's form: `ROOT/cpu_manager_state`. Pure: owns its form and its checksum,
//! so that one kubelet can follow another; never reads or writes a file. Called by [`super::CpuManager`].
//!
//! `{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"POD":{"CONTAINER":"1-2"}},"checksum":NUMBER}`
//!
//! That is the second version, which upstream writes while `PodLevelResourceManagers` is off. Upstream reads the first one,
//! too, whose entries were by container ID; it is from before 1.18, and no kubelet that can be replaced by this one wrote it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Assignments, CpuState};
use crate::cpuset::CpuSet;
use crate::go_dump::{fnv32a, print_map};

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateFile {
    #[serde(default)]
    policy_name: String,
    #[serde(default)]
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    checksum: u64,
}

impl StateFile {
    fn sum(&self) -> u64 {
        let Self { policy_name, default_cpu_set, entries, .. } = self;
        let mut text = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){policy_name} DefaultCPUSet:(string){default_cpu_set} \
             Entries:(map[string]map[string]string)"
        );
        print_map(&mut text, Some(entries), |text, containers| {
            print_map(text, Some(containers), |text, cpus| text.push_str(cpus));
        });
        text.push_str(" Checksum:(checksum.Checksum)0}");
        u64::from(fnv32a(&text))
    }
}

/// The file's content.
///
/// # Errors
/// When it cannot be written as JSON.
pub(super) fn encode(policy: &str, state: &CpuState) -> Result<Vec<u8>, serde_json::Error> {
    let texts = |containers: &BTreeMap<String, CpuSet>| {
        containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
    };
    let mut file = StateFile {
        policy_name: policy.to_owned(),
        default_cpu_set: state.default.to_string(),
        entries: state.assigned.iter().map(|(pod, containers)| (pod.clone(), texts(containers))).collect(),
        checksum: 0,
    };
    file.checksum = file.sum();
    serde_json::to_vec(&file)
}

/// What such a file says.
///
/// # Errors
/// In upstream's words: when it is none, is damaged, or another policy's.
pub(super) fn decode(content: &[u8], policy: &str) -> Result<CpuState, String> {
    let file: StateFile = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    // Without a sum it is from before there were sums.
    if file.checksum != 0 && file.checksum != file.sum() {
        return Err("checkpoint is corrupted".to_owned());
    }
    if file.policy_name != policy {
        let found = &file.policy_name;
        return Err(format!("configured policy {policy:?} differs from state checkpoint policy {found:?}"));
    }
    let default = &file.default_cpu_set;
    let default =
        default.parse().map_err(|error| format!("could not parse default cpu set {default:?}: {error}"))?;
    let mut assigned = Assignments::new();
    for (pod, containers) in file.entries {
        for (container, text) in containers {
            let cpus = text.parse().map_err(|error| {
                format!("could not parse cpuset {text:?} for container {container:?} in pod {pod:?}: {error}")
            })?;
            assigned.entry(pod.clone()).or_default().insert(container, cpus);
        }
    }
    Ok(CpuState { default, assigned })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of upstream's kubelet with the policy none, and of its own package.
    const OF_NONE: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    const OF_STATIC: &str = r#"{"policyName":"static","defaultCpuSet":"0,3-5","entries":{"a":{"c":"6-7"},"b":{"x":"2","y":"1"}},"checksum":1517878885}"#;

    #[test]
    fn files_are_upstreams() {
        for (policy, text) in [("none", OF_NONE), ("static", OF_STATIC)] {
            let state = decode(text.as_bytes(), policy).unwrap();
            assert_eq!(String::from_utf8(encode(policy, &state).unwrap()).unwrap(), text);
        }
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        let why = |text: &str| decode(text.as_bytes(), "static").unwrap_err();
        // #110478, #84333: what another policy gave is nobody's to guess.
        assert_eq!(
            why(OF_NONE),
            "configured policy \"static\" differs from state checkpoint policy \"none\""
        );
        assert_eq!(why(&OF_STATIC.replace("6-7", "6-8")), "checkpoint is corrupted");
        let bare = OF_STATIC.replace("1517878885", "0");
        assert!(decode(bare.as_bytes(), "static").is_ok());
        assert!(why(&bare.replace("0,3-5", "x")).starts_with("could not parse default cpu set \"x\": "));
        assert!(
            why(&bare.replace("6-7", "7-6"))
                .starts_with("could not parse cpuset \"7-6\" for container \"c\" in pod \"a\": ")
        );
        // #84783: half a file.
        assert!(!why(&OF_STATIC[..40]).is_empty());
    }
}
