//! The variables that tell of services. Pure: owns the kubelet's names and values. Called by
//! [`super::environment`].

use crate::api::{Service, ServicePort};

/// In the order of the services, by FromServices. Those without an address are left out.
pub(super) fn variables(services: &[Service]) -> Vec<(String, String)> {
    let set = |service: &&Service| !matches!(service.cluster_ip.as_str(), "" | "None");
    services.iter().filter(set).flat_map(of_service).collect()
}

fn of_service(service: &Service) -> Vec<(String, String)> {
    let Service { name, cluster_ip, ports } = service;
    let prefix = upper(name);
    let mut all = vec![(format!("{prefix}_SERVICE_HOST"), cluster_ip.clone())];
    let name = format!("{prefix}_SERVICE_PORT");
    all.extend(ports.first().map(|first| (name.clone(), first.port.to_string())));
    let named = ports.iter().filter(|port| !port.name.is_empty());
    all.extend(named.map(|port| (format!("{name}_{}", upper(&port.name)), port.port.to_string())));
    for (index, ServicePort { name: _, port, protocol }) in ports.iter().enumerate() {
        let protocol = if protocol.is_empty() { "TCP" } else { protocol };
        let lower = protocol.to_lowercase();
        let host = if cluster_ip.contains(':') { format!("[{cluster_ip}]") } else { cluster_ip.clone() };
        let url = format!("{lower}://{host}:{port}");
        if index == 0 {
            all.push((format!("{prefix}_PORT"), url.clone()));
        }
        let of_port = format!("{prefix}_PORT_{port}_{}", protocol.to_uppercase());
        all.extend([
            (of_port.clone(), url),
            (format!("{of_port}_PROTO"), lower),
            (format!("{of_port}_PORT"), port.to_string()),
            (format!("{of_port}_ADDR"), cluster_ip.clone()),
        ]);
    }
    all
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_told_in_the_words_of_docker_links() {
        let port = |name: &str, port, protocol: &str| ServicePort {
            name: name.into(),
            port,
            protocol: protocol.into(),
        };
        let service =
            |name: &str, ip: &str, ports| Service { name: name.into(), cluster_ip: ip.into(), ports };
        let dns = service("kube-dns", "10.96.0.10", vec![port("dns-tcp", 53, ""), port("", 53, "UDP")]);
        let got: Vec<String> = variables(&[service("headless", "None", vec![]), dns])
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            got,
            [
                "KUBE_DNS_SERVICE_HOST=10.96.0.10",
                "KUBE_DNS_SERVICE_PORT=53",
                "KUBE_DNS_SERVICE_PORT_DNS_TCP=53",
                "KUBE_DNS_PORT=tcp://10.96.0.10:53",
                "KUBE_DNS_PORT_53_TCP=tcp://10.96.0.10:53",
                "KUBE_DNS_PORT_53_TCP_PROTO=tcp",
                "KUBE_DNS_PORT_53_TCP_PORT=53",
                "KUBE_DNS_PORT_53_TCP_ADDR=10.96.0.10",
                "KUBE_DNS_PORT_53_UDP=udp://10.96.0.10:53",
                "KUBE_DNS_PORT_53_UDP_PROTO=udp",
                "KUBE_DNS_PORT_53_UDP_PORT=53",
                "KUBE_DNS_PORT_53_UDP_ADDR=10.96.0.10",
            ]
        );
        let v6 = variables(&[service("a", "fd00::1", vec![port("", 80, "TCP")])]);
        assert!(v6.contains(&("A_PORT".to_owned(), "tcp://[fd00::1]:80".to_owned())), "{v6:?}");
    }
}
