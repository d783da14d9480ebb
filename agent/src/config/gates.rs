//! Feature gates: which there are in this release, and which of them a user may switch. Pure: owns
//! the list and its rules; never what a gate does. Called by [`super`].

use std::collections::BTreeMap;

/// Made by tests/go/kubelet: name, default, locked, stage.
const LIST: &str = include_str!("upstream/gates.tsv");

/// Gates that the kubelet reads and that change what it does; one whose feature is there stands
/// at its default. The rest belongs to other components, which share one map of gates with it.
const OURS: [&str; 76] = [
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "CRIListStreaming",
    "CSIVolumeHealth",
    "ChangeContainerStatusOnKubeletRestart",
    "ClusterTrustBundleProjection",
    "ComponentFlagz",
    "ComponentStatusz",
    "ContainerCheckpoint",
    "ContainerRestartRules",
    "ContainerStopSignals",
    "CustomCPUCFSQuotaPeriod",
    "DRAExtendedResource",
    "DRAWorkloadResourceClaims",
    "DisableCPUQuotaWithExclusiveCPUs",
    "DisableNodeKubeProxyVersion",
    "DynamicResourceAllocation",
    "EnvFiles",
    "EventedPLEG",
    "ExecProbeTimeout",
    "ExtendWebSocketsToKubelet",
    "GitRepoVolumeDriver",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "HostnameOverride",
    "ImageMaximumGCAge",
    "ImageVolume",
    "ImageVolumeWithDigest",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScaling",
    "InPlacePodVerticalScalingExclusiveCPUs",
    "InPlacePodVerticalScalingExclusiveMemory",
    "InPlacePodVerticalScalingInitContainers",
    "KubeletCrashLoopBackOffMax",
    "KubeletEnsureSecretPulledImages",
    "KubeletFineGrainedAuthz",
    "KubeletInUserNamespace",
    "KubeletPSI",
    "KubeletPodResourcesDynamicResources",
    "KubeletPodResourcesGet",
    "KubeletPodResourcesListUseActivePods",
    "KubeletRegistrationGetOnExistsOnly",
    "KubeletSeparateDiskGC",
    "KubeletServiceAccountTokenForCredentialProviders",
    "KubeletTracing",
    "LocalStorageCapacityIsolationFSQuotaMonitoring",
    "LoggingAlphaOptions",
    "MemoryQoS",
    "NodeDeclaredFeatures",
    "NodeLogQuery",
    "NodeSwap",
    "PLEGOnDemandRelist",
    "PodAndContainerStatsFromCRI",
    "PodCertificateRequest",
    "PodLevelResourceManagers",
    "PodLevelResources",
    "PodLogsQuerySplitStreams",
    "PodReadyToStartContainersCondition",
    "PodsAPI",
    "PreventStaticPodAPIReferences",
    "ProcMountType",
    "QOSReserved",
    "ReduceDefaultCrashLoopBackOffDecay",
    "ReloadKubeletClientCAFile",
    "ReloadKubeletServerCertificateFile",
    "ResourceHealthStatus",
    "RestartAllContainersOnContainerExits",
    "RotateKubeletServerCertificate",
    "RuntimeClassInImageCriApi",
    "SELinuxMount",
    "SupplementalGroupsPolicy",
    "TaintTolerationComparisonOperators",
    "TopologyManagerPolicyAlphaOptions",
    "TopologyManagerPolicyBetaOptions",
    "UserNamespacesHostNetworkSupport",
    "UserNamespacesSupport",
];

/// Those whose feature a node has and this one has not: closed whatever a configuration says, so none may be
/// opened and each that upstream lets one close may be closed.
const ABSENT: [&str; 23] = [
    "CRIListStreaming",
    "CSIVolumeHealth",
    "ChangeContainerStatusOnKubeletRestart",
    "ClusterTrustBundleProjection",
    "DRAWorkloadResourceClaims",
    "EventedPLEG",
    "GitRepoVolumeDriver",
    "InPlacePodVerticalScalingExclusiveCPUs",
    "InPlacePodVerticalScalingExclusiveMemory",
    "KubeletInUserNamespace",
    "LocalStorageCapacityIsolationFSQuotaMonitoring",
    "LoggingAlphaOptions",
    "MemoryQoS",
    "PodAndContainerStatsFromCRI",
    "PodCertificateRequest",
    "PodLevelResourceManagers",
    "PodLogsQuerySplitStreams",
    "PodsAPI",
    "QOSReserved",
    "ReduceDefaultCrashLoopBackOffDecay",
    "RuntimeClassInImageCriApi",
    "SELinuxMount",
    "UserNamespacesHostNetworkSupport",
];

/// Those that may be opened and closed, as upstream's: what each stands for is there, and goes away with it.
const SWITCHED: [&str; 12] = [
    "CPUManagerPolicyAlphaOptions",
    "CPUManagerPolicyBetaOptions",
    "CustomCPUCFSQuotaPeriod",
    "DisableCPUQuotaWithExclusiveCPUs",
    "ExtendWebSocketsToKubelet",
    "GracefulNodeShutdown",
    "GracefulNodeShutdownBasedOnPodPriority",
    "InPlacePodLevelResourcesVerticalScaling",
    "KubeletPodResourcesListUseActivePods",
    "PodLevelResources",
    "TopologyManagerPolicyAlphaOptions",
    "TopologyManagerPolicyBetaOptions",
];

/// Of those that may be closed: which needs which, as upstream.
const NEEDS: [(&str, &str); 3] = [
    ("GracefulNodeShutdownBasedOnPodPriority", "GracefulNodeShutdown"),
    ("InPlacePodLevelResourcesVerticalScaling", "PodLevelResources"),
    ("PodLevelResourceManagers", "PodLevelResources"),
];

/// One gate of this release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FeatureGate {
    default: bool,
    locked: bool,
    stage: &'static str,
}

/// All of them.
#[derive(Debug, Clone)]
pub struct Gates(BTreeMap<&'static str, FeatureGate>);

/// The name that stands for all gates of one stage, and how far it reaches.
const STAGES: [(&str, &str); 2] = [("AllAlpha", "ALPHA"), ("AllBeta", "BETA")];

impl Default for Gates {
    fn default() -> Self {
        let gate = |line: &'static str| {
            let mut cells = line.split('\t');
            let name = cells.next()?;
            let (default, locked) = (cells.next()? == "true", cells.next()? == "true");
            Some((name, FeatureGate { default, locked, stage: cells.next().unwrap_or_default() }))
        };
        Self(LIST.lines().filter_map(gate).collect())
    }
}

impl Gates {
    /// Whether a gate is open, with what a configuration says.
    #[must_use]
    pub fn enabled(&self, name: &str, set: &BTreeMap<String, bool>) -> bool {
        if let Some(value) = set.get(name) {
            return *value;
        }
        let Some(gate) = self.0.get(name) else { return false };
        let by_stage = STAGES.iter().find(|(_, stage)| *stage == gate.stage);
        by_stage.and_then(|(all, _)| set.get(*all)).copied().filter(|_| !gate.locked).unwrap_or(gate.default)
    }

    /// Each gate, its stage, and whether what it stands for is on: what is not there never is.
    pub fn all<'a>(
        &'a self,
        set: &'a BTreeMap<String, bool>,
    ) -> impl Iterator<Item = (&'static str, &'static str, bool)> + 'a {
        let on = move |name: &str| self.enabled(name, set) && !ABSENT.contains(&name);
        self.0.iter().map(move |(name, gate)| (*name, gate.stage, on(name)))
    }

    /// What no kubelet of this release may be told.
    pub(super) fn wrong(&self, set: &BTreeMap<String, bool>) -> Vec<String> {
        let mut found = Vec::new();
        for (name, value) in set {
            match self.0.get(name.as_str()) {
                None => found.push(format!("unrecognized feature gate: {name}")),
                Some(gate) if gate.locked && gate.default != *value => found.push(format!(
                    "cannot set feature gate {name} to {value}, feature is locked to {}",
                    gate.default
                )),
                Some(_) => {}
            }
        }
        if found.is_empty() {
            let open = |name: &str| self.enabled(name, set);
            let broken = NEEDS.iter().filter(|(name, needed)| open(name) && !open(needed));
            found.extend(broken.map(|(name, needed)| {
                format!("{name} is enabled, but depends on features that are disabled: [{needed}]")
            }));
        }
        found
    }

    /// What upstream may be told and this kubelet may not.
    pub(super) fn list_unsupported(&self, set: &BTreeMap<String, bool>) -> Vec<String> {
        let mut found = Vec::new();
        let moved = OURS
            .iter()
            .filter_map(|name| self.0.get_key_value(name))
            .filter(|(name, gate)| !gate.locked && self.enabled(name, set) != gate.default)
            .filter(|(name, _)| !SWITCHED.contains(name));
        for (name, gate) in moved {
            let (value, absent) = (!gate.default, ABSENT.contains(name));
            match (absent, value) {
                (true, false) => {}
                (true, true) => found.push(format!(
                    "feature gate {name}=true is not supported by this kubelet: its feature is not there, leave it at false"
                )),
                (false, _) => found.push(format!(
                    "feature gate {name}={value} is not supported by this kubelet: leave it at {}",
                    gate.default
                )),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, bool)]) -> BTreeMap<String, bool> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn every_gate_of_ours_is_one_of_this_release() {
        let gates = Gates::default();
        let unknown: Vec<_> = OURS.iter().filter(|name| !gates.0.contains_key(**name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(OURS.is_sorted());
    }

    #[test]
    fn gates_at_their_default_and_gates_of_others_are_no_problem() {
        let gates = Gates::default();
        let usual = set(&[("RotateKubeletServerCertificate", true), ("APIServingWithRoutine", true)]);
        assert_eq!((gates.wrong(&usual), gates.list_unsupported(&usual)), (vec![], vec![]));
        assert_eq!(gates.list_unsupported(&set(&[("AllAlpha", false), ("AllBeta", true)])).len(), 4);
    }

    #[test]
    fn a_gate_of_what_is_not_there_may_be_closed_and_is_told_as_closed() {
        let gates = Gates::default();
        let off = set(&[("CSIVolumeHealth", false), ("EventedPLEG", false)]);
        assert_eq!((gates.wrong(&off), gates.list_unsupported(&off)), (vec![], vec![]));
        // Where it stands already it may be put.
        let on = set(&[("ExtendWebSocketsToKubelet", true), ("KubeletCrashLoopBackOffMax", true)]);
        assert_eq!((gates.wrong(&on), gates.list_unsupported(&on)), (vec![], vec![]));
        let told: BTreeMap<_, _> = gates.all(&on).map(|(name, _, open)| (name, open)).collect();
        let of = |name: &str| told.get(name).copied();
        assert_eq!(
            (of("DynamicResourceAllocation"), of("DRAWorkloadResourceClaims")),
            (Some(true), Some(false))
        );
        assert_eq!((of("KubeletCrashLoopBackOffMax"), of("SidecarContainers")), (Some(true), Some(true)));
        let there = ["CSIServiceAccountTokenSecrets", "KubeletTracing", "MutableCSINodeAllocatableCount"];
        for there in there.into_iter().chain(["RecoverVolumeExpansionFailure"]) {
            assert_eq!(of(there), Some(true), "{there}");
        }
        assert!(ABSENT.is_sorted() && ABSENT.iter().all(|name| gates.0.contains_key(name)));
    }

    #[test]
    fn a_gate_of_what_can_be_switched_off_may_be_closed_and_is_told_as_it_is() {
        let gates = Gates::default();
        for name in SWITCHED {
            for open in [true, false] {
                let set = set(&[(name, open)]);
                assert_eq!(gates.list_unsupported(&set), Vec::<String>::new(), "{name}");
                let told = gates.all(&set).find(|(told, _, _)| *told == name).map(|(_, _, open)| open);
                assert_eq!(told, Some(open), "{name}");
            }
        }
        assert!(SWITCHED.iter().all(|name| OURS.contains(name) && !ABSENT.contains(name)));
    }

    #[test]
    fn gates_that_nobody_knows_or_that_cannot_move_are_told_in_upstreams_words() {
        let gates = Gates::default();
        assert_eq!(gates.wrong(&set(&[("Nonsense", true)])), ["unrecognized feature gate: Nonsense"]);
        assert_eq!(
            gates.wrong(&set(&[("NodeSwap", false)])),
            ["cannot set feature gate NodeSwap to false, feature is locked to true"]
        );
        let depends = [
            "InPlacePodLevelResourcesVerticalScaling is enabled, but depends on features that are disabled: [PodLevelResources]",
        ];
        assert_eq!(gates.wrong(&set(&[("PodLevelResources", false)])), depends);
        let both = set(&[("PodLevelResources", false), ("InPlacePodLevelResourcesVerticalScaling", false)]);
        assert_eq!(gates.wrong(&both), Vec::<String>::new());
        assert_eq!(
            gates.list_unsupported(&set(&[("EventedPLEG", true)])),
            [
                "feature gate EventedPLEG=true is not supported by this kubelet: its feature is not there, leave it at false"
            ]
        );
        assert_eq!(
            gates.list_unsupported(&set(&[("KubeletCrashLoopBackOffMax", false)])),
            [
                "feature gate KubeletCrashLoopBackOffMax=false is not supported by this kubelet: leave it at true"
            ]
        );
    }
}
