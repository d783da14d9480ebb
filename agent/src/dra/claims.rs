//! Which claims pods of this node have, and what drivers gave for them. Pure: owns the bookkeeping and upstream's rules of
//! it; never asks a driver and never writes. Called by [`super::DraManager`].

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::pod::PodUid;

use super::checkpoint::{ClaimEntry, DriverEntry, Nothing, PreparedDevice};

/// Namespace and name of a claim.
pub(super) type ClaimKey = (String, String);

/// How far a claim is. It is not in the checkpoint: after a restart drivers are asked again, since a reboot may have taken
/// away what they had prepared (#141433, #141966).
///
/// ```text
///  (a pod refers to it) ──▶ Referenced ──every driver of it has answered──▶ Prepared
///                            ▲      ▲                                          │
///          kubelet restarts ─┘      └───── a driver is asked to unprepare ─────┘
///                                   │
///                                   └──every driver has answered──▶ (forgotten)
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ClaimStage {
    /// Its drivers are to be asked before a pod starts. They may have been.
    #[default]
    Referenced,
    /// All drivers have it ready.
    Prepared,
}

/// One claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ClaimInfo {
    uid: String,
    /// UIDs of the pods that refer to it, those of an earlier kubelet, too.
    pods: BTreeSet<String>,
    /// What each driver gave; all drivers that it was allocated of.
    drivers: BTreeMap<String, Vec<PreparedDevice>>,
    stage: ClaimStage,
}

/// One claim, as a driver is asked for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AskedClaim {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl AskedClaim {
    pub(super) fn key(&self) -> ClaimKey {
        (self.namespace.clone(), self.name.clone())
    }
}

/// Whom to ask for what.
pub(super) type Batches = BTreeMap<String, Vec<AskedClaim>>;

/// A claim that a pod is to have: its UID and its drivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedClaim {
    pub(super) key: ClaimKey,
    pub(super) uid: String,
    pub(super) drivers: BTreeSet<String>,
}

/// The bookkeeping.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClaimBook(BTreeMap<ClaimKey, ClaimInfo>);

impl ClaimBook {
    /// From a checkpoint.
    pub(super) fn restore(entries: Vec<ClaimEntry>) -> Self {
        let info = |entry: ClaimEntry| {
            let drivers = entry.drivers.unwrap_or_default().into_iter();
            let info = ClaimInfo {
                uid: entry.uid,
                pods: entry.pods.unwrap_or_default().into_keys().collect(),
                drivers: drivers.map(|(name, own)| (name, own.devices.unwrap_or_default())).collect(),
                stage: ClaimStage::Referenced,
            };
            ((entry.namespace, entry.name), info)
        };
        Self(entries.into_iter().map(info).collect())
    }

    /// What is to be known after a restart.
    pub(super) fn checkpoint(&self) -> Vec<ClaimEntry> {
        let driver = |(name, devices): (&String, &Vec<PreparedDevice>)| {
            let devices = Some(devices.clone()).filter(|devices| !devices.is_empty());
            (name.clone(), DriverEntry { devices })
        };
        let entry = |((namespace, name), info): (&ClaimKey, &ClaimInfo)| ClaimEntry {
            uid: info.uid.clone(),
            name: name.clone(),
            namespace: namespace.clone(),
            pods: Some(info.pods.iter().map(|pod| (pod.clone(), Nothing {})).collect()),
            drivers: Some(info.drivers.iter().map(driver).collect()),
        };
        self.0.iter().map(entry).collect()
    }

    /// The pod refers to these from now on. Returns whom to ask for which of them: those that are not prepared.
    ///
    /// # Errors
    /// When another object of the name is still here, in upstream's words. Then nothing has changed.
    pub(super) fn refer(&mut self, pod: &PodUid, wanted: &[WantedClaim]) -> Result<Batches, String> {
        for WantedClaim { key, uid, .. } in wanted {
            if let Some(known) = self.0.get(key).filter(|known| known.uid != *uid) {
                return Err(format!(
                    "old ResourceClaim with same name {} and different UID {} still exists (previous pod force-deleted?!)",
                    key.1, known.uid
                ));
            }
        }
        let mut batches = Batches::new();
        for WantedClaim { key, uid, drivers } in wanted {
            let info = self.0.entry(key.clone()).or_insert_with(|| ClaimInfo {
                uid: uid.clone(),
                drivers: drivers.iter().map(|driver| (driver.clone(), Vec::new())).collect(),
                ..ClaimInfo::default()
            });
            info.pods.insert(pod.to_string());
            if info.stage == ClaimStage::Referenced {
                add(&mut batches, key, info);
            }
        }
        Ok(batches)
    }

    /// What a driver gave for a claim, in place of what it gave before: a second answer is no second device.
    pub(super) fn give(&mut self, claim: &AskedClaim, driver: &str, devices: Vec<PreparedDevice>) {
        if let Some(info) = self.0.get_mut(&claim.key()).filter(|info| info.uid == claim.uid) {
            info.drivers.insert(driver.to_owned(), devices);
        }
    }

    /// All drivers have answered for these.
    pub(super) fn prepare(&mut self, claims: &[WantedClaim]) {
        for claim in claims {
            if let Some(info) = self.0.get_mut(&claim.key).filter(|info| info.uid == claim.uid) {
                info.stage = ClaimStage::Prepared;
            }
        }
    }

    /// The claims that the pod refers to.
    pub(super) fn of_pod(&self, pod: &PodUid) -> Vec<ClaimKey> {
        let refers = |(_, info): &(&ClaimKey, &ClaimInfo)| info.pods.contains(pod.as_str());
        self.0.iter().filter(refers).map(|(key, _)| key.clone()).collect()
    }

    /// Pods that refer to any claim, by UID.
    pub(super) fn pods(&self) -> BTreeSet<PodUid> {
        self.0.values().flat_map(|info| &info.pods).filter_map(|pod| PodUid::parse(pod)).collect()
    }

    /// The pod is over. Claims that others refer to, too, are theirs alone now. Returns whom to ask to unprepare which: those
    /// that nobody else refers to. From now on they count as prepared no more, whatever the answers.
    pub(super) fn leave(&mut self, pod: &PodUid) -> Batches {
        let mut batches = Batches::new();
        for (key, info) in &mut self.0 {
            if !info.pods.contains(pod.as_str()) {
                continue;
            }
            if info.pods.len() > 1 {
                info.pods.remove(pod.as_str());
            } else {
                info.stage = ClaimStage::Referenced;
                add(&mut batches, key, info);
            }
        }
        batches
    }

    /// The drivers have answered for all that the pod alone refers to.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        self.0.retain(|_, info| !(info.pods.len() == 1 && info.pods.contains(pod.as_str())));
    }

    /// What each driver gave for a claim; none when it is not known.
    pub(super) fn devices(&self, key: &ClaimKey) -> Option<&BTreeMap<String, Vec<PreparedDevice>>> {
        self.0.get(key).map(|info| &info.drivers)
    }

    /// Whether any claim has a device of these, by pool and device.
    pub(super) fn has_any(&self, driver: &str, changed: &BTreeSet<(String, String)>) -> bool {
        let devices = self.0.values().filter_map(|info| info.drivers.get(driver)).flatten();
        devices.into_iter().any(|own| changed.contains(&(own.pool.clone(), own.device.clone())))
    }

    /// How many claims are prepared, by driver, and of all.
    pub(super) fn in_use(&self) -> (BTreeMap<String, usize>, usize) {
        let (mut by_driver, mut all) = (BTreeMap::new(), 0);
        for info in self.0.values().filter(|info| info.stage == ClaimStage::Prepared) {
            all += 1;
            for driver in info.drivers.keys() {
                *by_driver.entry(driver.clone()).or_insert(0) += 1;
            }
        }
        (by_driver, all)
    }
}

fn add(batches: &mut Batches, key: &ClaimKey, info: &ClaimInfo) {
    let (namespace, name) = key.clone();
    let claim = AskedClaim { namespace, name, uid: info.uid.clone() };
    for driver in info.drivers.keys() {
        batches.entry(driver.clone()).or_default().push(claim.clone());
    }
}

#[cfg(test)]
mod tests;
