//! Which pods should be there: those of files and those of the folder, without those that somebody
//! stopped. Pure: owns what was wanted before; never reads a file. Called by [`super::Session`].

use std::collections::BTreeSet;

use gantry_agent::model::pod::{Pod, PodUid};
use gantry_agent::ports;
use gantry_agent::static_pods::choice::Found;

/// The choice so far.
#[derive(Debug)]
pub(super) struct Wanted {
    files: Vec<Pod>,
    applied: BTreeSet<PodUid>,
    /// Came to their end by `gantry stop`; they stay away until their manifest changes.
    stopped: BTreeSet<PodUid>,
}

impl Wanted {
    pub(super) fn new(files: Vec<Pod>) -> Self {
        Self { files, applied: BTreeSet::new(), stopped: BTreeSet::new() }
    }

    /// All pods that should be there, given those `there` now, and what is wrong with the others.
    pub(super) fn choose(&mut self, there: &BTreeSet<PodUid>, found: &Found) -> (Vec<Pod>, Vec<String>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_agent::manifest::{Object, parse_text};
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
        let found = Found { pods: vec![fixed.clone()], problems: vec![], ..Found::default() };
        let mut wanted = Wanted::new(vec![file.clone()]);
        let both = wanted.choose(&BTreeSet::new(), &found).0;
        assert_eq!(uids(&both), uids(&[file.clone(), fixed.clone()]));
        assert_eq!(wanted.choose(&uids(&both), &found).0.len(), 2);
        // Both were stopped: only the changed one comes again.
        let changed = Found { pods: vec![pod("static", 1002)], problems: vec![], ..Found::default() };
        assert_eq!(wanted.choose(&BTreeSet::new(), &found).0, vec![]);
        assert_eq!(wanted.choose(&BTreeSet::new(), &changed).0, changed.pods);
        // As it was before is a change, too.
        assert_eq!(wanted.choose(&uids(&changed.pods), &found).0, vec![fixed]);
    }

    #[test]
    fn a_static_pod_that_wants_a_files_port_is_left_out_and_told() {
        let mut wanted = Wanted::new(vec![pod("file", 1000)]);
        let found = Found {
            pods: vec![pod("thief", 1000), pod("other", 1001)],
            problems: vec![],
            ..Found::default()
        };
        let (pods, problems) = wanted.choose(&BTreeSet::new(), &found);
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["file", "other"]);
        let problem = problems.first().unwrap();
        assert!(problem.contains("default/thief") && problem.contains("1000/TCP"), "{problem}");
    }
}
