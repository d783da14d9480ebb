//! What a kubelet is told: flags, a configuration file, drop-ins. Owns precedence, defaults and what
//! is refused; never acts on a value. Called by the command line, which hands on what it returns.
//!
//! Defaults < `--config` < `--config-dir` < flags; the feature gates of all are put together.

mod defaults;
pub mod eviction;
pub mod fields;
pub mod file;
pub mod flag;
pub mod gates;
pub mod image_verification;
pub mod labels;
pub mod refused;
mod settings;
pub mod shutdown;
mod spans;
mod taint;
mod validate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

pub use self::fields::KubeletConfiguration;
use self::flag::ParsedFlags;
use self::gates::Gates;
pub use self::settings::KubeletFlags;
pub use self::validate::Host;

/// What to do.
#[derive(Debug)]
pub enum Order {
    /// `--help`.
    Help,
    /// `--version`; a text in another form was asked for.
    Version {
        /// `--version=raw`.
        raw: bool,
    },
    /// Run.
    Run(Box<Loaded>),
}

/// A configuration in force.
#[derive(Debug)]
pub struct Loaded {
    /// What only flags say.
    pub flags: KubeletFlags,
    /// What files, drop-ins and flags say together.
    pub config: KubeletConfiguration,
    /// Whether one of them says how fast the API server may be asked: the default does not count.
    pub is_api_limit_set: bool,
    /// Every flag and its value, sorted.
    pub flagz: Vec<(String, String)>,
    /// What has to be told once logging works.
    pub notes: Vec<String>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to parse kubelet flag: {0}")]
    Flag(#[from] flag::Error),
    #[error("unknown command {0}")]
    Command(String),
    #[error("failed to validate kubelet flags: {0}")]
    Labels(String),
    #[error("failed to set feature gates from initial flags-based config: {0}")]
    Gates(String),
    #[error(
        "failed to load kubelet config file, path: {path}, error: failed to load Kubelet config file {path}, error {source}"
    )]
    File { path: String, source: file::Error },
    #[error(
        "failed to merge kubelet configs: failed to walk through kubelet dropin directory {folder:?}: {source}"
    )]
    Walk { folder: String, source: std::io::Error },
    #[error(
        "failed to merge kubelet configs: failed to walk through kubelet dropin directory {folder:?}: \
         failed to load kubelet dropin file, path: {}, {reason}", path.display()
    )]
    DropIn { folder: String, path: PathBuf, reason: String },
    #[error("failed to validate kubelet configuration, error: {}", join(.0))]
    Invalid(Vec<String>),
}

/// One thing stands alone, several stand in brackets.
fn join(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Reads the command line and the files that it names. Lines for flags that should not be used any
/// more go to `deprecated` at once: they are told even when something later fails.
///
/// # Errors
/// When the kubelet must not start with this.
pub fn load(arguments: &[String], host: Host, mut deprecated: impl FnMut(&str)) -> Result<Order, Error> {
    let mut given = ParsedFlags::default();
    let read = given.read(arguments);
    given.deprecated.iter().for_each(|line| deprecated(line));
    read?;
    if let Some(command) = given.rest.first() {
        return Err(Error::Command(command.clone()));
    }
    if given.is_on("help") {
        return Ok(Order::Help);
    }
    match given.value("version") {
        Some(Value::Bool(true)) => return Ok(Order::Version { raw: false }),
        Some(Value::String(text)) if text == "raw" => return Ok(Order::Version { raw: true }),
        _ => {}
    }
    let gates = Gates::default();
    let flags = KubeletFlags::from_given(&given);
    let mut notes = Vec::new();
    let mut config = KubeletConfiguration::default();
    config.set_defaults(&gates);
    config.set_legacy_defaults();
    apply(&given, &mut config)?;
    known(&gates, &config)?;
    labels::check(&flags.node_labels).map_err(Error::Labels)?;
    let mut set = given.value("kube-api-qps").is_some() || given.value("kube-api-burst").is_some();
    if !flags.config.is_empty() {
        config = from_file(&flags.config, &gates, &mut notes, &mut set)?;
    }
    if !flags.config_dir.is_empty() {
        config = merge_flags(&config, &flags.config_dir, &gates, &mut notes, &mut set)?;
    }
    apply(&given, &mut config)?;
    known(&gates, &config)?;
    let problems = validate::problems(&config, &flags, &gates, host);
    if !problems.is_empty() {
        return Err(Error::Invalid(problems));
    }
    notes.extend(refused::inert(&config));
    notes.extend(refused::inert_flags(&given));
    let flagz = flag::all().iter().map(|flag| (flag.name.to_owned(), given.text(flag.name))).collect();
    Ok(Order::Run(Box::new(Loaded { flags, config, is_api_limit_set: set, flagz, notes })))
}

/// Gates that nobody has, or that cannot move.
fn known(gates: &Gates, config: &KubeletConfiguration) -> Result<(), Error> {
    match gates.wrong(&config.feature_gates) {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(Error::Gates(join(&wrong))),
    }
}

/// Puts flags over what is there.
fn apply(given: &ParsedFlags, config: &mut KubeletConfiguration) -> Result<(), Error> {
    let before = config.feature_gates.clone();
    let mut value = to_json(config);
    for flag in given.flags().filter(|flag| !flag.field.is_empty()) {
        let Some(new) = given.value(flag.name) else { continue };
        // An address that is empty leaves what is there.
        if flag.kind == "ip" && new == json!("") {
            continue;
        }
        set(&mut value, flag.field, new);
    }
    *config = serde_json::from_value(value).map_err(|e| Error::Invalid(vec![e.to_string()]))?;
    for (gate, open) in before {
        config.feature_gates.entry(gate).or_insert(open);
    }
    Ok(())
}

fn set(value: &mut Value, path: &str, new: Value) {
    let mut place = value;
    for name in path.split('.') {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[name];
    }
    *place = new;
}

fn to_json(config: &KubeletConfiguration) -> Value {
    // Every field is a plain value: it can always be written.
    serde_json::to_value(config).unwrap_or_else(|_| json!({}))
}

/// Whether a file says how fast the API server may be asked.
fn sets_api_limit(document: &Map<String, Value>) -> bool {
    ["kubeAPIQPS", "kubeAPIBurst"].iter().any(|key| document.get(*key).is_some_and(|value| !value.is_null()))
}

fn from_file(
    path: &str,
    gates: &Gates,
    notes: &mut Vec<String>,
    is_api_limit_set: &mut bool,
) -> Result<KubeletConfiguration, Error> {
    let wrap = |source| Error::File { path: path.to_owned(), source };
    let absolute = std::path::absolute(path)
        .map_err(|source| wrap(file::Error::Read { path: PathBuf::from(path), source }))?;
    let document = file::read(&absolute).map_err(wrap)?;
    file::check_kind(&document.object).map_err(wrap)?;
    // No thresholds are something else than nothing about thresholds.
    let thresholds = document.object.get("evictionHard").is_some_and(|value| !value.is_null());
    *is_api_limit_set |= sets_api_limit(&document.object);
    let (mut config, unknown) = file::decode(document.object).map_err(wrap)?;
    let strict: Vec<String> = document
        .duplicate
        .into_iter()
        .chain(unknown.iter().map(|field| format!("unknown field {field:?}")))
        .collect();
    if !strict.is_empty() {
        notes.push(format!(
            "Using lenient decoding as strict decoding failed: {}: {}",
            absolute.display(),
            strict.join(", ")
        ));
    }
    config.set_defaults(gates);
    config.set_file_defaults(thresholds);
    file::resolve_paths(&mut config, absolute.parent().unwrap_or(Path::new("/")));
    Ok(config)
}

fn merge_flags(
    base: &KubeletConfiguration,
    folder: &str,
    gates: &Gates,
    notes: &mut Vec<String>,
    is_api_limit_set: &mut bool,
) -> Result<KubeletConfiguration, Error> {
    let walk = |source| Error::Walk { folder: folder.to_owned(), source };
    let mut value = to_json(base);
    for path in file::walk(Path::new(folder)).map_err(walk)? {
        if path.extension().is_none_or(|ending| ending != "conf") {
            notes.push(format!(
                "Skipped file in drop-in directory (does not have .conf extension): {}",
                path.display()
            ));
            continue;
        }
        let wrong = |reason: String| Error::DropIn { folder: folder.to_owned(), path: path.clone(), reason };
        let document = file::read(&path).map_err(|e| wrong(format!("error: {e}")))?;
        if let Some(duplicate) = document.duplicate {
            return Err(wrong(format!("error: strict decoding error: {duplicate}")));
        }
        file::check_kind(&document.object).map_err(|e| wrong(format!("error: {e}")))?;
        *is_api_limit_set |= sets_api_limit(&document.object);
        file::merge(&mut value, Value::Object(document.object));
    }
    let wrap = |source| Error::File { path: folder.to_owned(), source };
    let object = value.as_object().cloned().unwrap_or_default();
    let (mut config, unknown) = file::decode(object).map_err(wrap)?;
    notes.extend(
        unknown
            .iter()
            .map(|field| format!("a drop-in sets {field:?}, which no kubelet of this version knows")),
    );
    config.set_defaults(gates);
    Ok(config)
}

/// What `/configz` answers.
#[must_use]
pub fn configz(config: &KubeletConfiguration) -> Value {
    let mut value = to_json(config);
    set(&mut value, "kind", json!("KubeletConfiguration"));
    set(&mut value, "apiVersion", json!("kubelet.config.k8s.io/v1beta1"));
    json!({ "kubeletconfig": value })
}

/// A map of text as flags and files have it.
type Texts = BTreeMap<String, String>;

#[cfg(test)]
pub(crate) mod tests;
