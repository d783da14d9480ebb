//! What makes a pod of a file a static pod. Pure: owns upstream's rules (name, UID, annotations, no
//! references to API objects) and their words; never reads a file. Called by [`super::choice`], and by
//! [`crate::pod_workers`] to tell a pod that was put there again.

use std::path::Path;

use gantry_model::names;
use gantry_model::pod::env::{EnvFromSource, EnvValue};
use gantry_model::pod::volume::{Projection, VolumeSource};
use gantry_model::pod::{Origin, Pod, PodUid};

use crate::manifest::{fnv1a_128, hostname_of};

const HASH: &str = "kubernetes.io/config.hash";
const SOURCE: &str = "kubernetes.io/config.source";
const FILE: &str = "file";
const SEEN: &str = "kubernetes.io/config.seen";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Where a static pod is described.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    File(&'a Path),
    Url(&'a str),
}

impl Source<'_> {
    /// As the annotation has it.
    fn name(self) -> &'static str {
        match self {
            Self::File(_) => FILE,
            Self::Url(_) => "http",
        }
    }
}

/// Whether the pod is one of a file.
pub(super) fn is_of_file(pod: &Pod) -> bool {
    pod.annotations.get(SOURCE).is_some_and(|source| source == FILE)
}

/// The pod as it runs on this node. `seen` is when its content was first met.
pub(super) fn adopt(
    mut pod: Pod,
    uid_given: bool,
    source: Source<'_>,
    node: &str,
    seen: &str,
) -> Result<Pod, String> {
    if let Some(what) = reference(&pod) {
        return Err(format!("static pods may not reference {what}"));
    }
    if !uid_given {
        let text = match source {
            Source::File(path) => format!("{}host:{node}file:{}", pod.uid, path.display()),
            // The same on every node, as upstream.
            Source::Url(url) => format!("{}url:{url}", pod.uid),
        };
        let hash = format!("{:032x}", fnv1a_128(text.as_bytes()));
        pod.uid = PodUid::parse(&hash).ok_or_else(|| format!("{hash} is no UID"))?;
    }
    // Not given, it follows the name; on the host's network it is the node's.
    let follows = !pod.hostname.is_empty() && pod.hostname == hostname_of(&pod.name);
    pod.name = format!("{}-{}", pod.name, node.to_lowercase());
    if follows {
        pod.hostname = hostname_of(&pod.name);
    }
    if !names::is_dns_subdomain(&pod.name) {
        return Err(format!(
            "invalid pod: metadata.name: Invalid value: {:?}: with the node's name it is no DNS subdomain",
            pod.name
        ));
    }
    pod.annotations.remove(MIRROR);
    pod.annotations.insert(HASH.to_owned(), pod.uid.to_string());
    pod.annotations.insert(SOURCE.to_owned(), source.name().to_owned());
    pod.annotations.insert(SEEN.to_owned(), seen.to_owned());
    pod.shown.node_name = node.to_owned();
    pod.origin = Origin::Static;
    Ok(pod)
}

/// Whether the same file was removed and put there again between two looks: only when it was met
/// differs. One that was rewritten has another UID, or, when it gives its own, another description.
pub(crate) fn is_made_again(old: &Pod, new: &Pod) -> bool {
    let rest = |pod: &Pod| {
        let mut pod = pod.clone();
        pod.annotations.remove(SEEN);
        pod
    };
    old.origin == Origin::Static
        && old.annotations.get(SEEN) != new.annotations.get(SEEN)
        && rest(old) == rest(new)
}

/// The first thing that only an API server has, in upstream's order and words.
fn reference(pod: &Pod) -> Option<&'static str> {
    if !pod.shown.service_account.is_empty() {
        return Some("serviceaccounts");
    }
    let env = || pod.all_containers().flat_map(|c| &c.env).map(|variable| &variable.value);
    let env_from = || pod.all_containers().flat_map(|c| &c.env_from).map(|from| &from.source);
    // Projections count for both lists of names; plain volumes have words of their own below.
    let projections = || {
        pod.volumes.iter().flat_map(|volume| match &volume.source {
            VolumeSource::Projected { sources, .. } => sources.as_slice(),
            VolumeSource::EmptyDir { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Image { .. }
            | VolumeSource::Csi(_)
            | VolumeSource::Migrated(_)
            | VolumeSource::Iscsi(_)
            | VolumeSource::Nfs(_)
            | VolumeSource::Claim { .. } => &[],
        })
    };
    let secrets = !pod.pull_secrets.is_empty()
        || env().any(|value| matches!(value, EnvValue::SecretKey(_)))
        || env_from().any(|source| matches!(source, EnvFromSource::Secret(_)))
        || projections().any(|source| matches!(source, Projection::Secret(_)));
    let config_maps = env().any(|value| matches!(value, EnvValue::ConfigMapKey(_)))
        || env_from().any(|source| matches!(source, EnvFromSource::ConfigMap(_)))
        || projections().any(|source| matches!(source, Projection::ConfigMap(_)));
    match (secrets, config_maps) {
        (true, _) => Some("secrets"),
        (false, true) => Some("configmaps"),
        (false, false) => pod.volumes.iter().find_map(|volume| match &volume.source {
            VolumeSource::Claim { .. } => Some("persistentvolumeclaims"),
            VolumeSource::Projected { sources, .. } => sources
                .iter()
                .any(|source| matches!(source, Projection::Token(_)))
                .then_some("serviceaccounts (via projected volumes)"),
            VolumeSource::EmptyDir { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Csi(_)
            | VolumeSource::Migrated(_)
            | VolumeSource::Iscsi(_)
            | VolumeSource::Nfs(_)
            | VolumeSource::Image { .. } => None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::env::{EnvVar, KeyRef};
    use gantry_model::pod::volume::{KeysOf, Volume};
    use gantry_model::pod::{Container, Shown};

    use super::*;
    use crate::pod::tests::{container, pod};

    fn run(pod: Pod) -> Result<Pod, String> {
        adopt(pod, false, Source::File(Path::new("/m/web.yaml")), "Node1", "T")
    }

    #[test]
    fn a_static_pod_has_the_nodes_name_and_upstreams_annotations() {
        let made = run(pod()).unwrap();
        assert_eq!((made.name.as_str(), made.hostname.as_str()), ("web-node1", "web-node1"));
        assert_eq!(made.uid.as_str().len(), 32);
        assert_eq!(made.annotations.get(HASH).map(String::as_str), Some(made.uid.as_str()));
        assert_eq!(made.annotations.get(SOURCE).map(String::as_str), Some("file"));
        assert_eq!(made.annotations.get(SEEN).map(String::as_str), Some("T"));
        assert_eq!((made.origin, made.shown.node_name.as_str()), (Origin::Static, "Node1"));
        // The same content in another file, or on another node, is another pod.
        let other = adopt(pod(), false, Source::File(Path::new("/m/b.yaml")), "Node1", "T").unwrap();
        assert_ne!(other.uid, made.uid);
        let given = adopt(pod(), true, Source::File(Path::new("/m/b.yaml")), "Node1", "T").unwrap();
        assert_eq!(given.uid.as_str(), "uid-1");
    }

    #[test]
    fn a_pod_of_a_url_has_its_source_and_one_uid_on_all_nodes() {
        let of = |url, node| adopt(pod(), false, Source::Url(url), node, "T").unwrap();
        let made = of("http://h/a", "n1");
        assert_eq!(made.annotations.get(SOURCE).map(String::as_str), Some("http"));
        assert_eq!(made.annotations.get(HASH).map(String::as_str), Some(made.uid.as_str()));
        assert_eq!((made.name.as_str(), &made.origin), ("web-n1", &Origin::Static));
        assert_eq!(of("http://h/a", "n2").uid, made.uid);
        assert_ne!(of("http://h/b", "n1").uid, made.uid);
        assert!(is_of_file(&run(pod()).unwrap()) && !is_of_file(&made));
    }

    #[test]
    fn references_to_api_objects_are_refused_in_upstreams_words() {
        let env = |value| {
            let env = vec![EnvVar { name: "A".into(), value }];
            Pod { init_containers: vec![Container { env, ..container("init") }], ..pod() }
        };
        let key = || KeyRef { name: "x".into(), key: "k".into(), optional: true };
        let volume = |source| {
            let source = VolumeSource::Projected {
                sources: vec![source],
                default_mode: 0o644,
                memory: true,
                plugin: "kubernetes.io~projected",
            };
            Pod { volumes: vec![Volume { name: "v".into(), source }], ..pod() }
        };
        let keys = || KeysOf { name: "x".into(), items: vec![], optional: true };
        let account = Shown { service_account: "default".into(), ..Shown::default() };
        for (pod, what) in [
            (Pod { shown: account, ..pod() }, "serviceaccounts"),
            (Pod { pull_secrets: vec!["s".into()], ..pod() }, "secrets"),
            (env(EnvValue::SecretKey(key())), "secrets"),
            (env(EnvValue::ConfigMapKey(key())), "configmaps"),
            (volume(Projection::Secret(keys())), "secrets"),
            (volume(Projection::ConfigMap(keys())), "configmaps"),
        ] {
            assert_eq!(run(pod).unwrap_err(), format!("static pods may not reference {what}"));
        }
        assert!(run(volume(Projection::Downward(vec![]))).is_ok());
    }
}
