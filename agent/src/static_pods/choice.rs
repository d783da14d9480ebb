//! Which pods of a manifest folder run. Pure: owns what was read so far and the choice between files
//! that clash; never reads one. Called by [`super::follow`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_model::pod::{Pod, PodUid};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as Described;

use super::describe::describe;
use super::rules::{self, Source};
use crate::ports;

/// Where a pod stands that a pod of a URL clashes with.
const OF_FOLDER: &str = "a file of the manifest folder";

/// One file, read: the pod, and whether it gives its own UID.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) path: PathBuf,
    pub(super) result: Result<(Pod, bool), String>,
    /// In its own words, when there is a pod.
    pub(super) raw: Option<Arc<Described>>,
}

/// What the folder comes to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StaticPods {
    /// All that should run, the longest known first.
    pub pods: Vec<Pod>,
    /// Whether the folder was ever read: before, nothing is known of it.
    pub read: bool,
    /// Files that are not what they should be, by path.
    pub problems: Vec<Problem>,
    /// The pods as the API shall show them.
    pub described: BTreeMap<PodUid, Arc<Described>>,
}

/// A file, or the folder, that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Which.
    pub path: PathBuf,
    /// What is wrong, and what to do.
    pub message: String,
}

/// A file that was right when it was last read and understood.
#[derive(Debug, Clone)]
struct Good {
    pod: Pod,
    uid_given: bool,
    raw: Option<Arc<Described>>,
    /// When its present content was first met.
    seen: Timestamp,
    /// When there was first a pod in this file: who came first keeps names and ports.
    since: Timestamp,
}

/// Everything known of the folder.
#[derive(Debug)]
pub(super) struct Choice {
    node: String,
    good: BTreeMap<PathBuf, Good>,
    bad: BTreeMap<PathBuf, String>,
    read: bool,
}

impl Choice {
    pub(super) fn new(node: String) -> Self {
        Self { node, good: BTreeMap::new(), bad: BTreeMap::new(), read: false }
    }

    /// Every file that is there now. One that is half written keeps the pod it had (trap 10); one
    /// that is gone loses it.
    pub(super) fn take(&mut self, readings: Vec<Reading>, now: Timestamp) {
        let before = std::mem::take(&mut self.good);
        self.bad.clear();
        self.read = true;
        for Reading { path, result, raw } in readings {
            let old = before.get(&path);
            match result {
                Ok((pod, uid_given)) => {
                    let same = old.filter(|old| old.pod == pod);
                    let seen = same.map_or(now, |old| old.seen);
                    let since = old.map_or(now, |old| old.since);
                    self.good.insert(path, Good { pod, uid_given, raw, seen, since });
                }
                Err(message) => {
                    if let Some(old) = old {
                        self.good.insert(path.clone(), old.clone());
                    }
                    self.bad.insert(path, message);
                }
            }
        }
    }

    /// Files that went since the last look, by their names in the folder: one that is there again,
    /// the same to a letter, is met for the first time, and its pod runs anew (as upstream).
    pub(super) fn lose(&mut self, removed: &BTreeSet<OsString>) {
        self.good.retain(|path, _| path.file_name().is_none_or(|name| !removed.contains(name)));
    }

    /// Nothing is known to have changed.
    pub(super) fn cannot_read(&mut self, folder: &Path, message: &str) {
        self.bad.insert(folder.to_owned(), format!("cannot read the manifest folder: {message}"));
    }

    /// Of files that clash the one that was there first wins; the others are told, and get their
    /// turn when it goes.
    pub(super) fn static_pods(&self) -> StaticPods {
        let mut order: Vec<(&PathBuf, &Good)> = self.good.iter().collect();
        order.sort_by_key(|(path, good)| (good.since, *path));
        let mut problems = self.bad.clone();
        let mut chosen: Vec<(&PathBuf, Pod)> = Vec::new();
        let mut described = BTreeMap::new();
        for (path, good) in order {
            let adopted = rules::adopt(
                good.pod.clone(),
                good.uid_given,
                Source::File(path),
                &self.node,
                &good.seen.to_string(),
            );
            match adopted.and_then(|pod| {
                let chosen = chosen.iter().map(|(path, pod)| (path.as_path(), pod));
                clash(&pod, chosen).map_or(Ok(pod), Err)
            }) {
                Ok(pod) => {
                    if let Some(raw) = &good.raw {
                        described.insert(pod.uid.clone(), Arc::new(describe(raw, &pod)));
                    }
                    chosen.push((path, pod));
                }
                Err(message) => {
                    problems.entry(path.clone()).or_insert(message);
                }
            }
        }
        StaticPods {
            pods: chosen.into_iter().map(|(_, pod)| pod).collect(),
            read: self.read,
            problems: problems.into_iter().map(|(path, message)| Problem { path, message }).collect(),
            described,
        }
    }
}

impl StaticPods {
    /// The folder's with those of the `url`, which give way where they clash.
    pub(super) fn join(mut self, fetched: &Self, url: &Path) -> Self {
        self.read &= fetched.read;
        self.problems.extend(fetched.problems.iter().cloned());
        for pod in &fetched.pods {
            let files = self.pods.iter().filter(|pod| rules::is_of_file(pod));
            if let Some(message) = clash(pod, files.map(|other| (Path::new(OF_FOLDER), other))) {
                self.problems.push(Problem { path: url.to_owned(), message });
                continue;
            }
            let described = fetched.described.get(&pod.uid);
            self.described.extend(described.map(|described| (pod.uid.clone(), described.clone())));
            self.pods.push(pod.clone());
        }
        self
    }
}

/// With one that was chosen before.
pub(super) fn clash<'a>(pod: &Pod, mut chosen: impl Iterator<Item = (&'a Path, &'a Pod)>) -> Option<String> {
    chosen.find_map(|(path, other)| {
        if other.full_name() == pod.full_name() {
            return Some(format!("pod {} is already described in {}", pod.full_name(), path.display()));
        }
        if other.uid == pod.uid {
            return Some(format!("a pod with UID {} is already described in {}", pod.uid, path.display()));
        }
        ports::clash(pod, other).map(|port| {
            format!(
                "pod {} wants port {port} of the node, which pod {} of {} has already: give it another hostPort",
                pod.full_name(),
                other.full_name(),
                path.display()
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::{Container, Port};

    use super::*;
    use crate::pod::tests::{container, pod};

    fn good(path: &str, name: &str) -> Reading {
        Reading { path: path.into(), result: Ok((Pod { name: name.into(), ..pod() }, false)), raw: None }
    }

    fn bad(path: &str) -> Reading {
        Reading { path: path.into(), result: Err("not valid YAML".into()), raw: None }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn names(choice: &Choice) -> Vec<String> {
        choice.static_pods().pods.into_iter().map(|pod| pod.name).collect()
    }

    fn problems(choice: &Choice) -> Vec<String> {
        let text = |p: Problem| format!("{}: {}", p.path.display(), p.message);
        choice.static_pods().problems.into_iter().map(text).collect()
    }

    #[test]
    fn trap_10_a_half_written_file_keeps_its_pod_and_leaves_the_others_alone() {
        let mut choice = Choice::new("n".into());
        choice.take(vec![good("a", "a"), bad("b")], at(1));
        assert_eq!(names(&choice), ["a-n"]);
        assert_eq!(problems(&choice), ["b: not valid YAML"]);
        let before = choice.static_pods().pods;
        choice.take(vec![bad("a"), good("b", "b")], at(2));
        assert_eq!(names(&choice), ["a-n", "b-n"]);
        assert_eq!(choice.static_pods().pods.first(), before.first());
        choice.take(vec![good("b", "b")], at(3));
        assert_eq!(names(&choice), ["b-n"]);
        choice.cannot_read(Path::new("/m"), "I/O error");
        assert_eq!(names(&choice), ["b-n"]);
    }

    #[test]
    fn trap_10_a_changed_file_is_a_new_pod_of_the_same_name() {
        let mut choice = Choice::new("n".into());
        choice.take(vec![good("a", "a")], at(1));
        let old = choice.static_pods().pods.remove(0);
        choice.take(vec![good("a", "a")], at(2));
        assert_eq!(choice.static_pods().pods, std::slice::from_ref(&old), "the same content is the same pod");
        let changed =
            Pod { name: "a".into(), uid: gantry_model::pod::PodUid::parse("uid-2").unwrap(), ..pod() };
        choice.take(vec![Reading { path: "a".into(), result: Ok((changed, false)), raw: None }], at(3));
        let new = choice.static_pods().pods.remove(0);
        assert_eq!(new.name, old.name);
        assert_ne!(new.uid, old.uid);
    }

    #[test]
    fn a_file_that_went_and_is_back_is_met_for_the_first_time() {
        let mut choice = Choice::new("n".into());
        choice.take(vec![good("m/a", "a"), good("m/b", "b")], at(1));
        let before = choice.static_pods().pods;
        choice.lose(&BTreeSet::from(["a".into()]));
        choice.take(vec![good("m/a", "a"), good("m/b", "b")], at(2));
        let after = choice.static_pods().pods;
        let [old_a, old_b] = before.as_slice() else { panic!("two were there") };
        let [new_b, new_a] = after.as_slice() else { panic!("two are there, the longest known first") };
        assert_eq!(old_b, new_b);
        assert_eq!(old_a.uid, new_a.uid);
        assert!(rules::is_made_again(old_a, new_a));
        assert!(!rules::is_made_again(old_b, new_b));
    }

    #[test]
    fn trap_10_of_two_files_with_one_name_the_first_known_runs() {
        let mut choice = Choice::new("n".into());
        choice.take(vec![good("z", "a")], at(1));
        choice.take(vec![good("a.bak", "a"), good("z", "a")], at(2));
        assert_eq!(names(&choice), ["a-n"]);
        assert_eq!(problems(&choice), ["a.bak: pod default/a-n is already described in z"]);
        choice.take(vec![good("a.bak", "a")], at(3));
        assert_eq!((names(&choice), problems(&choice).len()), (vec!["a-n".to_owned()], 0));
    }

    #[test]
    fn pods_of_a_url_give_way_to_those_of_files() {
        let mut choice = Choice::new("n".into());
        choice.take(vec![good("m/a", "a")], at(1));
        let folder = choice.static_pods();
        let of_url = |name: &str, uid: &str| {
            let pod = Pod { name: name.into(), uid: PodUid::parse(uid).unwrap(), ..pod() };
            rules::adopt(pod, true, Source::Url("http://h/"), "n", "T").unwrap()
        };
        let pods = vec![of_url("a", "u-1"), of_url("b", "u-2")];
        let raw = |pod: &Pod| (pod.uid.clone(), Arc::new(Described::default()));
        let described = pods.iter().map(raw).collect();
        let fetched = StaticPods { pods, read: false, problems: vec![], described };
        let both = folder.clone().join(&fetched, Path::new("http://h/"));
        let names: Vec<&str> = both.pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["a-n", "b-n"]);
        assert_eq!(both.pods.first(), folder.pods.first());
        let told: Vec<&str> = both.problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(told, ["pod default/a-n is already described in a file of the manifest folder"]);
        assert_eq!(both.described.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["u-2"]);
        assert!(!both.read, "one of the two is not known yet");
        assert!(folder.join(&StaticPods { read: true, ..fetched }, Path::new("")).read);
    }

    #[test]
    fn two_pods_that_want_one_port_are_named() {
        let with = |path: &str, name: &str| {
            let port = Port {
                name: String::new(),
                port: 80,
                protocol: "TCP".into(),
                host_port: 8080,
                host_ip: String::new(),
            };
            let containers = vec![Container { ports: vec![port], ..container("c") }];
            Reading {
                path: path.into(),
                result: Ok((Pod { name: name.into(), containers, ..pod() }, false)),
                raw: None,
            }
        };
        let mut choice = Choice::new("n".into());
        choice.take(vec![with("a", "a"), with("b", "b"), good("c", "c")], at(1));
        assert_eq!(names(&choice), ["a-n", "c-n"]);
        assert_eq!(
            problems(&choice),
            [
                "b: pod default/b-n wants port 8080/TCP of the node, which pod default/a-n of a has already: give it another hostPort"
            ]
        );
    }
}
