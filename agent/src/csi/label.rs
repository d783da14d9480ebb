//! With which SELinux label a volume is mounted, and which its pods want. Pure: owns who wants it so, and upstream's words
//! for those that differ. Kept by [`super::volume`].

use std::collections::BTreeSet;

use gantry_model::pod::PodUid;

/// With what a pod wants a volume, on a node that has SELinux.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedLabel {
    /// Of its files; empty without one.
    pub(crate) label: String,
    /// As metrics have it: `RWX`, `ROX`, `RWO`, `RWOP`, `inline`.
    pub(crate) access_mode: &'static str,
}

/// How a pod's wish stands with those before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LabelWish {
    /// Nobody else wants the volume.
    First,
    /// It wants what it or others want already.
    Same,
    /// Others want that one.
    Other(String),
}

/// Of one volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VolumeLabel {
    /// Who wants it now.
    pods: BTreeSet<PodUid>,
    /// What the first of these has wanted.
    wanted: String,
    /// With which it is mounted, or may be; none while it is not.
    mounted: Option<String>,
}

impl VolumeLabel {
    /// As an earlier kubelet has mounted it.
    pub(super) fn found(mounted: Option<String>) -> Self {
        Self { mounted, ..Self::default() }
    }

    /// A pod wants it. One that wants another than those before it is not among them, unless it joins.
    pub(super) fn want(&mut self, pod: &PodUid, label: &str) -> LabelWish {
        if self.pods.contains(pod) {
            return LabelWish::Same;
        }
        if self.pods.is_empty() {
            label.clone_into(&mut self.wanted);
            self.pods.insert(pod.clone());
            return LabelWish::First;
        }
        if self.wanted != label {
            return LabelWish::Other(self.wanted.clone());
        }
        self.join(pod);
        LabelWish::Same
    }

    /// It takes what those before it want.
    pub(super) fn join(&mut self, pod: &PodUid) {
        self.pods.insert(pod.clone());
    }

    /// It does not want it any more.
    pub(super) fn leave(&mut self, pod: &PodUid) {
        self.pods.remove(pod);
    }

    /// Whether it is mounted with another one.
    pub(super) fn differs(&self, label: &str) -> bool {
        self.mounted.as_ref().is_some_and(|mounted| mounted != label)
    }

    /// It is about to be mounted, unless it is.
    pub(super) fn mount(&mut self, label: &str) {
        self.mounted.get_or_insert_with(|| label.to_owned());
    }

    /// Nothing of it is mounted.
    pub(super) fn unmount(&mut self) {
        self.mounted = None;
    }

    pub(super) fn mounted(&self) -> Option<&str> {
        self.mounted.as_deref()
    }
}

/// Of two pods that want one volume with different labels.
pub(super) fn conflict(volume: &str, old: &str, new: &str) -> String {
    format!("conflicting SELinux labels of volume {volume}: {old:?} and {new:?}")
}

/// Of a volume that another pod has yet, with another label.
pub(super) fn waits(unique_name: &str) -> String {
    format!(
        "waiting for unmount of volume {unique_name:?}, because it is already mounted to a different pod with a different SELinux label"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pod_says_which_label_until_nobody_wants_the_volume() {
        let [a, b] = ["a", "b"].map(|uid| PodUid::parse(uid).unwrap());
        let mut label = VolumeLabel::default();
        assert_eq!(label.want(&a, "x"), LabelWish::First);
        // A level by chance is another one at each look: the first counts.
        assert_eq!((label.want(&a, "y"), label.want(&b, "x")), (LabelWish::Same, LabelWish::Same));
        label.leave(&b);
        assert_eq!(label.want(&b, "y"), LabelWish::Other("x".to_owned()));
        label.join(&b);
        label.leave(&a);
        assert_eq!(label.want(&a, "y"), LabelWish::Other("x".to_owned()), "b wants it as a did");
        label.leave(&b);
        assert_eq!(label.want(&a, "y"), LabelWish::First);
    }

    #[test]
    fn what_is_mounted_keeps_its_label_until_it_is_not() {
        let mut label = VolumeLabel::default();
        assert!(!label.differs("x"), "it is not mounted");
        label.mount("x");
        label.mount("y");
        assert!(!label.differs("x") && label.differs("y") && label.differs(""));
        label.unmount();
        assert!(!label.differs("y"));
    }
}
