//! What must hold for any manifest, config, image name, hosts.toml and set of credentials: the bodies of
//! the fuzz targets `manifest`, `reference`, `hosts` and `credentials`. Owns the checks; never the bytes.
//! Called by the targets in `fuzz/`, and by the tests of `crate::fuzzing` with the corpus that is kept.

use serde_json::Value;

use super::auth::{Auth, Challenge, Credentials, basic_header, challenge};
use super::digest::Digest;
use super::manifest::{
    DOCKER_LIST, DOCKER_MANIFEST, ManifestDocument, OCI_INDEX, OCI_MANIFEST, Platform, annotations, config,
    document,
};
use super::reference::Reference;
use super::registry::fuzzing::docker_config;
pub use super::registry::fuzzing::hosts;

/// No message shows more than this of what a stranger wrote.
const LONGEST: usize = 8 << 10;
const AMD64: Platform = Platform { architecture: "amd64" };
const ARM64: Platform = Platform { architecture: "arm64" };

/// The same bytes as manifest, index and config.
pub fn manifest(data: &[u8]) {
    let digest = Digest::of(data);
    let raw: Option<Value> = serde_json::from_slice(data).ok();
    let named =
        |field: &str| raw.as_ref().and_then(|raw| raw.get(field)).is_some_and(|found| !found.is_null());
    for platform in [AMD64, ARM64] {
        let mut of_types = Vec::new();
        for content_type in ["", OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST, "text/html"] {
            let result = document(data, digest, content_type, &platform);
            match &result {
                Ok(document) => fits(document, data),
                Err(error) => assert!(error.to_string().len() < LONGEST),
            }
            assert!(
                result.is_err() || !(named("manifests") && (named("layers") || named("config"))),
                "ambiguous"
            );
            of_types.push(result.ok());
        }
        // What a server calls it does not make it anything else.
        assert!(of_types.iter().all(|found| *found == of_types[0]));
        // What is no JSON to this reader may still be passed over by one that skips it.
        let Some(raw) = &raw else { continue };
        let listed = raw.pointer("/rootfs/diff_ids").and_then(Value::as_array).map_or(0, Vec::len);
        for layers in [listed, listed + 1] {
            match config(data, digest, layers, &platform) {
                Ok((_, ids)) => assert_eq!((ids.len(), layers), (listed, listed)),
                Err(error) => assert!(error.to_string().len() < LONGEST),
            }
        }
    }
    assert!(annotations(data).is_empty() || raw.is_none() || named("annotations"));
}

fn fits(document: &ManifestDocument, data: &[u8]) {
    let blobs = match document {
        ManifestDocument::Index(blob) => vec![blob],
        ManifestDocument::Image { config, layers } => {
            assert!(layers.len() <= 500);
            layers.iter().map(|layer| &layer.blob).chain([config]).collect()
        }
    };
    let text = String::from_utf8_lossy(data);
    // With escapes it stands there in another form.
    if !text.contains('\\') {
        for blob in blobs {
            assert!(text.contains(&blob.digest.hex()) && text.contains(&blob.size.to_string()));
        }
    }
}

/// A name, and a digest.
pub fn reference(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!((digest.to_string().as_str(), digest.short().len()), (text, 26));
    }
    let reference = match Reference::parse(text) {
        Ok(reference) => reference,
        Err(error) => {
            assert!(error.to_string().len() < LONGEST);
            return;
        }
    };
    assert_eq!(Reference::parse(&reference.to_string()).as_ref(), Ok(&reference), "canonical form is stable");
    for part in reference.path().split('/') {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        assert!(!part.is_empty() && part != ".." && part != "." && part.bytes().all(fits), "{part:?}");
    }
    // What a URL's authority is made of, and no more: it becomes one.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    assert!(!reference.domain().is_empty() && reference.domain().bytes().all(fits), "{}", reference.domain());
    assert!(reference.repository().len() <= 255);
    assert!(
        reference.tag().is_none_or(|tag| (1..=128).contains(&tag.len()) && !tag.contains(['/', ':', '@']))
    );
    assert!(reference.tag().is_some() || reference.digest().is_some());
    if let Some(name) = reference.tag_name() {
        let again = Reference::parse(&name);
        assert_eq!(again.as_ref().map(Reference::tag_name), Ok(Some(name)));
    }
}

/// `WWW-Authenticate` headers, one on each line; a line `--`; then docker's config.json.
pub fn credentials(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (headers, file) = text.split_once("\n--\n").unwrap_or((&text, ""));
    let asked = challenge(headers.lines());
    if let Some(Challenge::Bearer { realm, service, scope }) = &asked {
        for value in [Some(realm), service.as_ref(), scope.as_ref()].into_iter().flatten() {
            assert!(value.len() <= headers.len());
        }
    }
    // Another challenge takes none away.
    assert!(challenge(headers.lines().chain(["Basic"])).is_some());
    docker_config(file);
    own_credentials(headers, file);
}

/// What a pull brings along: shown to nobody but the registry that it is for.
fn own_credentials(address: &str, text: &str) {
    let secret = Auth { username: "u".into(), password: "hunter2".into(), ..Auth::default() };
    for auth in [
        Auth { auth: text.trim().into(), ..Auth::default() },
        Auth { server_address: address.into(), ..secret.clone() },
        Auth { identity_token: text.into(), server_address: "docker.io".into(), ..Auth::default() },
        Auth { registry_token: text.into(), ..Auth::default() },
        secret,
    ] {
        assert!(!format!("{auth:?}").contains("hunter2") || address.contains("hunter2"));
        match auth.credentials_for("index.docker.io") {
            Ok(Credentials::Basic { username, password }) => {
                let header = basic_header(&username, &password);
                assert!(header.starts_with("Basic ") && header.is_ascii());
            }
            Ok(credentials) => assert!(!format!("{credentials:?}").contains("hunter2")),
            Err(error) => assert!(error.to_string().len() < LONGEST),
        }
    }
}

#[cfg(test)]
mod tests {
    use gantry_shim_testing::corpus::replay;

    #[test]
    fn manifest() {
        replay("manifest", super::manifest);
    }

    #[test]
    fn reference() {
        replay("reference", super::reference);
    }

    #[test]
    fn hosts() {
        replay("hosts", super::hosts);
    }

    #[test]
    fn credentials() {
        replay("credentials", super::credentials);
    }
}
