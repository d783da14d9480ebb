//! /etc/hosts of a pod, as the kubelet writes it. Pure: owns the text; never writes it. Called by
//! [`super::host`].

use std::fmt::Write;

use gantry_model::pod::Pod;

const MANAGED: &str = "# Kubernetes-managed hosts file.\n";
const MANAGED_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";
const LOCAL: &str = "127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";

/// Of a pod with addresses of its own.
pub(super) fn render_managed(pod: &Pod, ips: &[String], cluster_domain: &str) -> String {
    let mut text = format!("{MANAGED}{LOCAL}");
    let name = &pod.hostname;
    let names = match pod.domain(cluster_domain) {
        Some(domain) => format!("{name}.{domain}\t{name}"),
        None => name.clone(),
    };
    for ip in ips {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{ip}\t{names}");
    }
    text + &aliases(pod)
}

/// Of a pod on the host's network.
pub(super) fn of_host(pod: &Pod, node: &str) -> String {
    format!("{MANAGED_HOST_NETWORK}{node}{}", aliases(pod))
}

fn aliases(pod: &Pod) -> String {
    let mut text = String::new();
    if !pod.host_aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for (ip, names) in &pod.host_aliases {
        let _ = writeln!(text, "{ip}\t{}", names.join("\t"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;

    #[test]
    fn the_text_is_the_kubelets() {
        let aliases = vec![("10.0.0.9".to_owned(), vec!["a".to_owned(), "b.c".to_owned()])];
        let pod = Pod { subdomain: "sub".into(), host_aliases: aliases, ..pod() };
        let ips = ["10.1.0.2".to_owned(), "fd00::2".to_owned()];
        assert_eq!(
            render_managed(&pod, &ips, "cluster.local"),
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
             10.1.0.2\tweb.sub.default.svc.cluster.local\tweb\nfd00::2\tweb.sub.default.svc.cluster.local\tweb\n\
             \n# Entries added by HostAliases.\n10.0.0.9\ta\tb.c\n"
        );
        let plain = Pod { subdomain: String::new(), host_aliases: vec![], ..pod };
        assert!(render_managed(&plain, &ips, "cluster.local").ends_with("\n10.1.0.2\tweb\nfd00::2\tweb\n"));
        assert_eq!(
            of_host(&plain, "1.2.3.4\tnode\n"),
            "# Kubernetes-managed hosts file (host network).\n1.2.3.4\tnode\n"
        );
    }
}
