//! Slices of pods and their classes: made, limited and ended by systemd, beside the files that say the same.
//! Owns which slices are ours to end, and what is to be lifted; the numbers are [`gantry_model::cgroup::limits`]'.
//! Nothing else is remembered: an administrator or another agent may end a slice at any time. Blocks. Called by [`super::tree`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use gantry_base::error::chain;
use gantry_model::cgroup::limits::{Limits, shares, weight};
use gantry_model::cgroup::{Reserved, Together};
use gantry_systemd::{Property, Systemd, Value};

const SECOND: u64 = 1_000_000;

/// The way to systemd.
#[derive(Debug, Default)]
pub(super) struct Units {
    systemd: Systemd,
    /// By what each slice is limited from here: what is no more is lifted, and nobody else's limits are.
    told: Mutex<BTreeMap<String, BTreeSet<&'static str>>>,
}

impl Units {
    /// The one of this machine.
    pub(super) fn connect() -> Result<Self, String> {
        let units = Self::default();
        units.systemd.check().map_err(|error| chain(&error))?;
        Ok(units)
    }

    /// Makes a slice unless it is there.
    pub(super) fn make(&self, unit: &str, parent: Option<&str>, unified: bool) -> Result<(), String> {
        let made = self.systemd.start(unit, &slice(unit, parent, unified)).map_err(|error| chain(&error))?;
        if made {
            tracing::debug!(unit, "systemd made a slice");
            self.forget(unit);
        }
        Ok(())
    }

    /// Limits one that is there.
    pub(super) fn limit(&self, unit: &str, mut limits: Vec<Property>) -> Result<(), String> {
        let names: BTreeSet<&'static str> = limits.iter().map(|limit| limit.name).collect();
        let before = self.told().get(unit).cloned().unwrap_or_default();
        limits.extend(before.difference(&names).map(|name| Property::number(name, u64::MAX)));
        self.systemd.set(unit, &limits).map_err(|error| chain(&error))?;
        self.told().insert(unit.to_owned(), names);
        Ok(())
    }

    /// Limits one of others, from which nothing is lifted again: it may have limits that were not told here.
    pub(super) fn limit_foreign(&self, unit: &str, limits: &[Property]) -> Result<(), String> {
        self.systemd.set(unit, limits).map_err(|error| chain(&error))
    }

    /// It ended elsewhere.
    pub(super) fn forget(&self, unit: &str) {
        self.told().remove(unit);
    }

    /// Ends a pod's with all that is in it; none is fine.
    pub(super) fn end(&self, unit: &str) -> Result<(), String> {
        self.forget(unit);
        self.systemd.stop(unit).map_err(|error| chain(&error))
    }

    /// Ends one that an agent made, in which nobody was a moment ago; who is by now runs on in it. Whether its
    /// folders are nobody's then.
    pub(super) fn leave(&self, unit: &str) -> Result<bool, String> {
        match self.systemd.description(unit).map_err(|error| chain(&error))? {
            None => return Ok(true),
            Some(other) if other != description(unit) => return Ok(false),
            Some(_) => {}
        }
        self.forget(unit);
        self.systemd.stop_alone(unit).map_err(|error| chain(&error))?;
        Ok(true)
    }

    fn told(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, BTreeSet<&'static str>>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What tells an agent's slices from those of administrators and kubelets.
fn description(unit: &str) -> String {
    format!("gantry {unit}")
}

/// As libcontainer makes one: its parent is wanted, everything is counted.
fn slice(unit: &str, parent: Option<&str>, unified: bool) -> Vec<Property> {
    let mut list =
        vec![Property::text("Description", &description(unit)), Property::flag("DefaultDependencies", false)];
    // On v1 older systemd knows no other name.
    let io = if unified { "IOAccounting" } else { "BlockIOAccounting" };
    let accounting = ["CPUAccounting", "MemoryAccounting", io, "TasksAccounting"];
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

/// What daemons have together.
pub(super) fn of_reserved(to: &Reserved, unified: bool) -> Vec<Property> {
    let to = to.held_to();
    let cpu = to.cpu.map(|milli| cpu(shares(milli), unified));
    let memory = to.memory.map(|bytes| memory(bytes, unified));
    let pids = to.pids.map(|pids| Property::number("TasksMax", amount(pids)));
    cpu.into_iter().chain(memory).chain(pids).collect()
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

/// None or less is no limit.
fn quota_per_second(quota: i64, period: u64) -> u64 {
    match u64::try_from(quota) {
        Ok(quota) if quota > 0 => quota.saturating_mul(SECOND) / period,
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
            words(of_limits(&limits.in_percents(), true)),
            [
                "CPUWeight=39",
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
        let daemons = Reserved { cpu: Some(500), memory: Some(7), pids: Some(0) };
        assert_eq!(words(of_reserved(&daemons, true)), ["CPUWeight=20", "MemoryMax=7", "TasksMax=1"]);
        let weighed = Reserved { cpu: Some(500), ..Reserved::default() };
        assert_eq!(words(of_reserved(&weighed, false)), ["CPUShares=512"]);
    }

    #[test]
    fn a_slice_wants_its_parent() {
        let list = slice("a-b.slice", Some("a.slice"), true);
        assert!(list.contains(&Property { name: "Wants", value: Value::Texts(vec!["a.slice".into()]) }));
        assert!(list.contains(&Property::flag("MemoryAccounting", true)));
        assert!(list.contains(&Property::flag("IOAccounting", true)));
        let v1 = slice("a.slice", None, false);
        assert!(v1.contains(&Property::flag("BlockIOAccounting", true)) && v1.len() == list.len() - 1);
    }

    #[test]
    fn without_systemd_a_slice_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let units = Units { systemd: Systemd::at(folder.path().join("x")), told: Mutex::default() };
        let told = units.make("a.slice", None, true).unwrap_err();
        assert!(told.contains("reach systemd at") && told.contains("No such file"), "{told}");
    }
}
