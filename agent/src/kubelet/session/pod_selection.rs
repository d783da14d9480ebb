//! Which pods should be there: those of files, those that were added and those of the folder, without those that
//! somebody stopped. Pure: owns what was wanted before; never reads a file. Called by [`super::Session`].

use std::collections::BTreeSet;

use gantry_model::pod::{Pod, PodUid};

use crate::api::files::Change;
use crate::ports;
use crate::static_pods::choice::StaticPods;

/// The choice so far.
#[derive(Debug)]
pub(super) struct PodSelection {
    files: Vec<Pod>,
    applied: BTreeSet<PodUid>,
    /// Came to their end by `gantry stop`; they stay away until their manifest changes.
    stopped: BTreeSet<PodUid>,
}

impl PodSelection {
    pub(super) fn new(files: Vec<Pod>) -> Self {
        Self { files, applied: BTreeSet::new(), stopped: BTreeSet::new() }
    }

    /// Takes more pods as if their files had been given; all or none. `there` are those that nobody stopped.
    ///
    /// # Errors
    /// When one is in the way of a pod that stays, in words.
    pub(super) fn add(
        &mut self,
        new: &[Pod],
        there: &BTreeSet<PodUid>,
        found: &StaticPods,
        replace: bool,
    ) -> Result<Vec<Change>, String> {
        let mut files: Vec<Pod> = self.files.iter().filter(|pod| there.contains(&pod.uid)).cloned().collect();
        let mut changes = Vec::with_capacity(new.len());
        let named: BTreeSet<String> = new.iter().map(Pod::full_name).collect();
        let same = |pod: &Pod| new.iter().any(|other| other.uid == pod.uid);
        // First those that give way: their ports are free for all new ones.
        let old: BTreeSet<String> = files
            .iter()
            .filter(|pod| named.contains(&pod.full_name()) && !same(pod))
            .map(Pod::full_name)
            .collect();
        if let Some(name) = old.first().filter(|_| !replace) {
            return Err(format!(
                "pod {name} is here already, described otherwise: `gantry apply -f` puts the new one in its place, \
                 `gantry stop` ends it"
            ));
        }
        files.retain(|pod| !old.contains(&pod.full_name()));
        for pod in new {
            if files.iter().any(|other| other.uid == pod.uid) {
                changes.push(Change::Unchanged);
                continue;
            }
            let others = files.iter().chain(found.pods.iter().filter(|other| there.contains(&other.uid)));
            if let Some(problem) = others.into_iter().find_map(|other| in_the_way(pod, other)) {
                return Err(problem);
            }
            files.push(pod.clone());
            changes.push(if old.contains(&pod.full_name()) { Change::Configured } else { Change::Created });
        }
        self.stopped.retain(|uid| !new.iter().any(|pod| pod.uid == *uid));
        self.files = files;
        // One that was stopped and comes again was not applied yet.
        self.applied.retain(|uid| there.contains(uid));
        Ok(changes)
    }

    /// All pods that should be there, given those `there` now, and what is wrong with the others.
    pub(super) fn choose(&mut self, there: &BTreeSet<PodUid>, found: &StaticPods) -> (Vec<Pod>, Vec<String>) {
        let mut problems: Vec<String> =
            found.problems.iter().map(|p| format!("{}: {}", p.path.display(), p.message)).collect();
        let mut pods = self.files.clone();
        for pod in &found.pods {
            match self.files.iter().find_map(|other| clash(pod, other)) {
                Some(problem) => problems.push(problem),
                None => pods.push(pod.clone()),
            }
        }
        let known: BTreeSet<PodUid> = pods.iter().map(|pod| pod.uid.clone()).collect();
        self.stopped.extend(self.applied.difference(there).cloned());
        // A file that goes and comes again is a new wish.
        self.stopped.retain(|uid| known.contains(uid));
        pods.retain(|pod| !self.stopped.contains(&pod.uid));
        self.applied = pods.iter().map(|pod| pod.uid.clone()).collect();
        (pods, problems)
    }
}

/// A pod of the folder with one of a file: the latter was asked for by name.
fn clash(pod: &Pod, other: &Pod) -> Option<String> {
    let (name, other_name) = (pod.full_name(), other.full_name());
    if name == other_name || pod.uid == other.uid {
        return Some(format!("static pod {name} is left out: pod {other_name} of a given file is the same"));
    }
    ports::clash(pod, other).map(|port| {
        format!(
            "static pod {name} is left out: it wants port {port} of the node, which pod {other_name} of a \
             given file has already: give it another hostPort"
        )
    })
}

/// A pod that is added with one that is there and stays.
fn in_the_way(pod: &Pod, other: &Pod) -> Option<String> {
    let (name, other_name) = (pod.full_name(), other.full_name());
    if name == other_name || pod.uid == other.uid {
        return Some(format!("pod {name} is not added: static pod {other_name} is the same"));
    }
    ports::clash(pod, other).map(|port| {
        format!(
            "pod {name} is not added: it wants port {port} of the node, which pod {other_name} has already: give it \
             another hostPort"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Object, parse_text};
    use std::path::Path;

    fn pod(name: &str, port: u16) -> Pod {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - name: c\n    \
             image: i\n    ports: [{{containerPort: 80, hostPort: {port}}}]\n"
        );
        match parse_text(Path::new("x"), &text).unwrap().remove(0) {
            Object::Pod { pod, .. } => *pod,
            other => panic!("{other:?}"),
        }
    }

    fn uids(pods: &[Pod]) -> BTreeSet<PodUid> {
        pods.iter().map(|pod| pod.uid.clone()).collect()
    }

    #[test]
    fn a_stopped_pod_stays_away_until_its_manifest_changes() {
        let (file, fixed) = (pod("file", 1000), pod("static", 1001));
        let found = StaticPods { pods: vec![fixed.clone()], problems: vec![], ..StaticPods::default() };
        let mut wanted = PodSelection::new(vec![file.clone()]);
        let both = wanted.choose(&BTreeSet::new(), &found).0;
        assert_eq!(uids(&both), uids(&[file.clone(), fixed.clone()]));
        assert_eq!(wanted.choose(&uids(&both), &found).0.len(), 2);
        // Both were stopped: only the changed one comes again.
        let changed =
            StaticPods { pods: vec![pod("static", 1002)], problems: vec![], ..StaticPods::default() };
        assert_eq!(wanted.choose(&BTreeSet::new(), &found).0, vec![]);
        assert_eq!(wanted.choose(&BTreeSet::new(), &changed).0, changed.pods);
        // As it was before is a change, too.
        assert_eq!(wanted.choose(&uids(&changed.pods), &found).0, vec![fixed]);
    }

    #[test]
    fn a_static_pod_that_wants_a_files_port_is_left_out_and_told() {
        let mut wanted = PodSelection::new(vec![pod("file", 1000)]);
        let found = StaticPods {
            pods: vec![pod("thief", 1000), pod("other", 1001)],
            problems: vec![],
            ..StaticPods::default()
        };
        let (pods, problems) = wanted.choose(&BTreeSet::new(), &found);
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["file", "other"]);
        let problem = problems.first().unwrap();
        assert!(problem.contains("default/thief") && problem.contains("1000/TCP"), "{problem}");
    }

    #[test]
    fn pods_are_added_all_or_none() {
        let (web, none) = (pod("web", 1000), StaticPods::default());
        let mut wanted = PodSelection::new(vec![web.clone()]);
        let there = uids(&wanted.choose(&BTreeSet::new(), &none).0);
        let mut add = |new: &[Pod], replace| wanted.add(new, &there, &none, replace);
        let error = add(&[pod("a", 1001), pod("thief", 1000)], true).unwrap_err();
        assert!(error.starts_with("pod default/thief is not added: it wants port 1000/TCP"), "{error}");
        assert_eq!(add(&[web.clone(), pod("b", 1001)], false).unwrap(), [Change::Unchanged, Change::Created]);
        // Another description of a pod that is here.
        let error = add(&[pod("web", 1002)], false).unwrap_err();
        assert!(
            error.contains("default/web is here already") && error.contains("gantry apply -f"),
            "{error}"
        );
        let changes = add(&[pod("web", 1002), pod("c", 1000)], true).unwrap();
        assert_eq!(changes, [Change::Configured, Change::Created]);
    }

    #[test]
    fn a_stopped_pod_that_is_added_again_comes_again() {
        let (web, none) = (pod("web", 1000), StaticPods::default());
        let mut wanted = PodSelection::new(vec![web.clone()]);
        wanted.choose(&BTreeSet::new(), &none);
        // It was stopped, and nobody looked since.
        let nobody = BTreeSet::new();
        assert_eq!(wanted.add(std::slice::from_ref(&web), &nobody, &none, false).unwrap(), [Change::Created]);
        assert_eq!(uids(&wanted.choose(&nobody, &none).0), uids(&[web]));
    }

    #[test]
    fn a_pod_of_the_folder_is_in_the_way_until_it_was_stopped() {
        let found = StaticPods { pods: vec![pod("fixed", 1000)], problems: vec![], ..StaticPods::default() };
        let mut wanted = PodSelection::new(Vec::new());
        let there = uids(&wanted.choose(&BTreeSet::new(), &found).0);
        let error = wanted.add(&[pod("web", 1000)], &there, &found, true).unwrap_err();
        assert!(error.contains("which pod default/fixed has already"), "{error}");
        let gone = BTreeSet::new();
        assert_eq!(wanted.add(&[pod("web", 1000)], &gone, &found, true).unwrap(), [Change::Created]);
    }
}
