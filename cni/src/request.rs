//! What one call of one plugin is about: whose interface, and with which configuration.
//!
//! Owns how a network's configuration becomes the configuration of a call: name, version, capability arguments and
//! valid attachments are put in, `capabilities` is taken out (specification §3, "deriving request configuration").
//! Never runs anything; pure. Called by the chain, by the plugins' executables and by the plugins that read a call.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Longest name of a link: `IFNAMSIZ` without the final zero byte.
const INTERFACE_NAME: usize = 15;

/// The folders of the node that a call is for. Nodes of one machine may have networks of the same name, and each only
/// knows its own attachments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeDirs<'a> {
    pub(crate) data_dir: &'a Path,
    pub(crate) cache_dir: &'a Path,
}

impl NodeDirs<'static> {
    /// Where things lie unless somebody says otherwise; a plugin that is run as a program is not told.
    pub(crate) fn default_dirs() -> NodeDirs<'static> {
        NodeDirs {
            data_dir: Path::new("/var/lib/cni/networks"),
            cache_dir: Path::new("/var/lib/cni/results"),
        }
    }
}

impl NodeDirs<'_> {
    /// Whether it is the one whose rules bear the network's name alone.
    pub(crate) fn is_default_dirs(&self) -> bool {
        let usual = NodeDirs::default_dirs();
        self.data_dir == usual.data_dir && self.cache_dir == usual.cache_dir
    }
}

/// The attachment that a call is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttachmentTarget<'a> {
    pub(crate) network: &'a str,
    pub(crate) home: NodeDirs<'a>,
    pub(crate) container_id: &'a str,
    pub(crate) ifname: &'a str,
    /// Empty in a DEL whose namespace is gone.
    pub(crate) netns: &'a Path,
    pub(crate) args: &'a [(String, String)],
}

impl AttachmentTarget<'_> {
    /// The pod in words, if the runtime said which one it is.
    pub(crate) fn pod(&self) -> String {
        let named = |name| argument(self.args, name).filter(|value| !value.is_empty());
        match (named("K8S_POD_NAMESPACE"), named("K8S_POD_NAME")) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            _ => format!("container {}", self.container_id.get(..12).unwrap_or(self.container_id)),
        }
    }
}

/// The value of a `CNI_ARGS` key.
pub(crate) fn argument<'a>(args: &'a [(String, String)], name: &str) -> Option<&'a str> {
    args.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// What a plugin is told beside its configuration when it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PluginContext<'a> {
    pub(crate) network: &'a str,
    pub(crate) args: &'a [(String, String)],
    /// Where leases lie unless the configuration says otherwise.
    pub(crate) data_dir: &'a Path,
    /// Where programs of plugins lie.
    pub(crate) bin_dirs: &'a [PathBuf],
    /// Whether programs are run even for plugins that are built in.
    pub(crate) prefer_external: bool,
}

/// An attachment that GC must leave alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValidAttachment {
    /// The sandbox's id.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface in it.
    pub ifname: String,
}

/// The configuration of a call, but for `prevResult`.
pub(crate) fn derive(
    conf: &Value,
    name: &str,
    cni_version: &str,
    capabilities: &BTreeMap<String, Value>,
) -> Value {
    let mut fields = conf.as_object().cloned().unwrap_or_default();
    let declared = fields.remove("capabilities");
    let asked: Map<String, Value> = capabilities
        .iter()
        .filter(|(capability, _)| declares(declared.as_ref(), capability))
        .map(|(capability, value)| (capability.clone(), value.clone()))
        .collect();
    if !asked.is_empty() {
        fields.insert("runtimeConfig".into(), asked.into());
    }
    fields.insert("name".into(), name.into());
    fields.insert("cniVersion".into(), cni_version.into());
    fields.into()
}

/// Whether a plugin's `capabilities` has this one switched on.
pub(crate) fn declares(capabilities: Option<&Value>, capability: &str) -> bool {
    capabilities.and_then(|declared| declared.get(capability)).is_some_and(|on| *on == json!(true))
}

/// The same configuration with more fields.
pub(crate) fn with_fields(conf: &Value, more: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let mut fields = conf.as_object().cloned().unwrap_or_default();
    fields.extend(more.into_iter().map(|(key, value)| (key.to_owned(), value)));
    fields.into()
}

/// The fields that GC adds. The second is what older readers of the specification look for.
pub(crate) fn valid_attachments(valid: &[ValidAttachment]) -> [(&'static str, Value); 2] {
    [("cni.dev/valid-attachments", json!(valid)), ("cni.dev/attachments", json!(valid))]
}

/// The configuration without what belongs to the call and not to the plugin, so that the rest can be read strictly.
pub(crate) fn own_fields(conf: &Value) -> Value {
    let mut fields = conf.as_object().cloned().unwrap_or_default();
    fields.retain(|key, _| {
        !key.starts_with("cni.dev/")
            && !matches!(
                key.as_str(),
                "name" | "cniVersion" | "type" | "capabilities" | "runtimeConfig" | "prevResult" | "args"
            )
    });
    fields.into()
}

/// Whether a field of a configuration is set to something: what is off need not be supported.
pub(crate) fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// Whether this is an id of a container or name of a network, as the specification has it.
pub(crate) fn is_identifier(text: &str) -> bool {
    let first_is_right = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    first_is_right && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

/// Whether the kernel takes this for the name of a link (`dev_valid_name`).
pub(crate) fn is_interface_name(text: &str) -> bool {
    let length_is_right = (1..=INTERFACE_NAME).contains(&text.len());
    let is_odd = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace();
    length_is_right && text != "." && text != ".." && !text.contains(is_odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities() -> BTreeMap<String, Value> {
        [
            ("portMappings".to_owned(), json!([{"hostPort": 80}])),
            ("bandwidth".to_owned(), json!({"ingressRate": 1})),
        ]
        .into()
    }

    #[test]
    fn a_call_has_the_networks_name_and_only_the_capabilities_it_declares() {
        let conf = json!({"type": "portmap", "capabilities": {"portMappings": true, "bandwidth": false}, "snat": true});
        assert_eq!(
            derive(&conf, "net", "1.1.0", &capabilities()),
            json!({
                "type": "portmap", "snat": true, "name": "net", "cniVersion": "1.1.0",
                "runtimeConfig": {"portMappings": [{"hostPort": 80}]},
            })
        );
        let none = derive(&json!({"type": "x"}), "net", "1.1.0", &capabilities());
        assert_eq!(none, json!({"type": "x", "name": "net", "cniVersion": "1.1.0"}));
    }

    #[test]
    fn a_plugins_own_fields_are_what_it_reads_strictly() {
        let conf = json!({"type": "x", "cni.dev/valid-attachments": [], "runtimeConfig": {}, "bridge": "b"});
        assert_eq!(own_fields(&conf), json!({"bridge": "b"}));
    }

    #[test]
    fn a_pod_is_named_by_what_the_runtime_said() {
        let args = [
            ("K8S_POD_NAMESPACE".to_owned(), "ns".to_owned()),
            ("K8S_POD_NAME".to_owned(), "web".to_owned()),
        ];
        let mut target = AttachmentTarget {
            network: "n",
            home: NodeDirs::default_dirs(),
            container_id: "c1",
            ifname: "eth0",
            netns: Path::new(""),
            args: &args,
        };
        assert_eq!(target.pod(), "ns/web");
        target.args = &args[..1];
        assert_eq!(target.pod(), "container c1");
    }
}
