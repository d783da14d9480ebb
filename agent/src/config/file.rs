//! Configuration files and folders of drop-ins, to JSON. Owns how they are read; never what a field
//! means. Called by [`super`].

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::fields::KubeletConfiguration;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// What is wrong with one file; the path is told by the caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read kubelet config file {path:?}, error: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("kubelet config file {0:?} was empty")]
    Empty(PathBuf),
    #[error("failed to decode: {0}")]
    Decode(String),
}

/// One document, and what strict reading has against it.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) object: Map<String, Value>,
    /// Set when a key stands there twice.
    pub(super) duplicate: Option<String>,
}

/// The first document of a file.
pub(super) fn read(path: &Path) -> Result<Document, Error> {
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    if text.is_empty() {
        return Err(Error::Empty(path.to_owned()));
    }
    parse(&text)
}

fn parse(text: &str) -> Result<Document, Error> {
    let strict = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
    };
    let lenient = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
    };
    let first = |documents: Vec<Value>| documents.into_iter().find(|value| !value.is_null());
    let (value, duplicate) = match serde_saphyr::from_multiple_with_options(text, strict) {
        Ok(documents) => (first(documents), None),
        // Whatever else is wrong is wrong the second time as well.
        Err(error) => {
            let documents = serde_saphyr::from_multiple_with_options(text, lenient)
                .map_err(|e| Error::Decode(e.to_string()))?;
            (first(documents), Some(error.to_string()))
        }
    };
    match value {
        Some(Value::Object(object)) => Ok(Document { object, duplicate }),
        Some(_) => Err(Error::Decode("a configuration is an object".to_owned())),
        None => Err(Error::Decode("Object 'Kind' is missing in ''".to_owned())),
    }
}

/// Whether the document says that it is a configuration of ours.
pub(super) fn check_kind(object: &Map<String, Value>) -> Result<(), Error> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        (API_VERSION, KIND) => Ok(()),
        (_, "") => Err(Error::Decode("Object 'Kind' is missing".to_owned())),
        ("", _) => Err(Error::Decode("Object 'apiVersion' is missing".to_owned())),
        (version, kind) => Err(Error::Decode(format!(
            "no kind {kind:?} is registered for version {version:?}: this kubelet reads {KIND} of {API_VERSION}"
        ))),
    }
}

/// What a document of the right kind holds, and the fields that nobody knows.
pub(super) fn decode(object: Map<String, Value>) -> Result<(KubeletConfiguration, Vec<String>), Error> {
    let mut value = Value::Object(object);
    if let Value::Object(object) = &mut value {
        object.remove("apiVersion");
        object.remove("kind");
    }
    drop_nulls(&mut value);
    let mut unknown = Vec::new();
    let config = serde_ignored::deserialize(value, |path| unknown.push(path.to_string()))
        .map_err(|e: serde_json::Error| Error::Decode(e.to_string()))?;
    Ok((config, unknown))
}

/// A field that is null is a field that is not there.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// RFC 7386.
pub(super) fn merge(into: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Value::Object(into) = into else { return };
    for (key, value) in patch {
        if value.is_null() {
            into.remove(&key);
        } else {
            merge(into.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Paths of a file are seen from its folder.
pub(super) fn resolve_paths(config: &mut KubeletConfiguration, folder: &Path) {
    let mut paths = vec![
        &mut config.static_pod_path,
        &mut config.authentication.x509.client_ca_file,
        &mut config.tls_cert_file,
        &mut config.tls_private_key_file,
        &mut config.volume_plugin_dir,
        &mut config.pod_logs_dir,
    ];
    paths.extend(config.resolv_conf.as_mut());
    for path in paths.into_iter().filter(|path| !path.is_empty()) {
        if !Path::new(path.as_str()).is_absolute() {
            *path = folder.join(&path).to_string_lossy().into_owned();
        }
    }
}

/// Files below a folder, each folder's in the order of their names, folders among them.
pub(super) fn walk(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name());
    }
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let path = folder.join(name);
        // A link to a folder is a file whose reading fails, as it is upstream.
        if std::fs::symlink_metadata(&path)?.is_dir() {
            found.extend(walk(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The examples of RFC 7386, appendix A.
    #[test]
    fn merging_is_that_of_rfc_7386() {
        for (original, patch, result) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ] {
            let mut merged = original;
            merge(&mut merged, patch);
            assert_eq!(merged, result);
        }
    }

    #[test]
    fn a_key_that_stands_twice_and_nulls_are_read_leniently() {
        let document = parse("kind: KubeletConfiguration\nport: 1\nport: 2\naddress: null\n").unwrap();
        assert!(document.duplicate.is_some());
        let (config, unknown) = decode(document.object).unwrap();
        assert_eq!((config.port, config.address.as_str(), unknown.len()), (2, "", 0));
    }

    #[test]
    fn unknown_fields_are_told_with_their_path() {
        let document = parse("authentication: {x509: {clientCA: x}}\nportt: 3\n").unwrap();
        let (_, unknown) = decode(document.object).unwrap();
        assert_eq!(unknown, ["authentication.x509.clientCA", "portt"]);
    }

    #[test]
    fn a_value_of_the_wrong_type_is_an_error() {
        for text in ["port: eins\n", "port: 1.5\n", "syncFrequency: 10\n", "port: 99999999999\n"] {
            assert!(decode(parse(text).unwrap().object).is_err(), "{text}");
        }
    }
}
