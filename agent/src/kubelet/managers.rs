//! What the CPU, memory and topology managers are told of the configuration, and what `reservedSystemCPUs` does to it. Owns
//! the mapping and upstream's words; never a default of its own. Called by [`super::run`] and [`super::parts`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gantry_base::error::chain;
use gantry_metrics::Metrics;
use gantry_model::quantity::{QuantityError, parse_milli};
use gantry_numa::cpu_manager::{CpuSettings, OptionGates};
use gantry_numa::cpuset::CpuSet;
use gantry_numa::machine::Machine;
use gantry_numa::memory_manager::MemoryReservation;

use super::error::Error;
use super::wiring;
use crate::config::fields::ReservedMemory;
use crate::config::gates::Gates;
use crate::config::{KubeletConfiguration, KubeletFlags};
use crate::registration;
use crate::resource_managers::{ManagerSettings, MemorySettings, ResourceManagers, TopologySettings};

/// Of `cpuManagerReconcilePeriod`: a negative one would look for ever, without a pause.
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);

/// `reservedSystemCPUs` takes the place of the CPU in kubeReserved and systemReserved.
///
/// # Errors
/// When the machine does not have them all.
pub(super) fn reserve_cpus(config: &mut KubeletConfiguration) -> Result<(), Error> {
    if config.reserved_system_cpus.is_empty() {
        return Ok(());
    }
    let replaced = look().and_then(|machine| replace_reserved(config, &machine.topology.all()));
    replaced.map_err(Error::ReservedCpus)
}

fn look() -> Result<Machine, String> {
    let machine = Machine::read(Path::new("/sys"), Path::new("/proc"));
    machine.map_err(|why| format!("unable to discover CPU topology info: {}", chain(&why)))
}

fn replace_reserved(config: &mut KubeletConfiguration, online: &CpuSet) -> Result<(), String> {
    let text = &config.reserved_system_cpus;
    let cpus: CpuSet = text.parse().map_err(|why| format!("unable to parse reserved-cpus list: {why}"))?;
    if !cpus.is_subset(online) {
        return Err(format!("reserved-cpus: {text} is not a subset of online-cpus: {online}"));
    }
    tracing::info!(
        kube_reserved = ?config.kube_reserved,
        system_reserved = ?config.system_reserved,
        "Option --reserved-cpus is specified, it will overwrite the cpu setting in KubeReserved and SystemReserved"
    );
    config.kube_reserved.remove("cpu");
    config.system_reserved.insert("cpu".to_owned(), cpus.len().to_string());
    Ok(())
}

pub(super) fn open(
    root: &Path,
    flags: &KubeletFlags,
    config: &KubeletConfiguration,
    metrics: Arc<Metrics>,
) -> Result<ResourceManagers, Error> {
    let kept = match config.memory_manager_policy.as_str() {
        "None" => None,
        _ => {
            let capacity = registration::machine::read(root)?.memory;
            Some(wiring::registration(flags, config, "")?.kept_memory(capacity))
        }
    };
    let settings = settings(config, kept).map_err(Error::Managers)?;
    let machine = if settings.need_machine() { look().map_err(Error::Managers)? } else { Machine::default() };
    let managers = ResourceManagers::open(root, &settings, &machine, metrics);
    managers.map_err(|why| Error::Managers(chain(&why)))
}

fn settings(config: &KubeletConfiguration, kept: Option<i64>) -> Result<ManagerSettings, String> {
    let gates = Gates::default();
    let open = |name: &str| gates.enabled(name, &config.feature_gates);
    let reserved = config.reserved_system_cpus.parse();
    Ok(ManagerSettings {
        cpu: CpuSettings {
            policy: config.cpu_manager_policy.clone(),
            options: config.cpu_manager_policy_options.clone(),
            gates: OptionGates {
                alpha: open("CPUManagerPolicyAlphaOptions"),
                beta: open("CPUManagerPolicyBetaOptions"),
            },
            reserved: reserved.map_err(|why| format!("unable to parse reserved-cpus list: {why}"))?,
            reserved_milli: reserved_of(config, "cpu"),
            single_numa_node: config.topology_manager_policy == "single-numa-node",
        },
        memory: MemorySettings {
            policy: config.memory_manager_policy.clone(),
            reserved: config.reserved_memory.iter().map(reservation).collect(),
            kept: kept.map(|bytes| ("memory".to_owned(), bytes)).into_iter().collect(),
        },
        topology: TopologySettings {
            policy: config.topology_manager_policy.clone(),
            scope: config.topology_manager_scope.clone(),
            options: config.topology_manager_policy_options.clone(),
        },
        reconcile_period: config.cpu_manager_reconcile_period.duration().max(SHORTEST_PERIOD),
        lifts_quota: open("DisableCPUQuotaWithExclusiveCPUs"),
    })
}

fn reservation(of: &ReservedMemory) -> MemoryReservation {
    MemoryReservation { node: of.numa_node.into(), limits: of.limits.clone() }
}

/// In thousandths. What is no amount was refused before.
fn reserved_of(config: &KubeletConfiguration, name: &str) -> i64 {
    let of = |all: &BTreeMap<String, String>| match all.get(name).map(|text| parse_milli(text)) {
        Some(Ok(amount)) => amount,
        Some(Err(QuantityError::TooLarge { .. })) => i64::MAX,
        _ => 0,
    };
    of(&config.kube_reserved).saturating_add(of(&config.system_reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> KubeletConfiguration {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn reserved_cpus_take_the_place_of_amounts() {
        let text = r#"{"reservedSystemCPUs":"0,2","kubeReserved":{"cpu":"500m","memory":"1Gi"},"cpuManagerReconcilePeriod":"-1s"}"#;
        let mut config = config(text);
        replace_reserved(&mut config, &"0-3".parse().unwrap()).unwrap();
        assert_eq!(reserved_of(&config, "cpu"), 2000);
        assert_eq!(config.kube_reserved, [("memory".to_owned(), "1Gi".to_owned())].into());
        let settings = settings(&config, None).unwrap();
        assert_eq!(settings.reconcile_period, SHORTEST_PERIOD);
        assert_eq!((settings.cpu.reserved.to_string().as_str(), settings.cpu.reserved_milli), ("0,2", 2000));
        assert_eq!(
            replace_reserved(&mut config, &"0-1".parse().unwrap()).unwrap_err(),
            "reserved-cpus: 0,2 is not a subset of online-cpus: 0-1"
        );
    }
}
