//! What network plugins learn about a pod: `CNI_ARGS` and capability arguments, as containerd passes them. Pure.
//! Called by `sandbox::run`.

use std::collections::BTreeMap;

use gantry_proto::cri;
use serde_json::{Value, json};

use crate::spec;
use crate::spec::sandbox::SandboxSpec;
use crate::store::record::PodName;

/// Annotations that limit a pod's traffic, in bits per second.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// What Kubernetes takes for a reasonable limit: 1 kbit/s to 1 Pbit/s.
const REASONABLE: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;

/// `CNI_ARGS`.
pub(super) fn args(id: &str, pod: &PodName) -> Vec<(String, String)> {
    [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &pod.namespace),
        ("K8S_POD_NAME", &pod.name),
        ("K8S_POD_INFRA_CONTAINER_ID", id),
        ("K8S_POD_UID", &pod.uid),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Capability arguments; a plugin gets those that its configuration declares.
///
/// # Errors
/// A bandwidth that is none, or unreasonable.
pub(super) fn capabilities(spec: &SandboxSpec) -> Result<BTreeMap<String, Value>, spec::Error> {
    let mut capabilities =
        BTreeMap::from([("io.kubernetes.cri.pod-annotations".to_owned(), json!(spec.annotations))]);
    if !spec.host_ports.is_empty() {
        let ports: Vec<Value> = spec.host_ports.iter().map(port).collect();
        capabilities.insert("portMappings".into(), ports.into());
    }
    let mut bandwidth = serde_json::Map::new();
    for (annotation, rate, burst) in
        [(INGRESS, "ingressRate", "ingressBurst"), (EGRESS, "egressRate", "egressBurst")]
    {
        if let Some(value) = spec.annotations.get(annotation) {
            bandwidth.insert(rate.into(), bits(annotation, value)?.into());
            bandwidth.insert(burst.into(), u32::MAX.into());
        }
    }
    if !bandwidth.is_empty() {
        capabilities.insert("bandwidth".into(), bandwidth.into());
    }
    if let Some(dns) = &spec.dns {
        let dns = json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
        capabilities.insert("dns".into(), dns);
    }
    if !spec.cgroup_parent.is_empty() {
        capabilities.insert("cgroupPath".into(), spec.cgroup_parent.clone().into());
    }
    Ok(capabilities)
}

fn port(port: &cri::PortMapping) -> Value {
    let protocol = port.protocol().as_str_name().to_ascii_lowercase();
    json!({
        "hostPort": port.host_port,
        "containerPort": port.container_port,
        "protocol": protocol,
        "hostIP": port.host_ip,
    })
}

fn bits(field: &'static str, text: &str) -> Result<u64, spec::Error> {
    quantity(text).filter(|bits| REASONABLE.contains(bits)).ok_or_else(|| spec::Error::Invalid {
        field,
        value: text.to_owned(),
        expected: "a number of bits per second from 1k to 1P, as in 10M",
    })
}

/// A whole number out of Kubernetes' notation for quantities, rounded up.
fn quantity(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || whole.len() + fraction.len() > 18 {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let (times, over) = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => power_of_ten(exponent)?,
    };
    u64::try_from(digits.checked_mul(times)?.div_ceil(scale * over)).ok()
}

/// `e3`, `E-2`: a factor and a divisor.
fn power_of_ten(text: &str) -> Option<(u128, u128)> {
    let exponent: i32 = text.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs()).filter(|_| exponent.abs() <= 18)?;
    Some(if exponent < 0 { (1, power) } else { (power, 1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::SeccompChoice;

    fn spec(config: cri::PodSandboxConfig) -> SandboxSpec {
        let metadata = cri::PodSandboxMetadata {
            name: "web".into(),
            namespace: "shop".into(),
            uid: "u".into(),
            attempt: 0,
        };
        SandboxSpec::new(
            cri::PodSandboxConfig { metadata: Some(metadata), ..config },
            &SeccompChoice::Unconfined,
        )
        .unwrap()
    }

    #[test]
    fn a_plain_pod_has_its_annotations_only() {
        let found = capabilities(&spec(cri::PodSandboxConfig::default())).unwrap();
        assert_eq!(json!(found), json!({"io.kubernetes.cri.pod-annotations": {}}));
    }

    #[test]
    fn host_ports_bandwidth_and_dns_are_passed_as_the_conventions_have_them() {
        let annotations = [(INGRESS.to_owned(), "10M".to_owned())].into();
        let port = |host_port, protocol: cri::Protocol| cri::PortMapping {
            host_port,
            container_port: 80,
            protocol: protocol.into(),
            host_ip: "127.0.0.1".into(),
        };
        let config = cri::PodSandboxConfig {
            annotations,
            port_mappings: vec![port(8080, cri::Protocol::Udp), port(0, cri::Protocol::Tcp)],
            dns_config: Some(cri::DnsConfig {
                servers: vec!["10.0.0.53".into()],
                ..cri::DnsConfig::default()
            }),
            ..cri::PodSandboxConfig::default()
        };
        let found = json!(capabilities(&spec(config)).unwrap());
        assert_eq!(
            found["portMappings"],
            json!([{"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"}])
        );
        assert_eq!(found["bandwidth"], json!({"ingressRate": 10_000_000, "ingressBurst": u32::MAX}));
        assert_eq!(found["dns"], json!({"servers": ["10.0.0.53"], "searches": [], "options": []}));
    }

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("1000", Some(1000)),
            ("1.5k", Some(1500)),
            ("1Mi", Some(1 << 20)),
            ("2e3", Some(2000)),
            ("2000e-1", Some(200)),
            ("1500m", Some(2)),
            ("0.1", Some(1)),
            ("", None),
            (".", None),
            ("-1", None),
            ("10MB", None),
            ("1e99", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(quantity(text), expected, "{text}");
        }
    }

    #[test]
    fn an_unreasonable_bandwidth_is_refused_by_its_annotation() {
        for value in ["999", "2P", "fast"] {
            let annotations = [(EGRESS.to_owned(), value.to_owned())].into();
            let spec = spec(cri::PodSandboxConfig { annotations, ..cri::PodSandboxConfig::default() });
            let error = capabilities(&spec).unwrap_err();
            assert!(error.to_string().contains(EGRESS), "{error}");
        }
    }

    #[test]
    fn plugins_learn_which_pod_it_is() {
        let pod = PodName { name: "web".into(), namespace: "shop".into(), uid: "u".into(), attempt: 3 };
        let args = args("abc", &pod);
        assert_eq!(args[0], ("IgnoreUnknown".into(), "1".into()));
        assert!(args.contains(&("K8S_POD_INFRA_CONTAINER_ID".into(), "abc".into())));
    }
}
