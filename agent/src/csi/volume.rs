//! How far a volume is on this node, and its next step. Pure: owns the two state machines; what a step does is
//! [`super::steps`]'. Called by [`super::owner`].

use std::collections::BTreeMap;

use gantry_model::pod::PodUid;

use super::expand::GrowthHistory;
use super::label::VolumeLabel;

/// How far the device is, which is mounted once for all pods where the driver stages volumes.
///
/// ```text
///            begins                  staged
///  Absent ───────────▶ Uncertain ───────────▶ Staged
///    ▲                  │  │  ▲                  │
///    ├──────refused─────┘  │  └───unstage begins─┘
///    └──────unstaged───────┘
/// ```
/// Found is Uncertain by a file that an earlier kubelet has left: a refusal does not undo what that one did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Device {
    #[default]
    Absent,
    Uncertain,
    Found,
    Staged,
}

/// How far a pod's mount of the volume is, or its map of the device.
///
/// ```text
///            begins                 published                 begins
///  Wanted ───────────▶ Uncertain ─────────────▶ Published ─────────────▶ Uncertain ──unpublished──▶ (gone)
///    ▲                     │
///    └───────refused───────┘
/// ```
/// Found is to Uncertain what [`Device::Found`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Publication {
    Wanted,
    Uncertain,
    Found,
    Published,
}

/// What comes next for a pod that wants the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Another pod has it, and one alone may.
    Refuse,
    /// Another pod has it yet, with another label.
    Wait,
    /// Its device is mounted with another label, and no pod has it.
    Restage,
    /// The controller has not attached it yet.
    Attach,
    Stage,
    Publish,
    Done,
}

impl Step {
    /// Its name in a pod's timeline; none of what takes no time.
    pub(super) fn stage(self) -> Option<&'static str> {
        match self {
            Self::Attach => Some("volumes.attach"),
            Self::Restage | Self::Stage => Some("volumes.stage"),
            Self::Publish => Some("volumes.publish"),
            Self::Refuse | Self::Wait | Self::Done => None,
        }
    }
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Nothing of it was done, and nothing is under way.
    Refused,
    /// It may be done, or be done yet.
    Unknown,
}

/// What a step depends on beside the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts<'a> {
    /// The node's status says so, or nobody attaches such volumes.
    pub(super) attached: bool,
    /// It lives and ends with its pod, and is never staged.
    pub(super) ephemeral: bool,
    /// ReadWriteOncePod is its only access mode.
    pub(super) one_pod: bool,
    /// The driver is to publish it again for a pod that has it.
    pub(super) republish: bool,
    /// With which SELinux label the pod is to have it; none where that is no matter.
    pub(super) label: Option<&'a str>,
}

/// One volume of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Volume {
    device: Device,
    pods: BTreeMap<PodUid, Publication>,
    label: VolumeLabel,
    /// Nobody has it any more: whoever waited for a turn looks for it anew.
    pub(super) gone: bool,
    pub(super) growth: GrowthHistory,
}

impl Volume {
    /// By the files of an earlier kubelet.
    pub(super) fn found(device: bool, pods: impl IntoIterator<Item = PodUid>, label: Option<String>) -> Self {
        let device = if device { Device::Found } else { Device::Absent };
        let pods = pods.into_iter().map(|pod| (pod, Publication::Found)).collect();
        Self { device, pods, label: VolumeLabel::found(label), ..Self::default() }
    }

    /// With which label its pods want it.
    pub(super) fn label(&mut self) -> &mut VolumeLabel {
        &mut self.label
    }

    /// With which it is to be mounted for that pod. Where it may have it, nobody mounts it otherwise beneath it.
    pub(super) fn label_for<'a>(&'a self, pod: &PodUid, wanted: &'a str) -> &'a str {
        let has = self.may_have(pod);
        self.label.mounted().filter(|_| has).unwrap_or(wanted)
    }

    /// A pod is to have it.
    pub(super) fn want(&mut self, pod: &PodUid) {
        self.pods.entry(pod.clone()).or_insert(Publication::Wanted);
    }

    /// A pod that has wanted it, and no more, does not any longer.
    pub(super) fn forget(&mut self, pod: &PodUid) {
        if self.pods.get(pod) == Some(&Publication::Wanted) {
            self.pods.remove(pod);
            self.label.leave(pod);
        }
    }

    /// For that pod.
    pub(super) fn next(&self, pod: &PodUid, facts: Facts<'_>) -> Step {
        let has = |(other, publication): (&PodUid, &Publication)| {
            other != pod && *publication != Publication::Wanted
        };
        if self.pods.get(pod) == Some(&Publication::Published) {
            return match (facts.republish, facts.attached) {
                (false, _) => Step::Done,
                (true, false) => Step::Attach,
                (true, true) => Step::Publish,
            };
        }
        if facts.label.is_some_and(|label| self.label.differs(label)) && !self.may_have(pod) {
            return if self.pods.iter().any(has) { Step::Wait } else { Step::Restage };
        }
        if facts.one_pod && self.pods.iter().any(has) {
            return Step::Refuse;
        }
        if !facts.attached {
            return Step::Attach;
        }
        if !facts.ephemeral && self.device != Device::Staged { Step::Stage } else { Step::Publish }
    }

    /// Whether it is mounted for that pod, or an earlier kubelet or a call that was cut off may have mounted it.
    pub(super) fn may_have(&self, pod: &PodUid) -> bool {
        matches!(self.pods.get(pod), Some(Publication::Found | Publication::Published))
    }

    /// The driver is about to be called.
    pub(super) fn begin_stage(&mut self, label: &str) {
        self.label.mount(label);
        if self.device == Device::Absent {
            self.device = Device::Uncertain;
        }
    }

    /// It has answered, or has not.
    pub(super) fn end_stage(&mut self, outcome: Outcome) {
        self.device = match (outcome, self.device) {
            (Outcome::Done, _) => Device::Staged,
            (Outcome::Refused, Device::Uncertain) => Device::Absent,
            (_, device) => device,
        };
        self.settle();
    }

    /// A label is that of a mount.
    fn settle(&mut self) {
        let has = |publication: &Publication| *publication != Publication::Wanted;
        if self.device == Device::Absent && !self.pods.values().any(has) {
            self.label.unmount();
        }
    }

    /// The driver is about to be called for that pod.
    pub(super) fn begin_publish(&mut self, pod: &PodUid, label: &str) {
        self.label.mount(label);
        if let Some(publication @ Publication::Wanted) = self.pods.get_mut(pod) {
            *publication = Publication::Uncertain;
        }
    }

    /// It has answered, or has not.
    pub(super) fn end_publish(&mut self, pod: &PodUid, outcome: Outcome) {
        let Some(publication) = self.pods.get_mut(pod) else { return };
        *publication = match (outcome, *publication) {
            (Outcome::Done, _) => Publication::Published,
            (Outcome::Refused, Publication::Uncertain) => Publication::Wanted,
            (_, publication) => publication,
        };
        self.settle();
    }

    /// The pod may have it, and is not to run with it: all of it is done again.
    pub(super) fn doubt(&mut self, pod: &PodUid) {
        if let Some(publication @ Publication::Published) = self.pods.get_mut(pod) {
            *publication = Publication::Found;
        }
    }

    /// Whether the driver has to be asked to take the pod's mount back; it is uncertain from then on.
    pub(super) fn begin_unpublish(&mut self, pod: &PodUid) -> bool {
        self.label.leave(pod);
        match self.pods.get_mut(pod) {
            None | Some(Publication::Wanted) => false,
            Some(publication) => {
                *publication = Publication::Found;
                true
            }
        }
    }

    /// The pod's mount is no more.
    pub(super) fn unpublished(&mut self, pod: &PodUid) {
        self.pods.remove(pod);
        self.settle();
    }

    /// Whether the device is to be taken back: no pod has or wants it. It is uncertain from then on.
    pub(super) fn begin_unstage(&mut self) -> bool {
        if !self.pods.is_empty() || self.device == Device::Absent {
            return false;
        }
        self.device = Device::Found;
        true
    }

    /// Its device is taken back for a pod that is to have it with another label.
    pub(super) fn begin_restage(&mut self) {
        self.device = Device::Found;
    }

    /// The device is no more.
    pub(super) fn unstaged(&mut self) {
        self.device = Device::Absent;
        self.settle();
    }

    /// Whether nothing of it is on this node, and nobody wants it.
    pub(super) fn is_over(&self) -> bool {
        self.pods.is_empty() && self.device == Device::Absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Facts<'static> =
        Facts { attached: true, ephemeral: false, one_pod: false, republish: false, label: None };

    fn uid(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    fn published(volume: &mut Volume, pod: &str) {
        volume.want(&uid(pod));
        volume.begin_stage("");
        volume.end_stage(Outcome::Done);
        volume.begin_publish(&uid(pod), "");
        volume.end_publish(&uid(pod), Outcome::Done);
    }

    #[test]
    fn a_volume_is_attached_staged_and_published_and_taken_back_in_reverse() {
        let (mut volume, a) = (Volume::default(), uid("a"));
        volume.want(&a);
        assert_eq!(volume.next(&a, Facts { attached: false, ..HERE }), Step::Attach);
        assert_eq!(volume.next(&a, HERE), Step::Stage);
        assert_eq!(volume.next(&a, Facts { ephemeral: true, ..HERE }), Step::Publish);
        volume.begin_stage("");
        volume.end_stage(Outcome::Done);
        assert_eq!(volume.next(&a, HERE), Step::Publish);
        volume.begin_publish(&a, "");
        volume.end_publish(&a, Outcome::Done);
        assert_eq!(volume.next(&a, Facts { attached: false, ..HERE }), Step::Done, "it has it");
        assert!(!volume.begin_unstage(), "a pod has it");
        assert!(volume.begin_unpublish(&a));
        volume.unpublished(&a);
        assert!(!volume.is_over() && volume.begin_unstage());
        volume.unstaged();
        assert!(volume.is_over());
    }

    #[test]
    fn what_nobody_knows_is_taken_back_and_what_was_refused_is_not() {
        let (mut volume, a) = (Volume::default(), uid("a"));
        volume.want(&a);
        volume.begin_stage("");
        volume.end_stage(Outcome::Refused);
        volume.forget(&a);
        assert!(volume.is_over());
        volume.want(&a);
        volume.begin_stage("");
        volume.end_stage(Outcome::Unknown);
        assert_eq!(volume.next(&a, HERE), Step::Stage, "it is asked again");
        volume.forget(&a);
        assert!(volume.begin_unstage(), "it may be staged");
        let mut volume = Volume::default();
        volume.want(&a);
        volume.begin_stage("");
        volume.end_stage(Outcome::Done);
        volume.begin_publish(&a, "");
        volume.end_publish(&a, Outcome::Refused);
        assert!(!volume.begin_unpublish(&a));
        volume.begin_publish(&a, "");
        volume.end_publish(&a, Outcome::Unknown);
        assert!(volume.begin_unpublish(&a));
    }

    #[test]
    fn what_an_earlier_kubelet_left_is_asked_for_again_and_no_refusal_undoes_it() {
        let (mut volume, a) = (Volume::found(true, [uid("a")], None), uid("a"));
        assert_eq!(volume.next(&a, HERE), Step::Stage);
        volume.begin_stage("");
        volume.end_stage(Outcome::Refused);
        volume.begin_publish(&a, "");
        volume.end_publish(&a, Outcome::Refused);
        assert!(volume.begin_unpublish(&a));
        volume.unpublished(&a);
        assert!(volume.begin_unstage());
    }

    #[test]
    fn a_volume_that_is_published_again_stays_the_pods_whatever_comes_of_it() {
        let (mut volume, a) = (Volume::default(), uid("a"));
        published(&mut volume, "a");
        let again = Facts { republish: true, one_pod: true, ..HERE };
        assert_eq!(volume.next(&a, Facts { attached: false, ..again }), Step::Attach);
        assert_eq!(volume.next(&a, again), Step::Publish);
        for outcome in [Outcome::Refused, Outcome::Unknown, Outcome::Done] {
            assert!(volume.may_have(&a));
            volume.begin_publish(&a, "");
            volume.end_publish(&a, outcome);
            assert_eq!(volume.next(&a, HERE), Step::Done, "{outcome:?}");
        }
    }

    #[test]
    fn a_volume_of_one_pod_is_for_the_pod_that_has_it() {
        let (mut volume, a, b) = (Volume::default(), uid("a"), uid("b"));
        let alone = Facts { one_pod: true, ..HERE };
        published(&mut volume, "a");
        volume.want(&b);
        assert_eq!((volume.next(&a, alone), volume.next(&b, alone)), (Step::Done, Step::Refuse));
        assert_eq!(volume.next(&b, HERE), Step::Publish);
        volume.begin_unpublish(&a);
        assert_eq!(volume.next(&b, alone), Step::Refuse, "it may have it yet");
        volume.unpublished(&a);
        assert_eq!(volume.next(&b, alone), Step::Publish);
    }

    #[test]
    fn a_volume_with_another_label_is_unstaged_first_and_kept_for_the_pod_that_has_it() {
        let (mut volume, a, b) = (Volume::default(), uid("a"), uid("b"));
        let with = |label| Facts { label: Some(label), ..HERE };
        volume.want(&a);
        volume.begin_stage("x");
        volume.end_stage(Outcome::Done);
        volume.begin_publish(&a, "x");
        volume.end_publish(&a, Outcome::Done);
        volume.want(&b);
        assert_eq!((volume.next(&b, with("y")), volume.next(&b, with("x"))), (Step::Wait, Step::Publish));
        assert_eq!(volume.next(&b, HERE), Step::Publish, "labels are no matter to it");
        assert!(volume.begin_unpublish(&a));
        assert_eq!(volume.next(&b, with("y")), Step::Wait, "it may have it yet");
        volume.unpublished(&a);
        assert_eq!(volume.next(&b, with("y")), Step::Restage);
        volume.begin_restage();
        assert_eq!(volume.next(&b, with("y")), Step::Restage, "until it has worked");
        volume.unstaged();
        assert_eq!(volume.next(&b, with("y")), Step::Stage);
        // Of an earlier kubelet: its pod runs with what it has.
        let found = Volume::found(true, [a.clone()], Some(String::new()));
        assert_eq!((found.next(&a, with("x")), found.label_for(&a, "x")), (Step::Stage, ""));
        assert_eq!((found.next(&b, with("x")), found.label_for(&b, "x")), (Step::Wait, "x"));
    }

    #[test]
    fn a_label_is_forgotten_with_the_mount_that_was_refused() {
        let (mut volume, a) = (Volume::default(), uid("a"));
        let with = |label| Facts { label: Some(label), ..HERE };
        volume.want(&a);
        for (outcome, step) in [(Outcome::Refused, Step::Stage), (Outcome::Unknown, Step::Restage)] {
            volume.begin_stage("x");
            volume.end_stage(outcome);
            assert_eq!(volume.next(&a, with("y")), step, "{outcome:?}");
        }
    }
}
