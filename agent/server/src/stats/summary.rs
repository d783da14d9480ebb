//! The summary API's types, `stats/v1alpha1` of k8s.io/kubelet. Pure: owns their JSON; never fills
//! them. Used by all of [`super`].

use serde::{Serialize, Serializer};

/// Unix nanoseconds as metav1.Time: whole seconds, nothing when there is no time.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn time<S: Serializer>(nanos: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    match jiff::Timestamp::from_nanosecond(i128::from(*nanos)) {
        Ok(time) if *nanos > 0 => {
            let seconds = jiff::Timestamp::from_second(time.as_second()).unwrap_or(time);
            serializer.serialize_str(&seconds.to_string())
        }
        _ => serializer.serialize_none(),
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Default, PartialEq, Serialize)]
            #[serde(rename_all = "camelCase")]
            pub struct $name { $($(#[$attribute])* pub $field: $type,)* }
        )*
    };
}

stats! {
    /// The whole answer.
    Summary {
        node: NodeStats,
        pods: Vec<PodStats>,
    }
    /// The machine.
    NodeStats {
        node_name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        system_containers: Vec<ContainerStats>,
        #[serde(serialize_with = "time")]
        start_time: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        runtime: Option<RuntimeStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rlimit: Option<RlimitStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    /// Processes of the machine.
    RlimitStats {
        #[serde(serialize_with = "time")]
        time: i64,
        #[serde(rename = "maxpid", skip_serializing_if = "Option::is_none")]
        max_pid: Option<i64>,
        #[serde(rename = "curproc", skip_serializing_if = "Option::is_none")]
        processes: Option<i64>,
    }
    /// Where images and containers are.
    RuntimeStats {
        #[serde(skip_serializing_if = "Option::is_none")]
        image_fs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        container_fs: Option<FsStats>,
    }
    /// How many.
    ProcessStats {
        #[serde(rename = "process_count", skip_serializing_if = "Option::is_none")]
        process_count: Option<u64>,
    }
    /// One pod.
    PodStats {
        pod_ref: PodReference,
        #[serde(serialize_with = "time")]
        start_time: i64,
        containers: Vec<ContainerStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        network: Option<NetworkStats>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        volume: Vec<VolumeStats>,
        #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
        ephemeral_storage: Option<FsStats>,
        #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
        process_stats: Option<ProcessStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
        /// Its /etc/hosts, which containers may write: part of the ephemeral storage.
        #[serde(skip)]
        hosts_file: Option<FsStats>,
    }
    /// One container, of a pod or of the system.
    ContainerStats {
        name: String,
        #[serde(skip)]
        id: String,
        #[serde(serialize_with = "time")]
        start_time: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        io: Option<IoStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rootfs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logs: Option<FsStats>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap: Option<SwapStats>,
    }
    /// Which pod.
    PodReference {
        name: String,
        namespace: String,
        uid: String,
    }
    /// One interface.
    InterfaceStats {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rx_errors: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tx_errors: Option<u64>,
        #[serde(skip)]
        rx_packets: Option<u64>,
        #[serde(skip)]
        rx_dropped: Option<u64>,
        #[serde(skip)]
        tx_packets: Option<u64>,
        #[serde(skip)]
        tx_dropped: Option<u64>,
    }
    /// The default interface, and all.
    NetworkStats {
        #[serde(serialize_with = "time")]
        time: i64,
        #[serde(flatten)]
        default: InterfaceStats,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        interfaces: Vec<InterfaceStats>,
    }
    /// Processor time.
    CpuStats {
        #[serde(serialize_with = "time")]
        time: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_nano_cores: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_core_nano_seconds: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
    /// Memory.
    MemoryStats {
        #[serde(serialize_with = "time")]
        time: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        working_set_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        rss_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        page_faults: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        major_page_faults: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
    /// Pressure of input and output.
    IoStats {
        #[serde(serialize_with = "time")]
        time: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        psi: Option<PsiStats>,
    }
    /// Pressure stall information.
    PsiStats {
        full: PsiData,
        some: PsiData,
    }
    /// One line of it.
    PsiData {
        total: u64,
        avg10: f64,
        avg60: f64,
        avg300: f64,
    }
    /// Swap.
    SwapStats {
        #[serde(serialize_with = "time")]
        time: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_usage_bytes: Option<u64>,
    }
    /// One volume.
    VolumeStats {
        #[serde(flatten)]
        fs: FsStats,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pvc_ref: Option<PvcReference>,
    }
    /// Which claim.
    PvcReference {
        name: String,
        namespace: String,
    }
    /// Part of a file system.
    FsStats {
        #[serde(serialize_with = "time")]
        time: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        available_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        capacity_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        used_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_free: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        inodes_used: Option<u64>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_upstream_writes_it() {
        let cpu =
            CpuStats { time: 1_700_000_000_500_000_000, usage_nano_cores: Some(5), ..CpuStats::default() };
        let default = InterfaceStats { name: "eth0".into(), rx_bytes: Some(1), ..InterfaceStats::default() };
        let network = NetworkStats { time: 0, default, interfaces: Vec::new() };
        let pod = PodStats {
            cpu: Some(cpu),
            network: Some(network),
            process_stats: Some(ProcessStats { process_count: Some(2) }),
            ephemeral_storage: Some(FsStats { used_bytes: Some(9), ..FsStats::default() }),
            ..PodStats::default()
        };
        let json = serde_json::to_value(&pod).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "podRef": { "name": "", "namespace": "", "uid": "" },
                "startTime": null,
                "containers": [],
                "cpu": { "time": "2023-11-14T22:13:20Z", "usageNanoCores": 5 },
                "network": { "time": null, "name": "eth0", "rxBytes": 1 },
                "process_stats": { "process_count": 2 },
                "ephemeral-storage": { "time": null, "usedBytes": 9 },
            })
        );
    }
}
