//! Slices of pods and their classes: made, limited and ended by systemd, beside the files that say the same.
//! Owns what was told, so that it is not told again; the numbers are [`super::limits`]'. Blocks. Called by
//! [`super::tree`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gantry_systemd::{Property, Systemd, Value};

use super::Together;
use super::limits::{Limits, shares, weight};

/// systemd counts quotas in whole percents of a core; its children's may not be more.
const PERCENT: u64 = 10_000;
const SECOND: u64 = 1_000_000;

/// The way to systemd.
#[derive(Debug, Default)]
pub(super) struct Units {
    systemd: Systemd,
    /// Of each slice that was made or limited here.
    told: Mutex<BTreeMap<String, Vec<Property>>>,
}

impl Units {
    /// The one of this machine.
    pub(super) fn reached() -> Result<Self, String> {
        let units = Self::default();
        units.systemd.check().map_err(|error| chain(&error))?;
        Ok(units)
    }

    /// Makes a slice unless it is there.
    pub(super) fn make(&self, unit: &str, parent: Option<&str>) -> Result<(), String> {
        if self.told().contains_key(unit) {
            return Ok(());
        }
        let made = self.systemd.start(unit, slice(unit, parent)).map_err(|error| chain(&error))?;
        if made {
            tracing::debug!(unit, "systemd made a slice");
        }
        self.told().entry(unit.to_owned()).or_default();
        Ok(())
    }

    /// Limits one that is there.
    pub(super) fn limit(&self, unit: &str, limits: Vec<Property>) -> Result<(), String> {
        if self.told().get(unit) == Some(&limits) {
            return Ok(());
        }
        self.systemd.set(unit, limits.clone()).map_err(|error| chain(&error))?;
        self.told().insert(unit.to_owned(), limits);
        Ok(())
    }

    /// Ends one; none is fine.
    pub(super) fn end(&self, unit: &str) -> Result<(), String> {
        self.told().remove(unit);
        self.systemd.stop(unit).map_err(|error| chain(&error))
    }

    fn told(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Vec<Property>>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

/// As libcontainer makes one: its parent is wanted, everything is counted.
fn slice(unit: &str, parent: Option<&str>) -> Vec<Property> {
    let mut list = vec![
        Property::text("Description", &format!("gantry {unit}")),
        Property::flag("DefaultDependencies", false),
    ];
    let accounting = ["CPUAccounting", "MemoryAccounting", "IOAccounting", "TasksAccounting"];
    list.extend(accounting.map(|name| Property::flag(name, true)));
    list.extend(
        parent.map(|parent| Property { name: "Wants", value: Value::Texts(vec![parent.to_owned()]) }),
    );
    list
}

/// A pod's or a class's limits in systemd's words.
pub(super) fn of_limits(limits: &Limits, unified: bool) -> Vec<Property> {
    let mut list = vec![cpu(limits.cpu_shares, unified)];
    if let Some(quota) = limits.cpu_quota {
        let period = u64::try_from(limits.cpu_period).unwrap_or(0).max(1);
        list.push(Property::number("CPUQuotaPeriodUSec", period));
        list.push(Property::number("CPUQuotaPerSecUSec", quota_per_second(quota, period)));
    }
    list.extend(limits.memory.map(|bytes| memory(bytes, unified)));
    list.extend(limits.pids.map(|pids| Property::number("TasksMax", amount(pids))));
    list
}

/// What all pods have together.
pub(super) fn of_together(all: &Together, unified: bool) -> Vec<Property> {
    let mut list = vec![cpu(shares(all.cpu), unified)];
    list.extend(all.memory.map(|bytes| memory(bytes, unified)));
    list.extend(all.pids.map(|pids| Property::number("TasksMax", amount(pids))));
    list
}

fn cpu(shares: i64, unified: bool) -> Property {
    if unified {
        Property::number("CPUWeight", amount(weight(shares)))
    } else {
        Property::number("CPUShares", amount(shares))
    }
}

fn memory(bytes: i64, unified: bool) -> Property {
    Property::number(if unified { "MemoryMax" } else { "MemoryLimit" }, amount(bytes))
}

/// Less than nothing is no limit.
fn amount(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Rounded up to a percent; none or less is no limit.
fn quota_per_second(quota: i64, period: u64) -> u64 {
    match u64::try_from(quota) {
        Ok(quota) if quota > 0 => {
            (quota.saturating_mul(SECOND) / period).checked_next_multiple_of(PERCENT).unwrap_or(u64::MAX)
        }
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: Vec<Property>) -> Vec<String> {
        let word = |property: Property| match property.value {
            Value::Number(u64::MAX) => format!("{}=infinity", property.name),
            Value::Number(number) => format!("{}={number}", property.name),
            other => format!("{}={other:?}", property.name),
        };
        list.into_iter().map(word).collect()
    }

    #[test]
    fn limits_are_told_in_systemds_words() {
        let limits = Limits {
            cpu_shares: 1024,
            cpu_quota: Some(12_345),
            cpu_period: 100_000,
            memory: Some(7),
            pids: Some(9),
        };
        assert_eq!(
            words(of_limits(&limits, true)),
            [
                "CPUWeight=100",
                "CPUQuotaPeriodUSec=100000",
                "CPUQuotaPerSecUSec=130000",
                "MemoryMax=7",
                "TasksMax=9"
            ]
        );
        assert_eq!(words(of_limits(&limits, false))[..1], ["CPUShares=1024"]);
        assert_eq!(words(of_limits(&limits, false))[3..4], ["MemoryLimit=7"]);
        let lifted = Limits { cpu_quota: Some(-1), memory: None, pids: None, ..limits };
        assert_eq!(
            words(of_limits(&lifted, true))[1..],
            ["CPUQuotaPeriodUSec=100000", "CPUQuotaPerSecUSec=infinity"]
        );
        let all = Together { cpu: 1500, memory: Some(7), pids: None, huge_pages: BTreeMap::new() };
        assert_eq!(words(of_together(&all, false)), ["CPUShares=1536", "MemoryLimit=7"]);
    }

    #[test]
    fn a_slice_wants_its_parent() {
        let list = slice("a-b.slice", Some("a.slice"));
        assert!(list.contains(&Property { name: "Wants", value: Value::Texts(vec!["a.slice".into()]) }));
        assert!(list.contains(&Property::flag("MemoryAccounting", true)));
    }

    #[test]
    fn without_systemd_a_slice_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let units = Units { systemd: Systemd::at(folder.path().join("x")), told: Mutex::default() };
        let told = units.make("a.slice", None).unwrap_err();
        assert!(told.contains("reach systemd at") && told.contains("No such file"), "{told}");
    }
}
