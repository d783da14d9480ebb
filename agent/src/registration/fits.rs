//! Whether a machine has what is reserved of it. Pure: owns the comparison and its words; never
//! lowers a reservation. Called by the kubelet's wiring before anything is begun.

use super::machine::MachineInfo;
use super::{Settings, amount};

/// Holds reservations and thresholds against what there is.
///
/// # Errors
/// In upstream's words, with every resource that is short.
pub(crate) fn check(settings: &Settings, machine: &MachineInfo) -> Result<(), String> {
    let cpu = machine.cores.saturating_mul(1000);
    let memory = settings.kept_memory(machine.memory);
    let mut all = vec![
        ("cpu", settings.reserved_of("cpu", 1000), cpu, amount::milli as fn(i64) -> _),
        ("memory", memory, machine.memory, amount::bytes),
    ];
    if settings.local_storage {
        let of_pods = settings.evict_storage.of(machine.ephemeral);
        let reserved = settings.reserved_of("ephemeral-storage", 1).saturating_add(of_pods);
        all.push(("ephemeral-storage", reserved, machine.ephemeral, amount::bytes));
    }
    let short = all.into_iter().filter(|(_, reserved, there, _)| reserved > there);
    let told: Vec<String> = short
        .map(|(name, reserved, there, form)| {
            format!(
                "Resource {name:?} has a reservation of {} but capacity of {}. Expected capacity >= reservation.",
                form(reserved).0,
                form(there).0
            )
        })
        .collect();
    if told.is_empty() {
        return Ok(());
    }
    Err(format!("invalid Node Allocatable configuration. {}", told.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machine, settings};
    use super::*;
    use crate::config::eviction::Threshold;

    #[test]
    fn more_than_there_is_cannot_be_reserved() {
        let mut settings = settings();
        assert_eq!(check(&settings, &machine()), Ok(()));
        settings.kube_reserved = [("memory".to_owned(), "64Gi".to_owned())].into();
        settings.system_reserved =
            [("cpu".to_owned(), "1500m".to_owned()), ("pid".to_owned(), "99999999".to_owned())].into();
        settings.evict_memory = Threshold::None;
        assert_eq!(
            check(&settings, &machine()).unwrap_err(),
            "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of 64Gi but capacity of \
             4Gi. Expected capacity >= reservation."
        );
        settings.kube_reserved = [("cpu".to_owned(), "1".to_owned())].into();
        let told = check(&settings, &machine()).unwrap_err();
        assert!(told.contains("Resource \"cpu\" has a reservation of 2500m but capacity of 2."), "{told}");
    }

    #[test]
    fn thresholds_count_as_reserved_and_all_may_be() {
        let mut settings = settings();
        settings.evict_memory = Threshold::Bytes(machine().memory);
        assert_eq!(check(&settings, &machine()), Ok(()));
        settings.system_reserved = [("memory".to_owned(), "1".to_owned())].into();
        assert!(check(&settings, &machine()).is_err());
        settings.system_reserved = [("ephemeral-storage".to_owned(), "8Ei".to_owned())].into();
        settings.evict_memory = Threshold::None;
        settings.local_storage = false;
        assert_eq!(check(&settings, &machine()), Ok(()), "nobody counts it");
    }
}
