//! docs/ledger/pod.md against Kubernetes' own lists of fields: each is honoured (and the test named
//! exists and does more than read a manifest), refused, or inert.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1 as api;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use crate::config::tests::ledger::tests_in;

/// Learns the field names that a type asks for, and then fails.
struct FieldNames<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("only structs are asked"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.extend(fields);
        Err(Self::Error::custom("the names are known"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields<T: for<'de> Deserialize<'de>>() -> BTreeSet<String> {
    let mut names = Vec::new();
    assert!(T::deserialize(FieldNames(&mut names)).is_err());
    let own = |name: &&str| !matches!(*name, "apiVersion" | "kind");
    names.into_iter().filter(own).map(str::to_owned).collect()
}

fn upstream() -> BTreeMap<&'static str, BTreeSet<String>> {
    BTreeMap::from([
        ("ConfigMap", fields::<api::ConfigMap>()),
        ("ConfigMapVolumeSource", fields::<api::ConfigMapVolumeSource>()),
        ("Container", fields::<api::Container>()),
        ("ContainerPort", fields::<api::ContainerPort>()),
        ("EmptyDirVolumeSource", fields::<api::EmptyDirVolumeSource>()),
        ("EnvFromSource", fields::<api::EnvFromSource>()),
        ("EnvVarSource", fields::<api::EnvVarSource>()),
        ("HTTPGetAction", fields::<api::HTTPGetAction>()),
        ("HostPathVolumeSource", fields::<api::HostPathVolumeSource>()),
        ("Lifecycle", fields::<api::Lifecycle>()),
        ("LifecycleHandler", fields::<api::LifecycleHandler>()),
        ("PodDNSConfig", fields::<api::PodDNSConfig>()),
        ("PodSecurityContext", fields::<api::PodSecurityContext>()),
        ("PodSpec", fields::<api::PodSpec>()),
        ("Probe", fields::<api::Probe>()),
        ("ResourceRequirements", fields::<api::ResourceRequirements>()),
        ("Secret", fields::<api::Secret>()),
        ("SecretVolumeSource", fields::<api::SecretVolumeSource>()),
        ("SecurityContext", fields::<api::SecurityContext>()),
        ("Volume", fields::<api::Volume>()),
        ("VolumeMount", fields::<api::VolumeMount>()),
        ("VolumeProjection", fields::<api::VolumeProjection>()),
    ])
}

fn root() -> std::path::PathBuf {
    // Not env!: checkouts that share a target folder share this binary.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    std::path::Path::new(&own).parent().unwrap().to_owned()
}

/// Fields of objects that are nothing but read, and of which no more is known: their tests read
/// manifests.
const READ: [&str; 9] = [
    "PodSpec.hostnameOverride",
    "VolumeMount.mountPropagation",
    "ConfigMap.binaryData",
    "ConfigMap.data",
    "ConfigMap.metadata",
    "Secret.data",
    "Secret.metadata",
    "Secret.stringData",
    "Secret.type",
];

/// Names of all tests of the agent and of the tier above: those that only read manifests, and the others.
fn tests() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut reading, mut others) = (BTreeSet::new(), BTreeSet::new());
    let manifest = root().join("agent/src/manifest");
    let mut open = vec![root().join("agent"), root().join("tests/kernel")];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let found = tests_in(&std::fs::read_to_string(&path).unwrap());
                if path.starts_with(&manifest) { reading.extend(found) } else { others.extend(found) }
            }
        }
    }
    (reading, others)
}

#[test]
fn every_field_of_kubernetes_is_honoured_refused_or_inert() {
    let text = std::fs::read_to_string(root().join("docs/ledger/pod.md")).unwrap();
    let (mut listed, mut wrong) = (BTreeMap::<&str, BTreeSet<String>>::new(), Vec::new());
    let (reading, others) = tests();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> =
            line.trim_matches('|').split('|').map(|c| c.trim().trim_matches('`')).collect();
        let [of, field, status, note] = cells[..] else { panic!("{line}") };
        let fine = match status {
            "honoured" if READ.contains(&&*format!("{of}.{field}")) => reading.contains(note),
            // What is read and goes nowhere is not honoured.
            "honoured" => others.contains(note),
            "refused" | "inert" => !note.is_empty(),
            _ => false,
        };
        if !fine || !listed.entry(of).or_default().insert(field.to_owned()) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "no such test or status, no reason, or twice:\n{}", wrong.join("\n"));
    for (of, fields) in upstream() {
        assert_eq!(listed.remove(of).unwrap_or_default(), fields, "{of}");
    }
    assert!(listed.is_empty(), "not asked of Kubernetes: {listed:?}");
}
