//! A network's configuration: found, read, kept as it was.
//!
//! Owns the form of a configuration list and the choice of the file. Never looks into a plugin's own fields (each plugin
//! does) and never has an effect. Called by the runtime, which stores the list with the sandbox for DEL.
//! <https://www.cni.dev/docs/spec/#section-1-network-configuration-format>

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::plugin::VERSIONS;

/// A configuration list. It is stored and compared as the JSON that it was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Conflist {
    name: String,
    cni_version: String,
    /// Where it comes from, for messages.
    origin: String,
    raw: Value,
}

/// Why a configuration could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConflistError {
    /// The folder cannot be listed.
    #[error("cannot list network configurations in {path}")]
    List {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read network configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The text is not JSON.
    #[error("network configuration {origin} is not JSON")]
    Json {
        /// Where it comes from.
        origin: String,
        /// Where it goes wrong.
        #[source]
        source: serde_json::Error,
    },
    /// A field is absent or wrong.
    #[error("network configuration {origin}: {problem}")]
    Field {
        /// Where it comes from.
        origin: String,
        /// What is wrong with which field.
        problem: String,
    },
}

impl Conflist {
    /// Reads the first configuration of a folder: of the files `*.conflist`, `*.conf` and `*.json` the first by name.
    /// `None` when the folder is absent or has none.
    ///
    /// # Errors
    /// When the folder or the file cannot be read, or the file is no configuration.
    pub fn load(conf_dir: &Path) -> Result<Option<Conflist>, ConflistError> {
        let Some(path) = files(conf_dir, &["conflist", "conf", "json"])?.into_iter().next() else {
            return Ok(None);
        };
        let mut raw = read(&path)?;
        let origin = path.display().to_string();
        if raw.get("plugins").is_none() && path.extension().is_some_and(|ext| ext != "conflist") {
            raw = list_of_one(&raw);
        } else {
            append_separate_plugins(&mut raw, conf_dir)?;
        }
        Conflist::from_value(raw, &origin).map(Some)
    }

    /// Reads a configuration list, or a single plugin's configuration, from text. `source_name` says in messages where
    /// it comes from.
    ///
    /// # Errors
    /// When the text is no configuration.
    pub fn parse(text: &str, source_name: &str) -> Result<Conflist, ConflistError> {
        let raw: Value = serde_json::from_str(text)
            .map_err(|source| ConflistError::Json { origin: source_name.into(), source })?;
        let is_list = raw.get("plugins").is_some() || raw.get("type").is_none();
        Conflist::from_value(if is_list { raw } else { list_of_one(&raw) }, source_name)
    }

    /// The network of a machine that has no configuration: bridge `gantry0`, addresses of 10.87.0.0/16, masqueraded
    /// beyond it, with host ports.
    pub fn default_network() -> Conflist {
        let name = "gantry";
        let cni_version = "1.1.0";
        let raw = json!({
            "cniVersion": cni_version,
            "name": name,
            "plugins": [{
                "type": "bridge",
                "bridge": "gantry0",
                "isGateway": true,
                "ipMasq": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.87.0.0/16"}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }, {
                "type": "portmap",
                "capabilities": {"portMappings": true},
            }],
        });
        Conflist {
            name: name.into(),
            cni_version: cni_version.into(),
            origin: "the built-in network".into(),
            raw,
        }
    }

    /// The network's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The newest version of the specification that both the list and Gantry know.
    pub fn cni_version(&self) -> &str {
        &self.cni_version
    }

    /// Where the list comes from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The JSON as it was read.
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    /// Whether the list's version of the specification is older than this one, which is spoken.
    pub(crate) fn is_older_than(&self, version: &str) -> bool {
        let place = |wanted: &str| VERSIONS.iter().position(|known| *known == wanted);
        place(&self.cni_version) < place(version)
    }

    /// A switch of the list; text counts, too, as libcni has it.
    pub(crate) fn flag(&self, name: &str) -> bool {
        is_true(self.raw.get(name))
    }

    /// Whether a plugin of the list takes this capability argument.
    pub fn has_capability(&self, capability: &str) -> bool {
        self.plugins().any(|(_, conf)| crate::request::declares(conf.get("capabilities"), capability))
    }

    /// Each plugin's type and configuration, in order.
    pub fn plugins(&self) -> impl Iterator<Item = (&str, &Value)> {
        let plugins =
            self.raw.get("plugins").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        plugins.iter().map(|conf| (conf.get("type").and_then(Value::as_str).unwrap_or_default(), conf))
    }

    fn from_value(raw: Value, origin: &str) -> Result<Conflist, ConflistError> {
        let wrong = |problem: String| ConflistError::Field { origin: origin.into(), problem };
        if !raw.is_object() {
            return Err(wrong("it is not an object".into()));
        }
        let name = raw.get("name").and_then(Value::as_str).unwrap_or_default();
        if !crate::request::is_identifier(name) {
            return Err(wrong(format!("name {name:?} is not one of letters, digits, '_', '.' and '-'")));
        }
        let cni_version = version(&raw).map_err(wrong)?;
        let plugins = raw.get("plugins").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if plugins.is_empty() {
            return Err(wrong("plugins is absent or empty".into()));
        }
        for switch in ["disableCheck", "disableGC", "loadOnlyInlinedPlugins"] {
            let value = raw.get(switch);
            let is_switch =
                value.is_none_or(|value| value.is_boolean() || is_true(Some(value)) || is_false(value));
            if !is_switch {
                return Err(wrong(format!("{switch} is neither true nor false")));
            }
        }
        let has_no_type = |conf: &Value| conf.get("type").and_then(Value::as_str).is_none_or(str::is_empty);
        if let Some(index) = plugins.iter().position(has_no_type) {
            return Err(wrong(format!("plugins[{index}] has no type")));
        }
        Ok(Conflist { name: name.into(), cni_version: cni_version.into(), origin: origin.into(), raw })
    }
}

fn is_true(value: Option<&Value>) -> bool {
    value.is_some_and(|value| {
        *value == json!(true) || value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("true"))
    })
}

fn is_false(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("false"))
}

impl TryFrom<Value> for Conflist {
    type Error = ConflistError;

    fn try_from(raw: Value) -> Result<Conflist, ConflistError> {
        Conflist::from_value(raw, "stored with the sandbox")
    }
}

impl From<Conflist> for Value {
    fn from(list: Conflist) -> Value {
        list.raw
    }
}

/// The newest version that the list names (`cniVersion`, and since 1.1.0 also `cniVersions`) and that is spoken.
fn version(raw: &Value) -> Result<&'static str, String> {
    let single = raw.get("cniVersion").into_iter();
    let several = raw.get("cniVersions").and_then(Value::as_array).into_iter().flatten();
    let named: Vec<&str> = single.chain(several).filter_map(Value::as_str).collect();
    let newest = VERSIONS.into_iter().rev().find(|version| named.contains(version));
    newest.ok_or_else(|| match named.as_slice() {
        [] => format!("cniVersion is absent; set it to one of {}", VERSIONS.join(", ")),
        _ => format!("cniVersion {} is not supported; use one of {}", named.join(", "), VERSIONS.join(", ")),
    })
}

/// The files of a folder with one of these extensions, by name. An absent folder has none.
fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, ConflistError> {
    let failed = |source| ConflistError::List { path: dir.into(), source };
    let entries = match dir.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| extensions.contains(&extension)) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Value, ConflistError> {
    let bytes = std::fs::read(path).map_err(|source| ConflistError::Read { path: path.into(), source })?;
    serde_json::from_slice(&bytes)
        .map_err(|source| ConflistError::Json { origin: path.display().to_string(), source })
}

/// A single plugin's configuration as a list, as libcni makes it.
fn list_of_one(conf: &Value) -> Value {
    json!({
        "cniVersion": conf.get("cniVersion"),
        "name": conf.get("name"),
        "plugins": [conf],
    })
}

/// Since 1.1.0 a list's plugins may also lie in files of their own, in a folder of the network's name. They become part
/// of the list, so that what is stored for DEL is whole.
fn append_separate_plugins(raw: &mut Value, conf_dir: &Path) -> Result<(), ConflistError> {
    let only_inlined = is_true(raw.get("loadOnlyInlinedPlugins"));
    let name = raw.get("name").and_then(Value::as_str).filter(|name| crate::request::is_identifier(name));
    let Some(name) = name.filter(|_| !only_inlined) else { return Ok(()) };
    let separate: Vec<Value> =
        files(&conf_dir.join(name), &["conf"])?.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    let Some(fields) = raw.as_object_mut().filter(|_| !separate.is_empty()) else { return Ok(()) };
    if let Some(plugins) = fields.entry("plugins").or_insert_with(|| json!([])).as_array_mut() {
        plugins.extend(separate);
    }
    fields.insert("loadOnlyInlinedPlugins".into(), json!(true));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        std::fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        std::fs::write(dir.join(name), text).unwrap();
    }

    const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge", "x": {"z": 1, "y": [2]}}], "odd": 1}"#;

    #[test]
    fn the_first_file_by_name_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Conflist::load(&dir.path().join("absent")).unwrap(), None);
        write(dir.path(), "00-readme.txt", "no JSON");
        assert_eq!(Conflist::load(dir.path()).unwrap(), None);
        write(dir.path(), "20-b.conf", r#"{"cniVersion": "0.4.0", "name": "b", "type": "bridge"}"#);
        let list = Conflist::load(dir.path()).unwrap().unwrap();
        assert_eq!((list.name(), list.cni_version()), ("b", "0.4.0"));
        assert_eq!(list.plugins().map(|(name, _)| name).collect::<Vec<_>>(), ["bridge"]);
        write(dir.path(), "10-a.conflist", LIST);
        let list = Conflist::load(dir.path()).unwrap().unwrap();
        assert_eq!(list.name(), "a");
        assert!(list.origin().ends_with("10-a.conflist"), "{}", list.origin());
    }

    #[test]
    fn what_is_stored_is_what_was_read() {
        let list = Conflist::parse(LIST, "here").unwrap();
        let stored = serde_json::to_string(&list).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&stored).unwrap(),
            serde_json::from_str::<Value>(LIST).unwrap()
        );
        let again: Conflist = serde_json::from_str(&stored).unwrap();
        assert_eq!(again.raw(), list.raw());
        assert_eq!(again.name(), "a");
    }

    #[test]
    fn numbers_of_any_length_are_stored_as_they_are() {
        let digits = format!("\"odd\": {}400", "1".repeat(77));
        let list = Conflist::parse(&LIST.replace("\"odd\": 1", &digits), "here").unwrap();
        let again: Conflist = serde_json::from_str(&serde_json::to_string(&list).unwrap()).unwrap();
        assert_eq!(again.raw(), list.raw());
    }

    #[test]
    fn plugins_in_files_of_their_own_become_part_of_the_list() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "10-a.conflist", LIST);
        write(dir.path(), "a/20-second.conf", r#"{"type": "loopback"}"#);
        let list = Conflist::load(dir.path()).unwrap().unwrap();
        assert_eq!(list.plugins().map(|(name, _)| name).collect::<Vec<_>>(), ["bridge", "loopback"]);
        let inlined = LIST.replace("\"odd\": 1", "\"loadOnlyInlinedPlugins\": true");
        write(dir.path(), "10-a.conflist", &inlined);
        assert_eq!(Conflist::load(dir.path()).unwrap().unwrap().plugins().count(), 1);
    }

    #[test]
    fn the_newest_version_in_common_counts() {
        let list = LIST.replace("\"odd\": 1", r#""cniVersions": ["0.4.0", "1.1.0", "9.0.0"]"#);
        assert_eq!(Conflist::parse(&list, "here").unwrap().cni_version(), "1.1.0");
    }

    #[test]
    fn broken_lists_are_refused_by_name() {
        for (text, expected) in [
            ("{", "file.conflist is not JSON"),
            ("[]", "it is not an object"),
            (r#"{"name": "../x", "plugins": []}"#, "name \"../x\" is not one of"),
            (r#"{"name": "a", "plugins": [{"type": "bridge"}]}"#, "cniVersion is absent"),
            (r#"{"cniVersion": "2.0.0", "name": "a", "plugins": [{}]}"#, "cniVersion 2.0.0 is not supported"),
            (r#"{"cniVersion": "1.0.0", "name": "a", "plugins": []}"#, "plugins is absent or empty"),
            (
                r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "x"}, {}]}"#,
                "plugins[1] has no type",
            ),
        ] {
            let error = Conflist::parse(text, "file.conflist").unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_built_in_network_reads_itself() {
        let list = Conflist::default_network();
        let again: Conflist = serde_json::from_value(serde_json::to_value(&list).unwrap()).unwrap();
        assert_eq!((again.name(), again.cni_version(), again.raw()), ("gantry", "1.1.0", list.raw()));
    }
}
