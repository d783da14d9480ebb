//! Whether a volume is to grow on this node, and what its claim is told of that, as upstream's node expander. Pure: the
//! driver is called by [`super::steps`], the claim changed by [`super::owner`].
//!
//! ```text
//! NodeResizePending ─▶ NodeResizeInProgress ─driver done─▶ (none; capacity is the new size)
//!                        └─refused for good─▶ NodeResizeInfeasible (the controller decides)
//! ```
//! A claim of an older resizer has no such status: it is expanded while its capacity is less than its volume's.

use gantry_model::quantity::parse_units;
use serde_json::{Value, json};

use crate::api::{ClaimSize, PersistentVolume};

const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
/// Conditions of a claim that tell of an expansion.
const CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];

/// Why a volume has not grown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrowthError {
    pub(crate) why: String,
    pub(crate) failure: GrowthFailure,
}

/// What that means for another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrowthFailure {
    /// Nobody was asked: the driver is not there.
    Away,
    /// The driver makes no volume larger.
    Unsupported,
    Failed,
    /// No other try can succeed.
    Infeasible,
    /// None can while the volume is in use.
    InUse,
}

/// What is remembered of a volume's growth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct GrowthHistory {
    /// Its driver does not make it larger while it is in use.
    pub(crate) keeps_size: bool,
    /// It was to be made larger, and that has failed.
    pub(super) failed: bool,
}

/// A volume that is to grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expansion {
    /// Of the claim: one that has changed meanwhile is not written over.
    version: String,
    /// As the API writes it.
    size: String,
    /// The same.
    pub(crate) bytes: i64,
    /// The claim is told of each step.
    is_tracked: bool,
    /// The claim asks for another size by now: what fails for good is given up for that.
    is_overtaken: bool,
}

impl Expansion {
    /// Of a claim of that size, which is bound to that volume; none when nothing is to be done.
    pub(crate) fn of(size: &ClaimSize, volume: &PersistentVolume) -> Option<Self> {
        let is_tracked = !size.status.is_empty() || !size.allocated.is_empty();
        let target = if is_tracked { &size.allocated } else { &volume.capacity };
        let [is, of_volume, bytes] =
            [&size.capacity, &volume.capacity, target].map(|amount| parse_units(amount).unwrap_or(0));
        let may = !is_tracked || [PENDING, IN_PROGRESS].contains(&size.status.as_str());
        (is < of_volume && bytes > is && may).then(|| Self {
            version: size.version.clone(),
            size: target.clone(),
            bytes,
            is_tracked,
            is_overtaken: parse_units(&size.requested).is_ok_and(|asked| asked != bytes),
        })
    }

    /// Whether the volume is larger than its claim says.
    pub(crate) fn is_outgrown(size: &ClaimSize, volume: &PersistentVolume) -> bool {
        let [is, of_volume] =
            [&size.capacity, &volume.capacity].map(|amount| parse_units(amount).unwrap_or(0));
        is < of_volume
    }

    /// Whether a claim may wait for its node.
    pub(super) fn may_wait(size: &ClaimSize) -> bool {
        let [is, asked] = [&size.capacity, &size.requested].map(|amount| parse_units(amount).unwrap_or(0));
        match size.status.as_str() {
            PENDING | IN_PROGRESS => true,
            "" => size.allocated.is_empty() && is < asked,
            _ => false,
        }
    }

    /// Whether the claim is told of each step: an older resizer knows of none.
    pub(super) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// It begins; none of a claim that says so already or that is not told.
    pub(super) fn progress(&self, size: &ClaimSize) -> Option<Value> {
        (self.is_tracked && size.status != IN_PROGRESS).then(|| {
            json!({
                "metadata": { "resourceVersion": self.version },
                "status": { "allocatedResourceStatuses": { "storage": IN_PROGRESS } },
            })
        })
    }

    /// It is done.
    pub(super) fn success(&self) -> Value {
        let gone: Vec<Value> =
            CONDITIONS.iter().map(|kind| json!({ "$patch": "delete", "type": kind })).collect();
        json!({ "status": {
            "capacity": { "storage": self.size },
            "allocatedResourceStatuses": { "storage": null },
            "conditions": gone,
        } })
    }

    /// It has failed; `again` when it has before.
    pub(super) fn failure(&self, error: &GrowthError, again: bool, now: &str) -> Value {
        let condition = json!({
            "type": "NodeResizeError",
            "status": "True",
            "lastTransitionTime": now,
            "message": format!("failed to expand pvc with {}", error.why),
        });
        // A claim that asks for another size by now gets it once this one has failed for certain.
        let infeasible = error.failure == GrowthFailure::Infeasible || (again && self.is_overtaken);
        match infeasible {
            false => json!({ "status": { "conditions": [condition] } }),
            true => json!({ "status": {
                "conditions": [condition],
                "allocatedResourceStatuses": { "storage": "NodeResizeInfeasible" },
            } }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PersistentSource;
    use crate::api::fake::volume_from;

    fn volume(capacity: &str) -> PersistentVolume {
        PersistentVolume {
            capacity: capacity.to_owned(),
            ..volume_from(PersistentSource::Other("csi".to_owned()))
        }
    }

    fn size(capacity: &str, allocated: &str, status: &str) -> ClaimSize {
        ClaimSize {
            version: "7".to_owned(),
            requested: "2Gi".to_owned(),
            capacity: capacity.to_owned(),
            allocated: allocated.to_owned(),
            status: status.to_owned(),
        }
    }

    fn of(size: &ClaimSize, capacity: &str) -> Option<Expansion> {
        Expansion::of(size, &volume(capacity))
    }

    #[test]
    fn a_volume_grows_when_the_controller_has_made_room_and_waits_for_the_node() {
        for (is, allocated, status, of_volume, want) in [
            ("1Gi", "2Gi", PENDING, "2Gi", Some(2 << 30)),
            ("1Gi", "2Gi", IN_PROGRESS, "2Gi", Some(2 << 30)),
            ("1Gi", "3Gi", PENDING, "4Gi", Some(3 << 30)),
            ("1Gi", "2Gi", "ControllerResizeInProgress", "2Gi", None),
            ("1Gi", "2Gi", "NodeResizeInfeasible", "2Gi", None),
            ("1Gi", "2Gi", "", "2Gi", None),
            ("2Gi", "2Gi", PENDING, "2Gi", None),
            ("1Gi", "", "", "2Gi", Some(2 << 30)),
            ("2Gi", "", "", "2Gi", None),
            ("1Gi", "", "", "", None),
            ("1Gi", "", "", "much", None),
        ] {
            let size = size(is, allocated, status);
            let found = of(&size, of_volume).map(|expansion| expansion.bytes);
            assert!(found.is_none() || Expansion::may_wait(&size), "{size:?}");
            assert_eq!(found, want, "{is} {allocated} {status} {of_volume}");
        }
    }

    #[test]
    fn a_claim_is_told_in_upstreams_form() {
        let pending = size("1Gi", "2Gi", PENDING);
        let expansion = of(&pending, "2Gi").unwrap();
        let progress = expansion.progress(&pending).unwrap();
        assert_eq!(progress["metadata"]["resourceVersion"], "7");
        assert_eq!(progress["status"]["allocatedResourceStatuses"]["storage"], IN_PROGRESS);
        assert_eq!(expansion.progress(&size("1Gi", "2Gi", IN_PROGRESS)), None);
        let success = expansion.success();
        assert_eq!(success["status"]["capacity"]["storage"], "2Gi");
        assert_eq!(success["status"]["allocatedResourceStatuses"], json!({ "storage": null }));
        let error = |failure| GrowthError { why: "no room".to_owned(), failure };
        let failure = expansion.failure(&error(GrowthFailure::Failed), true, "now");
        assert_eq!(failure["status"]["conditions"][0]["message"], "failed to expand pvc with no room");
        assert_eq!(failure["status"].get("allocatedResourceStatuses"), None);
        assert_eq!(
            expansion.failure(&error(GrowthFailure::Infeasible), false, "now")["status"]["allocatedResourceStatuses"]
                ["storage"],
            "NodeResizeInfeasible"
        );
        let legacy = of(&size("1Gi", "", ""), "2Gi").unwrap();
        assert_eq!(legacy.progress(&size("1Gi", "", "")), None);
    }

    #[test]
    fn what_the_claim_has_overtaken_is_given_up_when_it_fails_again() {
        let overtaken = ClaimSize { requested: "1500Mi".to_owned(), ..size("1Gi", "2Gi", IN_PROGRESS) };
        let expansion = of(&overtaken, "2Gi").unwrap();
        let error = GrowthError { why: "no room".to_owned(), failure: GrowthFailure::Failed };
        let [first, second] = [false, true].map(|again| expansion.failure(&error, again, "now"));
        assert_eq!(first["status"].get("allocatedResourceStatuses"), None);
        assert_eq!(second["status"]["allocatedResourceStatuses"]["storage"], "NodeResizeInfeasible");
    }
}
