//! The `exec` of a user in a kubeconfig, and what such a program is told. Pure: owns the words of both; never runs
//! anything. Called by [`super::super::kubeconfig`] and [`super`].

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// The versions of the request and its answer that there are.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", BETA];
const BETA: &str = "client.authentication.k8s.io/v1beta1";
/// Of a cluster's extensions the one that the program is given.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

/// Whether somebody at a terminal is needed; a kubelet has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InteractiveMode {
    /// It does without.
    Never,
    /// It can do without.
    IfAvailable,
    /// It can't.
    Always,
}

/// A program that knows credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// A path, or a name that is looked for in PATH.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables beside those of the kubelet.
    pub env: Vec<(String, String)>,
    /// The version that it speaks.
    pub api_version: String,
    /// How to get it, for people.
    pub install_hint: String,
    /// Whether it needs somebody.
    pub interactive_mode: InteractiveMode,
    /// What it is told of the cluster, when it wants that.
    pub cluster: Option<Cluster>,
}

/// Arguments and variables may be secrets.
impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("command", &self.command).finish_non_exhaustive()
    }
}

/// What a program is told of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// As the kubeconfig has it, but for the authority and the extensions.
    fields: Map<String, Value>,
    /// A file, which is read each time.
    pub authority: Option<PathBuf>,
}

/// Reads `exec` of the user of this `name`, if there is one.
///
/// # Errors
/// In upstream's words, when it is not as it should be.
pub(in super::super) fn parse(
    user: &Value,
    cluster: &Value,
    name: &str,
    folder: &Path,
) -> Result<Option<Config>, String> {
    let Some(exec) = user.get("exec").filter(|value| !value.is_null()) else { return Ok(None) };
    let text = |key: &str| exec.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let needed =
        |what: &str| format!("{what} must be specified for {name} to use exec authentication plugin");
    let (command, api_version) = (text("command"), text("apiVersion"));
    if command.is_empty() {
        return Err(needed("command"));
    }
    if api_version.is_empty() {
        return Err(needed("apiVersion"));
    }
    if !VERSIONS.contains(&api_version.as_str()) {
        return Err(format!("exec plugin: invalid apiVersion {api_version:?}"));
    }
    let interactive_mode = match text("interactiveMode").as_str() {
        "Never" => InteractiveMode::Never,
        "IfAvailable" => InteractiveMode::IfAvailable,
        "Always" => InteractiveMode::Always,
        "" if api_version == BETA => InteractiveMode::IfAvailable,
        "" => return Err(needed("interactiveMode")),
        other => return Err(format!("invalid interactiveMode for {name}: {other:?}")),
    };
    let wants = exec.get("provideClusterInfo").and_then(Value::as_bool).unwrap_or(false);
    Ok(Some(Config {
        // As upstream: a name is looked for in PATH, a path is seen from the file.
        command: if command.contains('/') { folder.join(&command) } else { PathBuf::from(&command) },
        args: args(exec)?,
        env: env(exec).ok_or_else(|| needed("env variable name"))?,
        api_version,
        install_hint: text("installHint"),
        interactive_mode,
        cluster: wants.then(|| Cluster::of(cluster, folder)),
    }))
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn args(exec: &Value) -> Result<Vec<String>, String> {
    let text = |arg: &Value| arg.as_str().map(str::to_owned);
    list(exec, "args").map(|arg| text(arg).ok_or_else(|| "args of exec must be texts".to_owned())).collect()
}

/// None when one has no name.
fn env(exec: &Value) -> Option<Vec<(String, String)>> {
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let pair = |variable: &Value| {
        let name = text(variable, "name");
        (!name.is_empty()).then(|| (name, text(variable, "value")))
    };
    list(exec, "env").map(pair).collect()
}

impl Cluster {
    fn of(cluster: &Value, folder: &Path) -> Self {
        let mut fields = Map::new();
        let told = [
            "server",
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority-data",
            "proxy-url",
            "disable-compression",
        ];
        for key in told {
            if let Some(value) = cluster.get(key).filter(|value| !is_empty(value)) {
                fields.insert(key.to_owned(), value.clone());
            }
        }
        let ours = |one: &&Value| one.get("name").and_then(Value::as_str) == Some(EXTENSION);
        if let Some(extension) = list(cluster, "extensions").find(ours).and_then(|one| one.get("extension")) {
            fields.insert("config".to_owned(), extension.clone());
        }
        let file = cluster.get("certificate-authority").and_then(Value::as_str);
        let authority =
            file.filter(|file| !file.is_empty() && !fields.contains_key("certificate-authority-data"));
        Self { fields, authority: authority.map(|file| folder.join(file)) }
    }
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false)) || value.as_str() == Some("")
}

impl Config {
    /// What stands in `KUBERNETES_EXEC_INFO`; `authority` is what the cluster's file holds.
    pub(super) fn info(&self, authority: Option<&[u8]>) -> String {
        let mut spec = json!({ "interactive": false });
        if let Some(cluster) = &self.cluster {
            let mut fields = cluster.fields.clone();
            if let Some(data) = authority {
                fields.insert("certificate-authority-data".to_owned(), STANDARD.encode(data).into());
            }
            spec["cluster"] = Value::Object(fields);
        }
        json!({ "kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(user: &str, cluster: &Value) -> Result<Config, String> {
        let user: Value = serde_saphyr::from_str(user).unwrap();
        parse(&user, cluster, "u", Path::new("/etc/k")).map(Option::unwrap)
    }

    #[test]
    fn a_program_is_read_with_its_paths_seen_from_the_file() {
        let cluster = json!({
            "server": "https://h", "certificate-authority": "ca.crt", "tls-server-name": "",
            "extensions": [
                { "name": "other", "extension": 1 },
                { "name": "client.authentication.k8s.io/exec", "extension": { "audience": "x" } },
            ],
        });
        let text = "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: ./bin/aws, args: [a, 'b c'], env: [{name: \
                    A, value: b}], provideClusterInfo: true, installHint: get it}";
        let config = read(text, &cluster).unwrap();
        assert_eq!(config.command, Path::new("/etc/k/./bin/aws"));
        assert_eq!(
            (config.args.as_slice(), config.interactive_mode),
            (&["a".to_owned(), "b c".to_owned()][..], InteractiveMode::IfAvailable)
        );
        assert_eq!(config.env, [("A".to_owned(), "b".to_owned())]);
        assert_eq!(config.cluster.as_ref().unwrap().authority.as_deref(), Some(Path::new("/etc/k/ca.crt")));
        let info: Value = serde_json::from_str(&config.info(Some(b"ca"))).unwrap();
        assert_eq!(
            info,
            json!({
                "kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1",
                "spec": { "interactive": false, "cluster": {
                    "server": "https://h", "certificate-authority-data": "Y2E=", "config": { "audience": "x" },
                } },
            })
        );
        assert!(!format!("{config:?}").contains("b c"));
        let plain =
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}";
        let config = read(plain, &cluster).unwrap();
        assert_eq!((config.command.as_path(), &config.cluster), (Path::new("aws"), &None));
        assert!(!config.info(None).contains("cluster"));
        assert_eq!(parse(&json!({ "exec": null }), &cluster, "u", Path::new("/")), Ok(None));
    }

    #[test]
    fn what_is_wrong_is_told_in_upstreams_words() {
        let needed = |what: &str| format!("{what} must be specified for u to use exec authentication plugin");
        let v1 = "apiVersion: client.authentication.k8s.io/v1";
        for (text, error) in [
            (format!("exec: {{{v1}}}"), needed("command")),
            ("exec: {command: x}".to_owned(), needed("apiVersion")),
            (format!("exec: {{{v1}, command: x}}"), needed("interactiveMode")),
            (
                format!("exec: {{{v1}, command: x, interactiveMode: Never, env: [{{value: a}}]}}"),
                needed("env variable name"),
            ),
            (
                format!("exec: {{{v1}, command: x, interactiveMode: Often}}"),
                "invalid interactiveMode for u: \"Often\"".to_owned(),
            ),
            (
                format!("exec: {{{v1}alpha1, command: x}}"),
                "exec plugin: invalid apiVersion \"client.authentication.k8s.io/v1alpha1\"".to_owned(),
            ),
        ] {
            assert_eq!(read(&text, &Value::Null).unwrap_err(), error, "{text}");
        }
    }
}
