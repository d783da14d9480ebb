//! ObjectMeta, as pods, ConfigMaps and Secrets of files may write it. Pure: owns its ledger; never
//! looks at what it is the metadata of. Called by the converters of each kind.

use std::collections::BTreeMap;

use gantry_model::names;
use gantry_model::pod::PodUid;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::field::{
    DNS_LABEL, DNS_SUBDOMAIN, LABEL_VALUE, ManifestSource, QUALIFIED_NAME, Result, check, invalid,
    refuse_set, required_because,
};

/// What is used of it.
pub(super) struct Meta {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Option<PodUid>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    /// 0 without an API server.
    pub(super) generation: i64,
    /// Unix seconds; 0 without an API server.
    pub(super) created_at: i64,
}

/// Checks names; in a file, everything that only an API server writes is passed over or refused.
pub(super) fn meta(metadata: ObjectMeta, source: ManifestSource) -> Result<Meta> {
    let ObjectMeta {
        annotations,
        labels,
        name,
        namespace,
        uid,
        // Written by an API server; `kubectl get -o yaml` shows them. In a file they say nothing.
        creation_timestamp,
        generation,
        managed_fields: _,
        resource_version: _,
        self_link: _,
        owner_references: _,
        deletion_grace_period_seconds,
        deletion_timestamp,
        finalizers,
        generate_name,
    } = metadata;
    if source.is_file() {
        refuse_set("metadata.deletionTimestamp", deletion_timestamp.is_some())?;
        refuse_set("metadata.deletionGracePeriodSeconds", deletion_grace_period_seconds.is_some())?;
        refuse_set("metadata.finalizers", finalizers.is_some_and(|f| !f.is_empty()))?;
    }
    let generated = generate_name.is_some_and(|n| !n.is_empty());
    let Some(name) = name.filter(|n| !n.is_empty()) else {
        refuse_set("metadata.generateName", generated)?;
        return Err(required_because("metadata.name", "name or generateName is required"));
    };
    check("metadata.name", &name, names::is_dns_subdomain, DNS_SUBDOMAIN)?;
    let namespace = namespace.filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
    check("metadata.namespace", &namespace, names::is_dns_label, DNS_LABEL)?;
    let uid =
        match uid {
            Some(text) => Some(PodUid::parse(&text).ok_or_else(|| {
                invalid("metadata.uid", &text, "must consist of letters, digits and dashes")
            })?),
            None => None,
        };
    let labels = labels.unwrap_or_default();
    for (key, value) in &labels {
        check("metadata.labels", key, names::is_qualified_key, QUALIFIED_NAME)?;
        check("metadata.labels", value, names::is_label_value, LABEL_VALUE)?;
    }
    let annotations = annotations.unwrap_or_default();
    for key in annotations.keys() {
        // Upper case is allowed in an annotation's prefix.
        check("metadata.annotations", key, |k| names::is_qualified_key(&k.to_lowercase()), QUALIFIED_NAME)?;
    }
    let (generation, created_at) = match source {
        ManifestSource::File => (0, 0),
        ManifestSource::Api => {
            (generation.unwrap_or(0), creation_timestamp.map_or(0, |time| time.0.as_second()))
        }
    };
    Ok(Meta { namespace, name, uid, labels, annotations, generation, created_at })
}
