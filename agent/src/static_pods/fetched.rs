//! Which pods of a URL run. Pure: owns what the URL gave last and how often failures are told; never fetches it.
//! Called by [`super::url`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use gantry_model::pod::Pod;
use jiff::Timestamp;

use super::choice::{Problem, StaticPods, clash};
use super::describe::describe;
use super::rules::{self, Source};
use crate::manifest::{PodOfList, parse_pods};

/// Failures one after another that are warned of.
const WARNED: u32 = 3;

/// How loudly a failure is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loudness {
    Warn,
    /// For the last time.
    Last,
    Debug,
}

/// What is known of the URL.
#[derive(Debug)]
pub(super) struct Fetched {
    /// As configured: it is part of the pods' UIDs.
    url: String,
    /// The same without what may be secret.
    shown: String,
    node: String,
    /// As it came last, and what there was to say of it.
    last: Option<(Vec<u8>, Result<(), String>)>,
    /// Pods and when each was first met.
    known: Vec<(PodOfList, Timestamp)>,
    read: bool,
    failures: u32,
}

impl Fetched {
    pub(super) fn new(url: String, shown: String, node: String) -> Self {
        Self { url, shown, node, last: None, known: Vec::new(), read: false, failures: 0 }
    }

    /// A whole answer. One that is not as it should be changes nothing; an empty one is nobody.
    ///
    /// # Errors
    /// In words, when there is nothing to run in it.
    pub(super) fn take(&mut self, body: Vec<u8>, now: Timestamp) -> Result<(), String> {
        if body.is_empty() {
            self.known.clear();
            self.read = true;
            self.last = None;
            return Err(format!("zero-length data received from {}", self.shown));
        }
        if let Some((_, said)) = self.last.as_ref().filter(|(last, _)| *last == body) {
            return said.clone();
        }
        let said = self.learn(&body, now);
        self.last = Some((body, said.clone()));
        said
    }

    fn learn(&mut self, body: &[u8], now: Timestamp) -> Result<(), String> {
        let pods = self.pods(body).map_err(|error| format!("{}: {error}", self.shown))?;
        let before: BTreeMap<String, (PodOfList, Timestamp)> =
            self.known.drain(..).map(|(old, seen)| (old.pod.full_name(), (old, seen))).collect();
        let seen = |new: &PodOfList| match before.get(&new.pod.full_name()) {
            Some((old, seen)) if old.pod == new.pod => *seen,
            _ => now,
        };
        self.known = pods.into_iter().map(|pod| (pod.clone(), seen(&pod))).collect();
        self.read = true;
        Ok(())
    }

    /// All of them can run here, or none is taken.
    fn pods(&self, body: &[u8]) -> Result<Vec<PodOfList>, String> {
        let text = std::str::from_utf8(body).map_err(|_| "not UTF-8 text".to_owned())?;
        let pods = parse_pods(text)?;
        for found in &pods {
            self.adopt(found, "").map_err(|error| format!("pod {}: {error}", found.pod.full_name()))?;
        }
        Ok(pods)
    }

    fn adopt(&self, found: &PodOfList, seen: &str) -> Result<Pod, String> {
        rules::adopt(found.pod.clone(), found.uid_given, Source::Url(&self.url), &self.node, seen)
    }

    /// Of pods that clash the first in the list wins.
    pub(super) fn static_pods(&self) -> StaticPods {
        let place = Path::new(&self.shown);
        let mut all = StaticPods { read: self.read, ..StaticPods::default() };
        for (found, seen) in &self.known {
            let adopted = self.adopt(found, &seen.to_string());
            let fits = adopted.and_then(|pod| {
                clash(&pod, all.pods.iter().map(|other| (place, other))).map_or(Ok(pod), Err)
            });
            match fits {
                Ok(pod) => {
                    all.described.insert(pod.uid.clone(), Arc::new(describe(&found.raw, &pod)));
                    all.pods.push(pod);
                }
                Err(message) => all.problems.push(Problem { path: place.to_owned(), message }),
            }
        }
        all
    }

    /// One more failure.
    pub(super) fn fail(&mut self) -> Loudness {
        let before = self.failures;
        self.failures = before.saturating_add(1);
        match before.cmp(&WARNED) {
            std::cmp::Ordering::Less => Loudness::Warn,
            std::cmp::Ordering::Equal => Loudness::Last,
            std::cmp::Ordering::Greater => Loudness::Debug,
        }
    }

    /// Whether there were failures until now.
    pub(super) fn succeed(&mut self) -> bool {
        std::mem::take(&mut self.failures) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pods: &[(&str, &str)]) -> Vec<u8> {
        let item = |(name, image): &(&str, &str)| {
            serde_json::json!({
                "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": image }] },
            })
        };
        let items: Vec<_> = pods.iter().map(item).collect();
        serde_json::json!({ "apiVersion": "v1", "kind": "PodList", "items": items }).to_string().into_bytes()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn fetched() -> Fetched {
        Fetched::new("http://u:p@h/".into(), "http://h/".into(), "n".into())
    }

    fn names(fetched: &Fetched) -> Vec<String> {
        fetched.static_pods().pods.into_iter().map(|pod| pod.name).collect()
    }

    #[test]
    fn pods_of_a_url_are_known_with_the_time_they_were_first_met() {
        let mut fetched = fetched();
        assert!(!fetched.static_pods().read);
        fetched.take(body(&[("a", "1"), ("b", "1")]), at(1)).unwrap();
        let first = fetched.static_pods();
        assert!(first.read);
        fetched.take(body(&[("b", "1"), ("a", "2")]), at(2)).unwrap();
        let second = fetched.static_pods();
        let seen = |pod: &Pod| pod.annotations["kubernetes.io/config.seen"].clone();
        let all = |pods: &StaticPods| pods.pods.iter().map(|p| (p.name.clone(), seen(p))).collect::<Vec<_>>();
        let (one, two) = (at(1).to_string(), at(2).to_string());
        assert_eq!(all(&first), [("a-n".to_owned(), one.clone()), ("b-n".to_owned(), one.clone())]);
        assert_eq!(all(&second), [("b-n".to_owned(), one), ("a-n".to_owned(), two)]);
        assert_eq!(first.pods[1].uid, second.pods[0].uid);
        assert_ne!(first.pods[0].uid, second.pods[1].uid, "another content is another pod");
        assert_eq!(second.described.len(), 2);
        assert_eq!(second.described[&second.pods[0].uid].metadata.name.as_deref(), Some("b-n"));
    }

    #[test]
    fn an_answer_without_sense_keeps_the_pods_and_an_empty_one_takes_them() {
        let mut fetched = fetched();
        fetched.take(body(&[("a", "1")]), at(1)).unwrap();
        let error = fetched.take(b"<html>".to_vec(), at(2)).unwrap_err();
        assert!(error.starts_with("http://h/: ") && !error.contains("u:p"), "{error}");
        let secret = String::from_utf8(body(&[("a", "2"), ("b", "1")]))
            .unwrap()
            .replace(r#""containers":"#, r#""imagePullSecrets":[{"name":"s"}],"containers":"#);
        let error = fetched.take(secret.into_bytes(), at(2)).unwrap_err();
        assert_eq!(error, "http://h/: pod default/a: static pods may not reference secrets");
        fetched.take(b"<html>".to_vec(), at(2)).unwrap_err();
        fetched.take(b"<html>".to_vec(), at(3)).unwrap_err();
        fetched.take(vec![0xff], at(2)).unwrap_err();
        assert_eq!(names(&fetched), ["a-n"]);
        assert_eq!(fetched.take(vec![], at(3)).unwrap_err(), "zero-length data received from http://h/");
        assert_eq!((names(&fetched).len(), fetched.static_pods().read), (0, true));
        fetched.take(body(&[("a", "1")]), at(4)).unwrap();
        assert_eq!(names(&fetched), ["a-n"], "the same as before the empty one is there again");
    }

    #[test]
    fn of_two_pods_of_one_name_in_a_list_the_first_runs() {
        let mut fetched = fetched();
        fetched.take(body(&[("a", "1"), ("a", "2")]), at(1)).unwrap();
        let found = fetched.static_pods();
        assert_eq!(found.pods.len(), 1);
        assert_eq!(found.pods[0].containers[0].image, "1");
        assert_eq!(found.problems[0].message, "pod default/a-n is already described in http://h/");
    }

    #[test]
    fn three_failures_are_warned_of_and_one_more_says_that_the_rest_is_not() {
        let mut fetched = fetched();
        assert!(!fetched.succeed());
        let told: Vec<Loudness> = (0..6).map(|_| fetched.fail()).collect();
        let [warn, last, debug] = [Loudness::Warn, Loudness::Last, Loudness::Debug];
        assert_eq!(told, [warn, warn, warn, last, debug, debug]);
        assert!(fetched.succeed() && !fetched.succeed());
        assert_eq!(fetched.fail(), warn);
    }
}
