//! The fuzz targets' way to what a network's administrator and foreign plugins write: each function takes any
//! bytes and panics when something does not hold that should hold for all bytes. Owns the checks; never runs a plugin
//! and never has an effect. Only built by `cargo fuzz` (which sets `cfg(fuzzing)`) and for tests, which run every input
//! of `fuzz/corpus` through them, so that a finding that is kept stays fixed.

pub(crate) mod place;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gantry_base::error::chain;
use serde_json::{Value, json};

use crate::chain::fuzzing::{check_cached, check_conflist};
use crate::chain::{CachedAttachment, ChainPlugin, Conflist, VERSIONS};
use crate::exec::fuzzing::check_result;
use crate::host_local;
use crate::ipam::Ipam;
use crate::request::{PluginContext, derive};
use crate::request::{is_identifier, is_interface_name};
use crate::result::CniResult;
use crate::serve::fuzzing::check_call;

const DATA: &str = "/data";
const PROGRAMS: &str = "/usr/bin";

/// A network's configuration. What a call adds comes from the list itself: `callCapabilities` (an object) and `callArgs`
/// (an object of texts).
pub fn cni_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let list = match Conflist::parse(text, "here") {
        Ok(list) => list,
        Err(error) => {
            check_conflist(text, None);
            return assert!(!chain(&error).is_empty());
        }
    };
    check_conflist(text, Some(&list));
    assert!(is_identifier(list.name()) && VERSIONS.contains(&list.cni_version()), "{}", list.name());
    let stored = serde_json::to_string(&list).map(|text| serde_json::from_str::<Conflist>(&text));
    assert!(matches!(&stored, Ok(Ok(again)) if again.raw() == list.raw() && again.name() == list.name()));
    let of_call = |field: &str| list.raw().get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let capabilities: BTreeMap<String, Value> = of_call("callCapabilities").into_iter().collect();
    let args: Vec<(String, String)> = of_call("callArgs")
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.as_str()?.to_owned())))
        .collect();
    let context = PluginContext {
        network: list.name(),
        args: &args,
        data_dir: Path::new(DATA),
        bin_dirs: &[PathBuf::from(PROGRAMS)],
        prefer_external: false,
    };
    for (kind, conf) in list.plugins() {
        let conf = derive(conf, list.name(), list.cni_version(), &capabilities);
        assert_eq!(conf.get("name").and_then(Value::as_str), Some(list.name()));
        match ChainPlugin::parse(kind, &conf, &context) {
            Ok(plugin) => fits(&plugin, &conf),
            Err(error) => assert!(!chain(&error).is_empty() && error.is_config(), "{}", chain(&error)),
        }
        check_call(&conf);
    }
}

fn fits(plugin: &ChainPlugin, conf: &Value) {
    match plugin {
        ChainPlugin::Bridge(config) => {
            assert!(is_interface_name(&config.bridge), "{:?}", config.bridge);
            assert!(config.mac.is_none_or(|mac| mac[0] & 1 == 0));
            assert!(!(config.hairpin && config.promiscuous));
            config.ipam.iter().for_each(|ipam| addresses(ipam, conf));
        }
        ChainPlugin::Ptp(config) => addresses(&config.ipam, conf),
        ChainPlugin::HostLocal(config) => host_local::fuzzing::ranges(config, conf, DATA),
        ChainPlugin::External(program) => in_its_folder(program.path().ok()),
        ChainPlugin::Portmap(_) | ChainPlugin::Loopback => {}
    }
}

fn addresses(ipam: &Ipam, conf: &Value) {
    match ipam {
        Ipam::HostLocal(config) => host_local::fuzzing::ranges(config, conf, DATA),
        Ipam::External(program) => in_its_folder(program.path().ok()),
    }
}

/// A plugin's type is no way to another folder.
fn in_its_folder(path: Option<&PathBuf>) {
    assert!(path.is_none_or(|path| path.parent() == Some(Path::new(PROGRAMS))), "{path:?}");
}

/// What a plugin answers, or lies in the cache.
pub fn cni_result(data: &[u8]) {
    check_result(data);
    check_cached(data);
    if let Ok(result) = serde_json::from_slice::<CniResult>(data) {
        for version in VERSIONS {
            let shaped = result.clone().in_version(version);
            let again: Result<CniResult, _> = serde_json::from_value(shaped.to_value());
            assert_eq!(again.ok().as_ref(), Some(&shaped));
            assert!(shaped.addresses_of("eth0").count() <= result.ips.len());
            assert_eq!(shaped.clone().in_version(version), shaped);
        }
        if let Some(found) = result.inside("eth0") {
            assert!(found.name == "eth0" && !found.sandbox.is_empty());
        }
    }
    if let Ok(cached) = serde_json::from_slice::<CachedAttachment>(data) {
        if let Ok(list) = cached.conflist() {
            assert!(is_identifier(list.name()));
        }
        let text = serde_json::to_value(&cached);
        let again = text.map(|text| (serde_json::from_value::<CachedAttachment>(text.clone()), text));
        let Ok((Ok(again), text)) = again else { unreachable!("a cached result that can't be read back") };
        assert_eq!(serde_json::to_value(&again).ok(), Some(text));
        assert_eq!(json!(again.attachment()), json!(cached.attachment()));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    fn replay(name: &str, target: fn(&[u8])) {
        // Not env!: checkouts that share a target folder share this binary.
        let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
        let folder = Path::new(&folder).join("../fuzz/corpus").join(name);
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let mut inputs = 0;
        for entry in entries {
            target(&std::fs::read(entry.unwrap().path()).unwrap());
            inputs += 1;
        }
        assert!(inputs > 10, "{inputs} inputs in {folder:?}");
    }

    #[test]
    fn cni_config() {
        replay("cni_config", super::cni_config);
    }

    #[test]
    fn cni_result() {
        replay("cni_result", super::cni_result);
    }
}
