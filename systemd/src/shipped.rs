//! The unit files that are shipped (contrib/systemd) against what a node depends on. Tests alone.

const SERVICE: &str = include_str!("../../contrib/systemd/gantry.service");
const KUBELET: &str = include_str!("../../contrib/systemd/kubelet.service");
const KUBEADM: &str = include_str!("../../contrib/systemd/kubelet.service.d/10-kubeadm.conf");
const AFTER_GANTRY: &str = include_str!("../../contrib/systemd/kubelet.service.d/20-gantry.conf");

/// The values of a key in a section, as systemd.syntax(7) has them.
fn values<'a>(file: &'a str, section: &str, key: &str) -> Vec<&'a str> {
    let head = format!("[{section}]");
    let inside = file.lines().skip_while(|line| **line != head).skip(1);
    let inside = inside.take_while(|line| !line.starts_with('['));
    let pairs = inside.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    pairs.filter(|(name, _)| *name == key).map(|(_, value)| value).collect()
}

#[test]
fn rt_2_6_pods_outlive_the_service_that_started_them() {
    for (key, value) in [
        // Monitors and pods are left alone, an unpacker that ran out of memory ends by itself, tasks are not counted.
        ("KillMode", "process"),
        ("Delegate", "yes"),
        ("OOMPolicy", "continue"),
        ("TasksMax", "infinity"),
        ("Restart", "always"),
        ("ExecStart", "/usr/bin/gantry runtime --config /etc/gantry/runtime.toml"),
        // A kubelet that comes after it finds its socket.
        ("Type", "notify"),
    ] {
        assert_eq!(values(SERVICE, "Service", key), [value], "{key}");
    }
    // What would end pods with it, or before it.
    for key in
        ["ExecStopPost", "ExecStop", "RuntimeDirectory", "PrivateMounts", "PrivateTmp", "ProtectSystem"]
    {
        assert_eq!(values(SERVICE, "Service", key), Vec::<&str>::new(), "{key}");
    }
    assert_eq!(values(SERVICE, "Install", "WantedBy"), ["multi-user.target"]);
}

#[test]
fn a_kubelet_comes_after_the_runtime_and_does_not_end_with_it() {
    assert_eq!(values(AFTER_GANTRY, "Unit", "After"), ["gantry.service"]);
    // A kubelet on another runtime does not start this one.
    for key in ["Wants", "Requires", "BindsTo", "PartOf"] {
        assert_eq!(values(AFTER_GANTRY, "Unit", key), Vec::<&str>::new(), "{key}");
    }
}

/// The last it tells of its pods is told over the network.
#[test]
fn issue_112443_a_kubelet_is_stopped_before_the_network() {
    for key in ["Wants", "After"] {
        assert_eq!(values(KUBELET, "Unit", key), ["network-online.target"], "{key}");
    }
}

#[test]
fn a_kubelet_finds_what_kubeadm_writes() {
    assert_eq!(values(KUBELET, "Service", "ExecStart"), ["/usr/bin/kubelet"]);
    assert_eq!(
        values(KUBEADM, "Service", "EnvironmentFile"),
        ["-/var/lib/kubelet/kubeadm-flags.env", "-/etc/default/kubelet"]
    );
    let line = "/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS";
    assert_eq!(values(KUBEADM, "Service", "ExecStart"), ["", line]);
    let environment = values(KUBEADM, "Service", "Environment").join("\n");
    for path in [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
    ] {
        assert!(environment.contains(path), "{path}: {environment}");
    }
}
