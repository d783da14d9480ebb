//! AppArmor of a pod as written: by fields, and by the annotations that came before them, which pods of files may
//! still have (an API server turns them into fields). Pure: never looks at the node. Called by [`super::security`].

use std::collections::BTreeMap;

use gantry_model::pod::security::AppArmor;
use k8s_openapi::api::core::v1 as api;

use super::field::{ManifestSource, Result, invalid, one_of, required_because};

const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Bytes of a profile's name.
const MAX_NAME: usize = 4095;

/// A field `appArmorProfile`.
pub(super) fn profile(
    at: &str,
    profile: Option<api::AppArmorProfile>,
    source: ManifestSource,
) -> Result<Option<AppArmor>> {
    let Some(api::AppArmorProfile { localhost_profile, type_ }) = profile else { return Ok(None) };
    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        Localhost,
        Default,
        Unconfined,
    }
    let kinds =
        [("Localhost", Kind::Localhost), ("RuntimeDefault", Kind::Default), ("Unconfined", Kind::Unconfined)];
    let kind = one_of(format!("{at}.type"), &type_, &kinds)?;
    let field = format!("{at}.localhostProfile");
    match (kind, localhost_profile) {
        // The admission has a word for one that is empty.
        (Kind::Localhost, name) if !source.is_file() => {
            Ok(Some(AppArmor::Localhost(name.unwrap_or_default())))
        }
        (Kind::Localhost, Some(name)) if !name.trim().is_empty() => {
            if name.trim() != name {
                return Err(invalid(field, &name, "must not be padded with whitespace"));
            }
            if name.len() > MAX_NAME {
                return Err(invalid(field, &name, "may not be more than 4095 bytes"));
            }
            Ok(Some(AppArmor::Localhost(name)))
        }
        (Kind::Localhost, _) => Err(required_because(field, "must be set when AppArmor type is Localhost")),
        (_, Some(name)) if source.is_file() => {
            Err(invalid(field, &name, "can only be set when AppArmor type is Localhost"))
        }
        (Kind::Default, _) => Ok(Some(AppArmor::RuntimeDefault)),
        (Kind::Unconfined, _) => Ok(Some(AppArmor::Unconfined)),
    }
}

/// What annotations say, by container. One that says nothing that is known says nothing, as upstream.
pub(super) fn parse_annotations(annotations: &BTreeMap<String, String>) -> BTreeMap<String, AppArmor> {
    let all = annotations.iter().filter_map(|(key, value)| Some((key.strip_prefix(ANNOTATION)?, value)));
    all.filter_map(|(container, value)| Some((container.to_owned(), annotation(value)?))).collect()
}

fn annotation(value: &str) -> Option<AppArmor> {
    match value {
        "runtime/default" => Some(AppArmor::RuntimeDefault),
        "unconfined" => Some(AppArmor::Unconfined),
        other => other.strip_prefix("localhost/").map(|name| AppArmor::Localhost(name.to_owned())),
    }
}

/// Whether the pod, whatever its containers say, asks for a node that has AppArmor.
pub(super) fn is_required(of_pod: Option<&AppArmor>, annotations: &BTreeMap<String, String>) -> bool {
    of_pod.is_some_and(|profile| *profile != AppArmor::Unconfined)
        || annotations.iter().any(|(key, value)| key.starts_with(ANNOTATION) && value != "unconfined")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(kind: &str, name: Option<&str>, source: ManifestSource) -> Result<Option<AppArmor>> {
        let profile = api::AppArmorProfile { type_: kind.into(), localhost_profile: name.map(str::to_owned) };
        super::profile("at", Some(profile), source)
    }

    #[test]
    fn a_file_is_checked_as_an_api_server_would() {
        let localhost = |name: &str| Ok::<_, String>(Some(AppArmor::Localhost(name.into())));
        let said =
            |kind: &str, name| field(kind, name, ManifestSource::File).map_err(|error| error.to_string());
        assert_eq!(said("RuntimeDefault", None), Ok(Some(AppArmor::RuntimeDefault)));
        assert_eq!(said("Localhost", Some("k8s-x")), localhost("k8s-x"));
        for (kind, name, words) in [
            ("Localhost", None, "must be set when AppArmor type is Localhost"),
            ("Localhost", Some(" "), "must be set when AppArmor type is Localhost"),
            ("Localhost", Some(" x"), "must not be padded with whitespace"),
            ("Unconfined", Some("x"), "can only be set when AppArmor type is Localhost"),
            ("Other", None, "Unconfined"),
        ] {
            let error = said(kind, name).unwrap_err();
            assert!(error.contains(words), "{kind} {name:?}: {error}");
        }
        assert_eq!(
            field("Localhost", None, ManifestSource::Api).unwrap(),
            Some(AppArmor::Localhost(String::new()))
        );
    }

    #[test]
    fn annotations_name_their_container_and_what_is_no_profile_says_nothing() {
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| (format!("{ANNOTATION}{name}"), (*value).to_owned())).collect()
        };
        let all = of(&[("a", "runtime/default"), ("b", "unconfined"), ("c", "localhost/x/y"), ("d", "x")]);
        let found = parse_annotations(&all);
        assert_eq!(
            found,
            [
                ("a".to_owned(), AppArmor::RuntimeDefault),
                ("b".to_owned(), AppArmor::Unconfined),
                ("c".to_owned(), AppArmor::Localhost("x/y".into())),
            ]
            .into()
        );
        assert!(is_required(None, &all) && !is_required(None, &of(&[("b", "unconfined")])));
        assert!(is_required(Some(&AppArmor::RuntimeDefault), &of(&[])));
        assert!(!is_required(Some(&AppArmor::Unconfined), &of(&[])));
    }
}
