//! The plugins as programs: a link to the `gantry` command with a plugin's name speaks the exec protocol.
//!
//! Owns the protocol from the plugin's side (specification §2): environment and standard input in, a result or an error
//! object out, with the upstream plugins' codes. Never runs a chain: that is the caller's. Called by the command's `main`
//! before anything else of it.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gantry_base::error::chain;
use serde_json::{Value, json};

use crate::chain::{ChainPlugin, PluginErrorKind, VERSIONS};
use crate::exec::Verb;
use crate::netns;
use crate::request::{AttachmentTarget, NodeDirs, PluginContext, ValidAttachment};
use crate::request::{is_identifier, is_interface_name};
use crate::result::CniResult;

/// Codes of the specification's errors.
const INCOMPATIBLE_VERSION: u32 = 1;
const INVALID_ENVIRONMENT: u32 = 4;
const IO_FAILURE: u32 = 5;
const DECODING_FAILURE: u32 = 6;
const INVALID_CONFIG: u32 = 7;
const INVALID_NETNS: u32 = 8;
const NOT_AVAILABLE: u32 = 50;
const INTERNAL: u32 = 999;

/// An error as a plugin prints it.
#[derive(Debug, PartialEq, Eq)]
struct CniError {
    code: u32,
    msg: String,
    details: String,
}

fn refusal(code: u32, msg: impl Into<String>) -> CniError {
    CniError { code, msg: msg.into(), details: String::new() }
}

/// Serves one call if `name` is a plugin's, and says how the process is to end.
pub fn program(name: &Path) -> Option<ExitCode> {
    let kind = name.file_name()?.to_str().filter(|kind| ChainPlugin::is_built_in(kind))?;
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("CNI_COMMAND").is_empty() {
        return Some(print_about(kind));
    }
    let mut input = Vec::new();
    let read = match Verb::from_name(&variable("CNI_COMMAND")) {
        Some(Verb::Version) => Ok(0),
        _ => std::io::stdin().lock().read_to_end(&mut input),
    };
    let answer = match read {
        Err(error) => Err(refusal(IO_FAILURE, format!("error reading from stdin: {error}"))),
        Ok(_) => answer(kind, &variable, &input),
    };
    let (text, code) = match answer {
        Ok(None) => return Some(ExitCode::SUCCESS),
        Ok(Some(value)) => (value, ExitCode::SUCCESS),
        Err(CniError { code, msg, details }) => {
            let mut error = json!({"cniVersion": version_of(&input), "code": code, "msg": msg});
            if !details.is_empty() {
                error["details"] = details.into();
            }
            (error, ExitCode::FAILURE)
        }
    };
    // A caller that does not listen learns it from the code alone.
    let printed = writeln!(std::io::stdout(), "{text:#}");
    Some(if printed.is_ok() { code } else { ExitCode::FAILURE })
}

/// What somebody sees who calls a plugin by hand, as with the upstream plugins.
fn print_about(kind: &str) -> ExitCode {
    let version = env!("CARGO_PKG_VERSION");
    let supported = VERSIONS.join(", ");
    let said = writeln!(
        std::io::stderr(),
        "CNI plugin {kind} of gantry v{version}\nCNI protocol versions supported: {supported}"
    );
    if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn version_of(input: &[u8]) -> String {
    let conf: Value = serde_json::from_slice(input).unwrap_or_default();
    let version = conf.get("cniVersion").and_then(Value::as_str);
    version.filter(|version| VERSIONS.contains(version)).unwrap_or("1.1.0").into()
}

/// The call as it comes in by environment and standard input.
struct CniCall {
    verb: Verb,
    conf: Value,
    name: String,
    cni_version: &'static str,
    container_id: String,
    ifname: String,
    netns: PathBuf,
    args: Vec<(String, String)>,
    bin_dirs: Vec<PathBuf>,
    may_share_netns: bool,
}

fn answer(kind: &str, variable: &dyn Fn(&str) -> String, input: &[u8]) -> Result<Option<Value>, CniError> {
    let command = variable("CNI_COMMAND");
    let verb = Verb::from_name(&command)
        .ok_or_else(|| refusal(INVALID_ENVIRONMENT, format!("unknown CNI_COMMAND: {command}")))?;
    if verb == Verb::Version {
        return Ok(Some(json!({"cniVersion": "1.1.0", "supportedVersions": VERSIONS})));
    }
    let call = CniCall::read(verb, variable, input)?;
    let context = PluginContext {
        network: &call.name,
        args: &call.args,
        data_dir: NodeDirs::default_dirs().data_dir,
        bin_dirs: &call.bin_dirs,
        prefer_external: false,
    };
    let plugin = ChainPlugin::parse(kind, &call.conf, &context).map_err(|error| failure(&error, verb))?;
    run(&plugin, &call).map_err(|error| match error {
        PluginFailure::Protocol(refusal) => refusal,
        PluginFailure::Plugin(error) => failure(&error, verb),
    })
}

enum PluginFailure {
    Protocol(CniError),
    Plugin(PluginErrorKind),
}

impl From<PluginErrorKind> for PluginFailure {
    fn from(error: PluginErrorKind) -> PluginFailure {
        PluginFailure::Plugin(error)
    }
}

impl From<CniError> for PluginFailure {
    fn from(refusal: CniError) -> PluginFailure {
        PluginFailure::Protocol(refusal)
    }
}

fn run(plugin: &ChainPlugin, call: &CniCall) -> Result<Option<Value>, PluginFailure> {
    let target = AttachmentTarget {
        network: &call.name,
        home: NodeDirs::default_dirs(),
        container_id: &call.container_id,
        ifname: &call.ifname,
        netns: &call.netns,
        args: &call.args,
    };
    match call.verb {
        Verb::Add => {
            call.refuse_own_netns()?;
            let result = plugin.add(target, call.previous()?, &mut |_, _, _| {})?;
            return Ok(Some(result.in_version(call.cni_version).to_value()));
        }
        Verb::Del => plugin.del(target, call.previous()?.as_ref())?,
        Verb::Check => {
            let previous =
                call.previous()?.ok_or_else(|| refusal(INVALID_CONFIG, "Required prevResult missing"))?;
            plugin.check(target, &previous)?;
        }
        Verb::Status => plugin.status()?,
        Verb::Gc => plugin.gc(&call.name, NodeDirs::default_dirs(), &call.valid_attachments()?)?,
        Verb::Version => {}
    }
    Ok(None)
}

fn failure(error: &PluginErrorKind, verb: Verb) -> CniError {
    let code = match error.code() {
        Some(code) => code,
        None if error.is_config() => INVALID_CONFIG,
        None if verb == Verb::Status => NOT_AVAILABLE,
        None => INTERNAL,
    };
    refusal(code, chain(error))
}

impl CniCall {
    fn read(verb: Verb, variable: &dyn Fn(&str) -> String, input: &[u8]) -> Result<CniCall, CniError> {
        require(verb, variable)?;
        let conf: Value = serde_json::from_slice(input).map_err(|error| {
            refusal(DECODING_FAILURE, format!("error unmarshall network config: {error}"))
        })?;
        let name = conf.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if name.is_empty() {
            return Err(refusal(INVALID_CONFIG, "missing network name"));
        }
        if !is_identifier(&name) {
            return Err(refusal(
                INVALID_CONFIG,
                format!("invalid characters found in network name {name:?}"),
            ));
        }
        Ok(CniCall {
            verb,
            cni_version: version(&conf, verb)?,
            conf,
            name,
            container_id: variable("CNI_CONTAINERID"),
            ifname: variable("CNI_IFNAME"),
            netns: variable("CNI_NETNS").into(),
            args: arguments(&variable("CNI_ARGS")),
            bin_dirs: variable("CNI_PATH")
                .split(':')
                .filter(|dir| !dir.is_empty())
                .map(PathBuf::from)
                .collect(),
            may_share_netns: matches!(variable("CNI_NETNS_OVERRIDE").to_uppercase().as_str(), "TRUE" | "1"),
        })
    }

    /// The result of the plugins before this one, or of ADD.
    fn previous(&self) -> Result<Option<CniResult>, CniError> {
        match self.conf.get("prevResult") {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde::Deserialize::deserialize(value)
                .map(Some)
                .map_err(|error| refusal(DECODING_FAILURE, format!("could not parse prevResult: {error}"))),
        }
    }

    /// Both names of the field are read: the first is the specification's, the second that of its first edition.
    fn valid_attachments(&self) -> Result<Vec<ValidAttachment>, CniError> {
        let fields = ["cni.dev/valid-attachments", "cni.dev/attachments"];
        match fields.into_iter().find_map(|field| self.conf.get(field)) {
            // Without a list nothing would be valid, and GC would take everything: more likely it was forgotten.
            None => Err(refusal(INVALID_CONFIG, "GC without cni.dev/valid-attachments")),
            Some(Value::Null) => Ok(Vec::new()),
            Some(list) => serde::Deserialize::deserialize(list)
                .map_err(|error| refusal(DECODING_FAILURE, format!("cni.dev/valid-attachments: {error}"))),
        }
    }

    /// A pod's namespace that is the host's own means that something was mixed up, and ADD would wire up the host.
    fn refuse_own_netns(&self) -> Result<(), CniError> {
        if self.may_share_netns {
            return Ok(());
        }
        match netns::is_own(&self.netns) {
            Ok(false) => Ok(()),
            Ok(true) => {
                Err(refusal(INVALID_NETNS, "plugin's netns and netns from CNI_NETNS should not be the same"))
            }
            Err(error) => Err(refusal(INVALID_NETNS, chain(&error))),
        }
    }
}

/// Which variables an operation needs, and what they may be.
fn require(verb: Verb, variable: &dyn Fn(&str) -> String) -> Result<(), CniError> {
    let needed: &[&str] = match verb {
        Verb::Add | Verb::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
        Verb::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
        Verb::Gc | Verb::Status => &["CNI_PATH"],
        Verb::Version => &[],
    };
    let missing: Vec<&str> = needed.iter().copied().filter(|name| variable(name).is_empty()).collect();
    if !missing.is_empty() {
        let text = format!("required env variables [{}] missing", missing.join(","));
        return Err(refusal(INVALID_ENVIRONMENT, text));
    }
    let invalid =
        |name: &str| refusal(INVALID_ENVIRONMENT, format!("{name} {:?} is invalid", variable(name)));
    if needed.contains(&"CNI_CONTAINERID") && !is_identifier(&variable("CNI_CONTAINERID")) {
        return Err(invalid("CNI_CONTAINERID"));
    }
    if needed.contains(&"CNI_IFNAME") && !is_interface_name(&variable("CNI_IFNAME")) {
        return Err(invalid("CNI_IFNAME"));
    }
    Ok(())
}

/// The configuration's version, if it is spoken and knows the operation.
fn version(conf: &Value, verb: Verb) -> Result<&'static str, CniError> {
    let named = conf.get("cniVersion").and_then(Value::as_str).unwrap_or_default();
    let place = VERSIONS.iter().position(|version| *version == named);
    let Some((place, version)) = place.and_then(|place| Some((place, *VERSIONS.get(place)?))) else {
        let details = format!("config is {named:?}, plugin supports {VERSIONS:?}");
        return Err(CniError {
            code: INCOMPATIBLE_VERSION,
            msg: "incompatible CNI versions".into(),
            details,
        });
    };
    let since = match verb {
        Verb::Check => "0.4.0",
        Verb::Gc | Verb::Status => "1.1.0",
        _ => "0.3.0",
    };
    if VERSIONS.iter().position(|version| *version == since) > Some(place) {
        let text = format!("config version does not allow {}", verb.name());
        return Err(refusal(INCOMPATIBLE_VERSION, text));
    }
    Ok(version)
}

/// `KEY=VALUE;…`
fn arguments(text: &str) -> Vec<(String, String)> {
    text.split(';')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.into(), value.into()))
        .collect()
}

#[cfg(test)]
mod tests;
