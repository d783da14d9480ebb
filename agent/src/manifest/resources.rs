//! Requests and limits. Pure: owns which resources are honoured; never rounds differently from
//! Kubernetes. Called by [`super::container`].

use std::collections::BTreeMap;

use gantry_model::pod::{Requirements, Resources};
use gantry_model::quantity;
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::field::{FieldError, ManifestSource, Result, invalid, refuse_set};

/// One list, cpu in thousandths, the others in bytes.
#[derive(Default)]
struct List {
    cpu: Option<i64>,
    memory: Option<i64>,
    ephemeral: Option<i64>,
}

/// A request that is not written is its limit.
pub(super) fn resources(
    at: &str,
    resources: Option<api::ResourceRequirements>,
    source: ManifestSource,
) -> Result<Resources> {
    let Some(api::ResourceRequirements { claims, limits, requests }) = resources else {
        return Ok(Resources::default());
    };
    // Those of an API server are read by themselves.
    let claims = claims.is_some_and(|list| !list.is_empty());
    refuse_set(format!("{at}.claims"), claims && source.is_file())?;
    let texts = requests.clone().unwrap_or_default();
    let limits = list(&format!("{at}.limits"), limits, source)?;
    let requests = list(&format!("{at}.requests"), requests, source)?;
    for (name, request, limit) in [
        ("cpu", requests.cpu, limits.cpu),
        ("memory", requests.memory, limits.memory),
        ("ephemeral-storage", requests.ephemeral, limits.ephemeral),
    ] {
        if let (Some(request), Some(limit)) = (request, limit)
            && request > limit
        {
            let text = texts.get(name).map(|Quantity(text)| text.clone()).unwrap_or_default();
            return Err(invalid(
                format!("{at}.requests"),
                &text,
                format!("must be less than or equal to {name} limit of {}", limit_text(name, limit)),
            ));
        }
    }
    Ok(Resources {
        cpu_request: requests.cpu.or(limits.cpu),
        cpu_limit: limits.cpu,
        memory_request: requests.memory.or(limits.memory),
        memory_limit: limits.memory,
        ephemeral_request: requests.ephemeral.or(limits.ephemeral),
        ephemeral_limit: limits.ephemeral,
    })
}

fn limit_text(name: &str, limit: i64) -> String {
    match name {
        "cpu" if limit % 1000 == 0 => (limit / 1000).to_string(),
        "cpu" => format!("{limit}m"),
        _ => limit.to_string(),
    }
}

/// All of it as text, for those who show it.
///
/// # Errors
/// In a file, as [`resources`].
pub(super) fn written(
    at: &str,
    list: Option<api::ResourceRequirements>,
    source: ManifestSource,
) -> Result<Requirements> {
    resources(at, list.clone(), source)?;
    let api::ResourceRequirements { claims: _, limits, requests } = list.unwrap_or_default();
    Ok(Requirements { requests: texts(requests), limits: texts(limits) })
}

pub(super) fn texts(list: Option<BTreeMap<String, Quantity>>) -> BTreeMap<String, String> {
    list.unwrap_or_default().into_iter().map(|(name, Quantity(text))| (name, text)).collect()
}

/// Others are counted at admission, when an API server has let them through.
fn list(at: &str, list: Option<BTreeMap<String, Quantity>>, source: ManifestSource) -> Result<List> {
    let mut found = List::default();
    for (resource, Quantity(text)) in list.unwrap_or_default() {
        let field = format!("{at}.{resource}");
        let wrap = |source| FieldError::Quantity { field: field.clone(), source };
        match resource.as_str() {
            "cpu" => found.cpu = Some(quantity::parse_milli(&text).map_err(wrap)?),
            "memory" => found.memory = Some(quantity::parse_units(&text).map_err(wrap)?),
            "ephemeral-storage" => found.ephemeral = Some(quantity::parse_units(&text).map_err(wrap)?),
            _ if source.is_file() => return Err(FieldError::Unsupported { field }),
            _ => {}
        }
    }
    Ok(found)
}
