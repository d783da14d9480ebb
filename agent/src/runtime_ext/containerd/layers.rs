//! What a pull's layers are and how far each has come, from what the content store says. Pure: answers in,
//! layers out. Called by [`super::pulls`].

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::runtime_ext::pulls::progress::{Layer, LayerState};

/// Of one image; more than any snapshotter stacks.
const MOST_LAYERS: usize = 512;

/// Where an image comes from, as containerd writes it into a blob's labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageSource {
    /// Without a port.
    pub(super) host: String,
    pub(super) repository: String,
}

/// A layer by its manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Promise {
    pub(super) digest: String,
    /// Bytes.
    pub(super) size: u64,
}

/// A blob on its way in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ingest {
    /// `layer-sha256:…`, and more before the digest where the image names the layer.
    pub(super) name: String,
    /// Unix nanoseconds.
    pub(super) since: i64,
    /// So far.
    pub(super) bytes: u64,
}

impl ImageSource {
    /// Of an image's full name, which has a tag or a digest.
    pub(super) fn of(image: &str) -> Self {
        let name = image.split('@').next().unwrap_or_default();
        let leaf = name.rfind('/').map_or(0, |slash| slash + 1);
        let tag = name.get(leaf..).and_then(|leaf| leaf.find(':')).map_or(name.len(), |colon| leaf + colon);
        let path = name.get(..tag).unwrap_or_default();
        let named =
            path.split_once('/').filter(|(first, _)| first.contains(['.', ':']) || *first == "localhost");
        let (host, repository) = named.unwrap_or(("docker.io", path));
        let host = if host == "index.docker.io" { "docker.io" } else { host };
        let repository = match host {
            "docker.io" if !repository.contains('/') => format!("library/{repository}"),
            _ => repository.to_owned(),
        };
        // An address of version 6 is in brackets, its port after them.
        let host = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split(':').next().unwrap_or_default(),
        };
        Self { host: host.to_owned(), repository }
    }
}

/// Digests go into filters: nothing else may.
pub(super) fn is_digest(text: &str) -> bool {
    let hex = |letters: &str, count| {
        letters.len() == count && letters.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    match text.split_once(':') {
        Some(("sha256", letters)) => hex(letters, 64),
        Some(("sha512", letters)) => hex(letters, 128),
        _ => false,
    }
}

#[derive(Deserialize)]
struct Document {
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    size: u64,
}

/// The layers of a manifest, base first, each once.
pub(super) fn promises(manifest: &[u8]) -> Option<Vec<Promise>> {
    let document: Document = serde_json::from_slice(manifest).ok()?;
    let mut promises: Vec<Promise> = Vec::new();
    for Descriptor { digest, size } in document.layers.into_iter().take(MOST_LAYERS) {
        if is_digest(&digest) && promises.iter().all(|promise| promise.digest != digest) {
            promises.push(Promise { digest, size });
        }
    }
    Some(promises)
}

/// What is known of layers after a look, with what was known before it.
pub(super) fn join(
    before: &[Layer],
    promises: &[Promise],
    here: &BTreeMap<String, i64>,
    ingests: &[Ingest],
    began: i64,
) -> Vec<Layer> {
    let layer = |promise: &Promise| {
        let Promise { digest, size } = promise.clone();
        let old = before.iter().find(|layer| layer.digest == digest).map(|layer| layer.state);
        let state = match (old, here.get(&digest)) {
            (Some(over @ (LayerState::Downloaded { .. } | LayerState::Present)), _) => over,
            (_, Some(at)) if *at < began => LayerState::Present,
            (Some(LayerState::Downloading { since, .. }), Some(at)) => {
                LayerState::Downloaded { since: Some(since), at: *at }
            }
            (_, Some(at)) => LayerState::Downloaded { since: None, at: *at },
            (old, None) => match ingests.iter().find(|ingest| ingest.name.ends_with(&digest)) {
                Some(ingest) => LayerState::Downloading { since: ingest.since, bytes: ingest.bytes },
                // It may have come in between two answers.
                None => old.unwrap_or(LayerState::Waiting),
            },
        };
        Layer { digest, size, state }
    };
    promises.iter().map(layer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_hosts_without_ports_and_repositories_without_tags() {
        for (image, host, repository) in [
            ("nginx:latest", "docker.io", "library/nginx"),
            ("index.docker.io/nginx:1", "docker.io", "library/nginx"),
            ("bitnami/redis:7", "docker.io", "bitnami/redis"),
            ("127.0.0.1:5000/suite/web:v1", "127.0.0.1", "suite/web"),
            ("[::1]:5000/web:v1", "::1", "web"),
            ("localhost/web:v1", "localhost", "web"),
            ("reg.io/a/b@sha256:0", "reg.io", "a/b"),
            ("reg.io:443/a/b:v1@sha256:0", "reg.io", "a/b"),
        ] {
            let expected = ImageSource { host: host.into(), repository: repository.into() };
            assert_eq!(ImageSource::of(image), expected, "{image}");
        }
    }

    #[test]
    fn hostile_manifests_promise_little() {
        let digest = |letter: char| format!("sha256:{}", letter.to_string().repeat(64));
        let text = format!(
            r#"{{"layers":[{{"digest":"{}","size":3}},{{"digest":"sha256:x\",labels","size":1}},{{"digest":"{0}","size":4}}]}}"#,
            digest('a')
        );
        assert_eq!(promises(text.as_bytes()).unwrap(), [Promise { digest: digest('a'), size: 3 }]);
        assert_eq!(promises(b"{\"manifests\":[]}"), None, "an index");
        assert_eq!(promises(b"{\"layers\":[{\"digest\":\"x\",\"size\":-1}]}"), None);
        let many: Vec<String> =
            (0..2000).map(|n| format!(r#"{{"digest":"sha256:{n:064x}","size":1}}"#)).collect();
        let text = format!(r#"{{"layers":[{}]}}"#, many.join(","));
        assert_eq!(promises(text.as_bytes()).unwrap().len(), MOST_LAYERS);
    }

    #[test]
    fn layers_come_in_one_look_after_the_other() {
        let promises: Vec<Promise> =
            ["a", "b", "c", "d"].map(|digest| Promise { digest: digest.into(), size: 9 }).into();
        let ingest = |name: &str, bytes| Ingest { name: name.into(), since: 110, bytes };
        let here = |list: &[(&str, i64)]| list.iter().map(|(d, at)| ((*d).to_owned(), *at)).collect();
        let first = join(&[], &promises, &here(&[("a", 50)]), &[ingest("layer-b", 4), ingest("x@c", 1)], 100);
        let states = |layers: &[Layer]| layers.iter().map(|layer| layer.state).collect::<Vec<_>>();
        use LayerState::{Downloaded, Downloading, Present, Waiting};
        let coming = |bytes| Downloading { since: 110, bytes };
        assert_eq!(states(&first), [Present, coming(4), coming(1), Waiting]);
        // One is between two answers, one was too quick to be seen.
        let second = join(&first, &promises, &here(&[("b", 120), ("d", 125)]), &[], 100);
        let (b, d) = (Downloaded { since: Some(110), at: 120 }, Downloaded { since: None, at: 125 });
        assert_eq!(states(&second), [Present, b, coming(1), d]);
        // What is over is not asked for again, and stays.
        let third = join(&second, &promises, &here(&[("c", 130)]), &[], 100);
        assert_eq!(states(&third), [Present, b, Downloaded { since: Some(110), at: 130 }, d]);
    }
}
