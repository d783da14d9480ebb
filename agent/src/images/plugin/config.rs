//! CredentialProviderConfig: which plugins there are, for which images. Owns its format and its rules,
//! in upstream's words; never runs a plugin. Called when the kubelet starts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use gantry_model::go_duration::Span;
use gantry_model::names;
use serde::Deserialize;
use serde_json::Value;

use crate::images::glob::Address;

const GROUP: &str = "kubelet.config.k8s.io";
const KIND: &str = "CredentialProviderConfig";
/// Of requests and responses.
pub(in crate::images) const API_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];

/// What is wrong with the configuration of plugins.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("plugin binary directory {} did not exist", .0.display())]
    NoBinDir(PathBuf),
    #[error("error inspecting binary directory {}: {source}", path.display())]
    BinDir { path: PathBuf, source: std::io::Error },
    #[error("credential provider config path is empty")]
    NoConfig,
    #[error("unable to access path {:?}: {source}", path.display().to_string())]
    Access { path: PathBuf, source: std::io::Error },
    #[error("unable to read directory {:?}: {source}", path.display().to_string())]
    ReadDir { path: PathBuf, source: std::io::Error },
    #[error("no configuration files found in directory {:?}", .0.display().to_string())]
    NoFiles(PathBuf),
    #[error("unable to read file {:?}: {source}", path.display().to_string())]
    ReadFile { path: PathBuf, source: std::io::Error },
    #[error("error decoding config {:?}: {message}", path.display().to_string())]
    Decode { path: PathBuf, message: String },
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Duplicate(String),
    #[error("failed to validate credential provider config: {0}")]
    Invalid(String),
    #[error("plugin binary executable {} did not exist", .0.display())]
    NoPlugin(PathBuf),
    #[error("error inspecting binary executable {}: {message}", path.display())]
    Plugin { path: PathBuf, message: String },
}

/// One plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::images) struct Provider {
    pub(in crate::images) name: String,
    pub(in crate::images) match_images: Vec<String>,
    pub(in crate::images) default_cache_duration: Option<Span>,
    pub(in crate::images) api_version: String,
    pub(in crate::images) args: Vec<String>,
    pub(in crate::images) env: Vec<Variable>,
    pub(in crate::images) token_attributes: Option<TokenAttributes>,
}

/// Of a plugin's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::images) struct Variable {
    pub(in crate::images) name: String,
    pub(in crate::images) value: String,
}

/// The plugin is given a token of the pod's service account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::images) struct TokenAttributes {
    pub(in crate::images) service_account_token_audience: String,
    pub(in crate::images) cache_type: String,
    pub(in crate::images) require_service_account: Option<bool>,
    pub(in crate::images) required_service_account_annotation_keys: Vec<String>,
    pub(in crate::images) optional_service_account_annotation_keys: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    providers: Vec<Provider>,
}

/// All plugins of a file, or of the files of a folder, and the sum of these files.
///
/// # Errors
/// In upstream's words; the kubelet does not start then.
pub(in crate::images) fn read(config: &Path, bin_dir: &Path) -> Result<(Vec<Provider>, String), Error> {
    match fs::metadata(bin_dir) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoBinDir(bin_dir.to_owned()));
        }
        Err(source) => return Err(Error::BinDir { path: bin_dir.to_owned(), source }),
    }
    let mut sum = Context::new(&SHA256);
    let (mut providers, mut seen) = (Vec::<Provider>::new(), BTreeSet::new());
    for path in files(config)? {
        let text = fs::read(&path).map_err(|source| Error::ReadFile { path: path.clone(), source })?;
        sum.update(&(text.len() as u64).to_be_bytes());
        sum.update(&text);
        let found = decode(&text).map_err(|message| Error::Decode { path, message })?;
        for provider in found {
            if !seen.insert(provider.name.clone()) {
                return Err(Error::Duplicate(provider.name));
            }
            providers.push(provider);
        }
    }
    let wrong = invalid(&providers);
    if let Some(first) = wrong.first() {
        let all = if wrong.len() == 1 { first.clone() } else { format!("[{}]", wrong.join(", ")) };
        return Err(Error::Invalid(all));
    }
    for provider in &providers {
        executable(&bin_dir.join(&provider.name))?;
    }
    let sum: String = sum.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((providers, format!("sha256:{sum}")))
}

fn files(config: &Path) -> Result<Vec<PathBuf>, Error> {
    if config.as_os_str().is_empty() {
        return Err(Error::NoConfig);
    }
    let path = || config.to_owned();
    let found = fs::metadata(config).map_err(|source| Error::Access { path: path(), source })?;
    if !found.is_dir() {
        return Ok(vec![path()]);
    }
    let wrap = |source| Error::ReadDir { path: path(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(config).map_err(wrap)? {
        let entry = entry.map_err(wrap)?;
        let name = entry.path();
        let known =
            name.extension().is_some_and(|end| ["json", "yaml", "yml"].iter().any(|known| end == *known));
        if known && !entry.file_type().map_err(wrap)?.is_dir() {
            files.push(name);
        }
    }
    files.sort();
    if files.is_empty() { Err(Error::NoFiles(path())) } else { Ok(files) }
}

/// Strictly: a field that nobody knows may be a misspelled one.
fn decode(text: &[u8]) -> Result<Vec<Provider>, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let strict = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
    };
    let mut value: Value =
        serde_saphyr::from_str_with_options(text, strict).map_err(|error| error.to_string())?;
    let word = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, api_version) = (word("kind"), word("apiVersion"));
    if kind.is_empty() {
        return Err(format!("Object 'Kind' is missing in {:?}", text.trim()));
    }
    let version = api_version.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/'));
    let (true, Some(version @ ("v1" | "v1beta1" | "v1alpha1"))) = (kind == KIND, version) else {
        return Err(format!("no kind {kind:?} is registered for version {api_version:?}"));
    };
    drop_nulls(&mut value);
    let document: Document =
        serde_json::from_value(value).map_err(|error| format!("strict decoding error: {error}"))?;
    let older = version != "v1" && document.providers.iter().any(|p| p.token_attributes.is_some());
    if older {
        return Err("strict decoding error: unknown field \"providers[].tokenAttributes\"".to_owned());
    }
    Ok(document.providers)
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

/// All that is wrong, each thing once.
fn invalid(providers: &[Provider]) -> Vec<String> {
    let mut wrong = Vec::new();
    if providers.is_empty() {
        wrong.push("providers: Required value: at least 1 item in plugins is required".to_owned());
    }
    for provider in providers {
        wrong.extend(invalid_name(&provider.name));
        wrong.extend(invalid_version(&provider.api_version));
        wrong.extend(invalid_images(&provider.match_images));
        wrong.extend(invalid_duration(provider.default_cache_duration));
        if let Some(attributes) = &provider.token_attributes {
            wrong.extend(invalid_tokens(provider, attributes));
        }
    }
    let mut seen = BTreeSet::new();
    wrong.retain(|what| seen.insert(what.clone()));
    wrong
}

fn invalid_name(name: &str) -> Vec<String> {
    [
        (name.contains('/'), "cannot contain '/'"),
        (name.contains(' '), "cannot contain spaces"),
        (name == ".", "cannot be '.'"),
        (name == "..", "cannot be '..'"),
    ]
    .into_iter()
    .filter(|(is_so, _)| *is_so)
    .map(|(_, why)| format!("providers.name: Invalid value: {name:?}: provider name {why}"))
    .collect()
}

fn invalid_version(version: &str) -> Option<String> {
    match version {
        "" => Some("providers.apiVersion: Required value".to_owned()),
        version if API_VERSIONS.contains(&version) => None,
        version => Some(format!(
            "providers.apiVersion: Unsupported value: {version:?}: supported values: {}",
            quote_list(&API_VERSIONS)
        )),
    }
}

fn invalid_images(images: &[String]) -> Vec<String> {
    if images.is_empty() {
        return vec![
            "providers.matchImages: Required value: at least 1 item in matchImages is required".to_owned(),
        ];
    }
    let told = |image: &String| {
        format!(
            "providers.matchImages: Invalid value: {image:?}: match image is invalid: parse {:?}: not a host with a path",
            format!("https://{image}")
        )
    };
    images.iter().filter(|image| Address::of(image).is_none()).map(told).collect()
}

fn invalid_duration(duration: Option<Span>) -> Option<String> {
    match duration {
        None => Some("providers.defaultCacheDuration: Required value".to_owned()),
        Some(span) if span < Span(0) => Some(format!(
            "providers.defaultCacheDuration: Invalid value: {:?}: must be greater than or equal to 0",
            span.to_string()
        )),
        Some(_) => None,
    }
}

fn invalid_tokens(provider: &Provider, attributes: &TokenAttributes) -> Vec<String> {
    const AT: &str = "providers.tokenAttributes";
    const CACHE_TYPES: [&str; 2] = ["ServiceAccount", "Token"];
    let mut wrong = Vec::new();
    if attributes.service_account_token_audience.is_empty() {
        wrong.push(format!("{AT}.serviceAccountTokenAudience: Required value"));
    }
    if attributes.require_service_account.is_none() {
        wrong.push(format!("{AT}.requireServiceAccount: Required value"));
    }
    let [newest, ..] = API_VERSIONS;
    if provider.api_version != newest {
        wrong.push(format!("{AT}: Forbidden: tokenAttributes is only supported for {newest} API version"));
    }
    let (required, optional) = (
        &attributes.required_service_account_annotation_keys,
        &attributes.optional_service_account_annotation_keys,
    );
    if attributes.require_service_account == Some(false) && !required.is_empty() {
        wrong.push(format!(
            "{AT}.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set"
        ));
    }
    wrong.extend(invalid_keys(&format!("{AT}.requiredServiceAccountAnnotationKeys"), required));
    wrong.extend(invalid_keys(&format!("{AT}.optionalServiceAccountAnnotationKeys"), optional));
    let both: BTreeSet<&String> = required.iter().filter(|key| optional.contains(key)).collect();
    if !both.is_empty() {
        let both: Vec<&str> = both.into_iter().map(String::as_str).collect();
        wrong.push(format!(
            "{AT}: Invalid value: [{}]: annotation keys cannot be both required and optional",
            quote_list(&both).replace(", ", ",")
        ));
    }
    match attributes.cache_type.as_str() {
        "" => wrong.push(format!(
            "{AT}.cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. Supported values are: {}",
            CACHE_TYPES.join(", ")
        )),
        kind if CACHE_TYPES.contains(&kind) => {}
        kind => wrong.push(format!(
            "{AT}.cacheType: Unsupported value: {kind:?}: supported values: {}",
            quote_list(&CACHE_TYPES)
        )),
    }
    wrong
}

fn invalid_keys(at: &str, keys: &[String]) -> Vec<String> {
    let mut seen: BTreeMap<&str, ()> = BTreeMap::new();
    let mut wrong = Vec::new();
    for key in keys {
        if !names::is_qualified_key(&key.to_lowercase()) {
            wrong.push(format!("{at}: Invalid value: {key:?}: must be a qualified name"));
        }
        if seen.insert(key, ()).is_some() {
            wrong.push(format!("{at}: Duplicate value: {key:?}"));
        }
    }
    wrong
}

fn quote_list(list: &[&str]) -> String {
    list.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ")
}

fn executable(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoPlugin(path.to_owned()));
        }
        Err(error) => return Err(Error::Plugin { path: path.to_owned(), message: error.to_string() }),
    };
    if found.is_dir() {
        return Err(Error::Plugin { path: path.to_owned(), message: "is a directory".to_owned() });
    }
    if found.permissions().mode() & 0o111 == 0 {
        return Err(Error::Plugin { path: path.to_owned(), message: "permission denied".to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n";
    const GOOD: &str = "- {name: web, matchImages: ['*.reg.io'], defaultCacheDuration: 1m, \
                        apiVersion: credentialprovider.kubelet.k8s.io/v1, args: [get], \
                        env: [{name: A, value: b}]}\n";

    fn refusal(providers: &str) -> String {
        let found = decode(format!("{HEAD}{providers}").as_bytes()).unwrap();
        invalid(&found).join("; ")
    }

    #[test]
    fn rules_are_told_in_upstreams_words() {
        assert_eq!(refusal(GOOD), "");
        assert_eq!(refusal("  []\n"), "providers: Required value: at least 1 item in plugins is required");
        assert_eq!(
            refusal("- {name: 'a/b c'}"),
            "providers.name: Invalid value: \"a/b c\": provider name cannot contain '/'; \
             providers.name: Invalid value: \"a/b c\": provider name cannot contain spaces; \
             providers.apiVersion: Required value; \
             providers.matchImages: Required value: at least 1 item in matchImages is required; \
             providers.defaultCacheDuration: Required value"
        );
        let with = |attributes: &str| {
            refusal(&GOOD.replace("args: [get]", &format!("tokenAttributes: {attributes}")))
        };
        assert_eq!(
            with(
                "{cacheType: Pod, serviceAccountTokenAudience: a, requireServiceAccount: false, requiredServiceAccountAnnotationKeys: [k, k], optionalServiceAccountAnnotationKeys: [k]}"
            ),
            "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set; \
             providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Duplicate value: \"k\"; \
             providers.tokenAttributes: Invalid value: [\"k\"]: annotation keys cannot be both required and optional; \
             providers.tokenAttributes.cacheType: Unsupported value: \"Pod\": supported values: \"ServiceAccount\", \"Token\""
        );
        assert_eq!(
            with("{cacheType: Token, serviceAccountTokenAudience: a, requireServiceAccount: true}"),
            ""
        );
    }

    #[test]
    fn a_document_is_read_strictly() {
        for bad in [
            format!("{HEAD}- {{name: a, nmae: b}}"),
            format!("{HEAD}- {{name: a, name: b}}"),
            HEAD.replace("/v1", "/v2") + GOOD,
            HEAD.replace("CredentialProviderConfig", "KubeletConfiguration") + GOOD,
            HEAD.replace("/v1", "/v1beta1") + "- {name: a, tokenAttributes: {}}",
        ] {
            assert!(decode(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(decode((HEAD.replace("/v1", "/v1alpha1") + GOOD).as_bytes()).is_ok());
    }

    #[test]
    fn a_folder_is_read_in_order_and_names_are_unique() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let (config, bin) = (root.path().join("config"), root.path().join("bin"));
        let told = |found: Result<(Vec<Provider>, String), Error>| found.unwrap_err().to_string();
        assert_eq!(
            told(read(&config, &bin)),
            format!("plugin binary directory {} did not exist", bin.display())
        );
        fs::create_dir(&bin).unwrap();
        assert!(
            told(read(&config, &bin))
                .starts_with(&format!("unable to access path \"{}\": ", config.display()))
        );
        fs::create_dir(&config).unwrap();
        assert_eq!(
            told(read(&config, &bin)),
            format!("no configuration files found in directory \"{}\"", config.display())
        );
        fs::write(config.join("b.yaml"), format!("{HEAD}{GOOD}")).unwrap();
        fs::write(config.join("a.json"), format!("{HEAD}{}", GOOD.replace("web", "first"))).unwrap();
        fs::write(config.join("c.txt"), "nonsense").unwrap();
        let first = bin.join("first");
        assert_eq!(
            told(read(&config, &bin)),
            format!("plugin binary executable {} did not exist", first.display())
        );
        for name in ["first", "web"] {
            fs::write(bin.join(name), "#!/bin/sh\n").unwrap();
        }
        assert_eq!(
            told(read(&config, &bin)),
            format!("error inspecting binary executable {}: permission denied", first.display())
        );
        for name in ["first", "web"] {
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let (providers, sum) = read(&config, &bin).unwrap();
        let names: Vec<&str> = providers.iter().map(|provider| provider.name.as_str()).collect();
        assert_eq!(names, ["first", "web"]);
        assert_eq!(sum.len(), "sha256:".len() + 64);
        fs::write(config.join("d.yml"), format!("{HEAD}{GOOD}")).unwrap();
        assert_eq!(
            told(read(&config, &bin)),
            "duplicate provider name \"web\" found in configuration file(s)"
        );
    }
}
