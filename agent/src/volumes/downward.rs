//! The downward API: what a container may learn of its pod and its resources. Pure: owns the values
//! and the kubelet's words for what cannot be shown; never looks anything up. Called by
//! [`crate::pod::configure`] and [`crate::volumes`].

use std::collections::BTreeMap;

use gantry_model::field_path::subscript;
use gantry_model::pod::env::ResourceRef;
use gantry_model::pod::{Container, Pod, Resources};
use gantry_model::quantity::{parse_milli, parse_units};

use crate::node::NodeInfo;
use crate::volumes::PodFacts;

/// A field of the pod as text.
///
/// # Errors
/// When there is no such field.
pub fn field(pod: &Pod, path: &str, facts: &PodFacts, node: &NodeInfo) -> Result<String, String> {
    if let Some((of, key)) = subscript(path) {
        return match of {
            "metadata.annotations" => Ok(pod.annotations.get(key).cloned().unwrap_or_default()),
            "metadata.labels" => Ok(pod.labels.get(key).cloned().unwrap_or_default()),
            _ => Err(format!("fieldPath {path:?} does not support subscript")),
        };
    }
    Ok(match path {
        "metadata.name" => pod.name.clone(),
        "metadata.namespace" => pod.namespace.clone(),
        "metadata.uid" => pod.uid.to_string(),
        "metadata.labels" => lines(&pod.labels),
        "metadata.annotations" => lines(&pod.annotations),
        "spec.nodeName" => node.name.clone(),
        "spec.serviceAccountName" => pod.shown.service_account.clone(),
        "status.hostIP" => node.ips.now().first().cloned().unwrap_or_default(),
        "status.hostIPs" => node.ips.now().join(","),
        "status.podIP" => facts.ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => facts.ips.join(","),
        other => return Err(format!("unsupported fieldPath: {other}")),
    })
}

/// A line `key="value"` for each, without a newline at the end.
fn lines(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={}", quote(value))).collect::<Vec<_>>().join("\n")
}

/// As Go's strconv.Quote, which readers of these files undo.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A request or limit in units of the divisor, rounded up; a limit that is not there is the pod's own,
/// else what the node gives to pods. Of huge pages there are no more than those asked for.
///
/// # Errors
/// When the pod has no such container.
pub fn resource(
    pod: &Pod,
    own: Option<&Container>,
    of: &ResourceRef,
    node: &NodeInfo,
) -> Result<String, String> {
    let named = || pod.all_containers().find(|c| c.name == of.container);
    let container = if of.container.is_empty() { own } else { named() };
    let container = container.ok_or_else(|| format!("container {} not found", of.container))?;
    let Resources {
        cpu_request,
        cpu_limit,
        memory_request,
        memory_limit,
        ephemeral_request,
        ephemeral_limit,
    } = container.resources;
    let of_pod = |name: &str| {
        let text = pod.resources.as_ref()?.limits.get(name)?;
        if name == "cpu" { parse_milli(text).ok() } else { parse_units(text).ok() }
    };
    let limit = |limit: Option<i64>, name: &str, node: i64| {
        let some = |amount: &i64| *amount > 0;
        limit.filter(some).or_else(|| of_pod(name).filter(some)).unwrap_or(node)
    };
    let pages = |list: &BTreeMap<String, String>, name: &str| {
        list.get(name).and_then(|text| parse_units(text).ok()).unwrap_or(0)
    };
    // cpu is in thousandths already.
    let (amount, scale) = match of.resource.as_str() {
        "limits.cpu" => (limit(cpu_limit, "cpu", node.cpu), 1),
        "requests.cpu" => (cpu_request.unwrap_or(0), 1),
        "limits.memory" => (limit(memory_limit, "memory", node.memory), 1000),
        "requests.memory" => (memory_request.unwrap_or(0), 1000),
        "limits.ephemeral-storage" => (ephemeral_limit.filter(|l| *l > 0).unwrap_or(node.ephemeral), 1000),
        "requests.ephemeral-storage" => (ephemeral_request.unwrap_or(0), 1000),
        other => match other.split_once('.') {
            Some(("limits", name)) if name.starts_with("hugepages-") => {
                (pages(&container.written.limits, name), 1000)
            }
            Some(("requests", name)) if name.starts_with("hugepages-") => {
                (pages(&container.written.requests, name), 1000)
            }
            _ => return Err(format!("unsupported container resource : {other}")),
        },
    };
    let (amount, divisor) = (i128::from(amount) * scale, i128::from(of.divisor_milli.max(1)));
    Ok(((amount + divisor - 1) / divisor).to_string())
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::{Requirements, Shown};

    use super::*;
    use crate::pod::tests::{container, pod};

    fn node() -> NodeInfo {
        NodeInfo {
            name: "n1".into(),
            ips: vec!["10.0.0.1".into(), "fd00::1".into()].into(),
            cluster_domain: "cluster.local".into(),
            cpu: 2000,
            memory: 1 << 30,
            ephemeral: 10 << 30,
            ..NodeInfo::default()
        }
    }

    #[test]
    fn fields_are_shown_as_the_kubelet_shows_them() {
        let pod = Pod {
            labels: BTreeMap::from([("b".into(), "2\n".into()), ("a".into(), "\"1\"".into())]),
            shown: Shown { service_account: "sa".into(), ..Shown::default() },
            ..pod()
        };
        let facts = PodFacts { ips: vec!["10.1.0.2".into(), "fd01::2".into()] };
        for (path, expected) in [
            ("metadata.name", "web"),
            ("metadata.uid", "uid-1"),
            ("metadata.labels", "a=\"\\\"1\\\"\"\nb=\"2\\n\""),
            ("metadata.labels['b']", "2\n"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations", ""),
            ("spec.nodeName", "n1"),
            ("spec.serviceAccountName", "sa"),
            ("status.hostIP", "10.0.0.1"),
            ("status.hostIPs", "10.0.0.1,fd00::1"),
            ("status.podIP", "10.1.0.2"),
            ("status.podIPs", "10.1.0.2,fd01::2"),
        ] {
            assert_eq!(field(&pod, path, &facts, &node()).as_deref(), Ok(expected), "{path}");
        }
        assert_eq!(field(&pod, "spec.x", &facts, &node()).unwrap_err(), "unsupported fieldPath: spec.x");
    }

    #[test]
    fn resources_are_rounded_up_and_default_to_the_nodes() {
        let resources =
            Resources { cpu_request: Some(250), memory_limit: Some((3 << 20) + 1), ..Resources::default() };
        let own = Container { resources, ..container("web") };
        let pod = Pod { containers: vec![own.clone(), container("other")], ..pod() };
        let value = |container: &str, resource: &str, divisor_milli| {
            let of = ResourceRef { container: container.into(), resource: resource.into(), divisor_milli };
            resource_of(&pod, &own, &of)
        };
        fn resource_of(pod: &Pod, own: &Container, of: &ResourceRef) -> Result<String, String> {
            resource(pod, Some(own), of, &node())
        }
        assert_eq!(value("", "requests.cpu", 1000).unwrap(), "1");
        assert_eq!(value("", "requests.cpu", 1).unwrap(), "250");
        assert_eq!(value("", "limits.memory", 1000 << 20).unwrap(), "4");
        assert_eq!(value("", "limits.cpu", 1000).unwrap(), "2");
        assert_eq!(value("other", "limits.memory", 1000).unwrap(), (1_i64 << 30).to_string());
        assert_eq!(value("none", "limits.cpu", 1000).unwrap_err(), "container none not found");
    }

    #[test]
    fn huge_pages_and_the_pods_own_limits_are_shown() {
        let text = |name: &str, amount: &str| BTreeMap::from([(name.to_owned(), amount.to_owned())]);
        let written =
            Requirements { requests: text("hugepages-2Mi", "4Mi"), limits: text("hugepages-2Mi", "6Mi") };
        let own = Container { written, ..container("web") };
        let whole = Requirements { limits: text("memory", "64Mi"), ..Requirements::default() };
        let pod = Pod { containers: vec![own.clone()], resources: Some(whole), ..pod() };
        let value = |name: &str, divisor_milli| {
            let of = ResourceRef { container: String::new(), resource: name.into(), divisor_milli };
            resource(&pod, Some(&own), &of, &node())
        };
        assert_eq!(value("requests.hugepages-2Mi", 1000).unwrap(), (4 << 20).to_string());
        assert_eq!(value("limits.hugepages-2Mi", 1000 << 20).unwrap(), "6");
        assert_eq!(value("limits.hugepages-1Gi", 1000).unwrap(), "0");
        assert_eq!(value("limits.memory", 1000 << 20).unwrap(), "64");
        assert_eq!(value("limits.cpu", 1).unwrap(), "2000", "the pod limits none");
    }
}
