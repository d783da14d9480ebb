//! What runs in a cluster from its first minute: rights, a bootstrap token, kube-proxy, CoreDNS and metrics-server as pods.
//! Owns the objects; never waits for them. Called by `cluster`.

use serde_json::{Value, json};

use super::network::{DNS, PODS};
use super::pki::BOOTSTRAP;
use super::programs::KUBERNETES;

/// Rights that the API server's own roles do not give by themselves, and the token of `bootstrap.conf`.
pub(super) fn rights() -> Value {
    let (id, secret) = BOOTSTRAP;
    let group = "system:bootstrappers";
    let requests = "system:certificates.k8s.io:certificatesigningrequests";
    list(&[
        binding("kubelet-api-admin", "system:kubelet-api-admin", &user("kube-apiserver-kubelet-client")),
        binding("bootstrappers-request", "system:node-bootstrapper", &named_group(group)),
        binding("bootstrappers-approved", &format!("{requests}:nodeclient"), &named_group(group)),
        binding("nodes-renewed", &format!("{requests}:selfnodeclient"), &named_group("system:nodes")),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": format!("bootstrap-token-{id}"), "namespace": "kube-system" },
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": id,
                "token-secret": secret,
                "usage-bootstrap-authentication": "true",
                "usage-bootstrap-signing": "true",
            },
        }),
        // What the suites' specs of RuntimeClass look for: a handler that the runtime has under this name.
        json!({
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": { "name": "test-handler" },
            "handler": "test-handler",
        }),
    ])
}

/// kube-proxy: on the host's network, with the address of the API server that is not a Service's.
pub(super) fn proxy(server: &str) -> Value {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": PODS,
        "clientConnection": { "kubeconfig": "/config/kubeconfig" },
        "conntrack": { "maxPerCore": 0, "min": 0 },
        "oomScoreAdj": 0,
    });
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "default", "cluster": { "server": server, "certificate-authority": format!("{TOKENS}/ca.crt") } }],
        "users": [{ "name": "default", "user": { "tokenFile": format!("{TOKENS}/token") } }],
        "contexts": [{ "name": "default", "context": { "cluster": "default", "user": "default" } }],
        "current-context": "default",
    });
    let container = json!({
        "name": "kube-proxy",
        "image": format!("registry.k8s.io/kube-proxy:{KUBERNETES}"),
        // Under another name than the node's it waits half a minute for that node, and no Service works meanwhile.
        "args": ["--config=/config/config.yaml", "--hostname-override=$(NODE_NAME)"],
        "securityContext": { "privileged": true },
        "env": [{ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
        "volumeMounts": [{ "name": "config", "mountPath": "/config" }],
    });
    list(&[
        account("kube-proxy"),
        binding("gantry-kube-proxy", "system:node-proxier", &service_account("kube-proxy")),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta("kube-proxy"),
            "data": { "config.yaml": config.to_string(), "kubeconfig": kubeconfig.to_string() },
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": meta("kube-proxy"),
            "spec": {
                "selector": { "matchLabels": { "k8s-app": "kube-proxy" } },
                "template": {
                    "metadata": { "labels": { "k8s-app": "kube-proxy" } },
                    "spec": {
                        "hostNetwork": true,
                        "priorityClassName": "system-node-critical",
                        "serviceAccountName": "kube-proxy",
                        "tolerations": [{ "operator": "Exists" }],
                        "containers": [container],
                        "volumes": [{ "name": "config", "configMap": { "name": "kube-proxy" } }],
                    },
                },
            },
        }),
    ])
}

const TOKENS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// There is no other resolver to ask: what is not the cluster's is SERVFAIL.
const COREFILE: &str = ".:53 {
    errors
    health {
        lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    prometheus :9153
    cache 30
    loop
    reload
    loadbalance
}
";

/// CoreDNS behind the Service that kubelets give to pods.
pub(super) fn dns() -> Value {
    let labels = json!({ "k8s-app": "kube-dns" });
    let probe =
        |path: &str, port: u16| json!({ "httpGet": { "path": path, "port": port }, "timeoutSeconds": 5 });
    let container = json!({
        "name": "coredns",
        "image": "registry.k8s.io/coredns/coredns:v1.15.0",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            { "containerPort": 53, "name": "dns", "protocol": "UDP" },
            { "containerPort": 53, "name": "dns-tcp", "protocol": "TCP" },
        ],
        "livenessProbe": probe("/health", 8080),
        "readinessProbe": probe("/ready", 8181),
        "resources": { "requests": { "cpu": "20m", "memory": "30Mi" }, "limits": { "memory": "170Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "add": ["NET_BIND_SERVICE"], "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
        "volumeMounts": [{ "name": "config", "mountPath": "/etc/coredns", "readOnly": true }],
    });
    let read = |group: &str, what: &[&str]| json!({ "apiGroups": [group], "resources": what, "verbs": ["list", "watch"] });
    list(&[
        account("coredns"),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": { "name": "gantry-coredns" },
            "rules": [
                read("", &["endpoints", "services", "pods", "namespaces"]),
                read("discovery.k8s.io", &["endpointslices"]),
            ],
        }),
        binding("gantry-coredns", "gantry-coredns", &service_account("coredns")),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("coredns"), "data": { "Corefile": COREFILE } }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "kube-dns", "namespace": "kube-system", "labels": labels },
            "spec": {
                "selector": labels,
                "clusterIP": DNS,
                "ports": [
                    { "name": "dns", "port": 53, "protocol": "UDP" },
                    { "name": "dns-tcp", "port": 53, "protocol": "TCP" },
                ],
            },
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta("coredns"),
            "spec": {
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "dnsPolicy": "Default",
                        "priorityClassName": "system-cluster-critical",
                        "serviceAccountName": "coredns",
                        "tolerations": [{ "operator": "Exists" }],
                        "containers": [container],
                        "volumes": [{ "name": "config", "configMap": { "name": "coredns" } }],
                    },
                },
            },
        }),
    ])
}

/// Whose certificates metrics-server takes from kubelets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeletTrust {
    /// The cluster's authority's
    Cluster,
    /// Any: a cluster of kubeadm gives kubelets none to serve with, and they make their own
    Any,
}

impl KubeletTrust {
    fn argument(self) -> &'static str {
        match self {
            Self::Cluster => {
                "--kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
            }
            Self::Any => "--kubelet-insecure-tls",
        }
    }
}

/// metrics-server, and the API that it adds.
#[must_use]
pub fn metrics(trust: KubeletTrust) -> Value {
    let name = "metrics-server";
    let labels = json!({ "k8s-app": name });
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "https", "scheme": "HTTPS" }, "periodSeconds": 5 });
    let container = json!({
        "name": name,
        "image": "registry.k8s.io/metrics-server/metrics-server:v0.9.0",
        "args": [
            "--cert-dir=/tmp",
            "--secure-port=10250",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-use-node-status-port",
            trust.argument(),
            // As often as it goes; a call may take nine tenths of it.
            "--metric-resolution=10s",
            "--kubelet-request-timeout=8s",
        ],
        "ports": [{ "containerPort": 10250, "name": "https" }],
        "livenessProbe": probe("/livez"),
        "readinessProbe": probe("/readyz"),
        "resources": { "requests": { "cpu": "20m", "memory": "30Mi" } },
        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
    });
    let rule = |group: &str, what: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": what, "verbs": verbs });
    list(&[
        account(name),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": { "name": "system:metrics-server" },
            "rules": [
                rule("", &["nodes/metrics"], &["get"]),
                rule("", &["pods", "nodes", "namespaces", "configmaps"], &["get", "list", "watch"]),
            ],
        }),
        binding("system:metrics-server", "system:metrics-server", &service_account(name)),
        binding("metrics-server:system:auth-delegator", "system:auth-delegator", &service_account(name)),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": meta("metrics-server-auth-reader"),
            "roleRef": role("Role", "extension-apiserver-authentication-reader"),
            "subjects": [service_account(name)],
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta(name),
            "spec": { "selector": labels, "ports": [{ "name": "https", "port": 443, "targetPort": "https" }] },
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": { "name": "v1beta1.metrics.k8s.io" },
            "spec": {
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": true,
                "service": { "name": name, "namespace": "kube-system" },
            },
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta(name),
            "spec": {
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "priorityClassName": "system-cluster-critical",
                        "serviceAccountName": name,
                        "containers": [container],
                        "volumes": [{ "name": "tmp", "emptyDir": {} }],
                    },
                },
            },
        }),
    ])
}

fn list(items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

fn meta(name: &str) -> Value {
    json!({ "name": name, "namespace": "kube-system" })
}

fn account(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta(name) })
}

fn service_account(name: &str) -> Value {
    json!({ "kind": "ServiceAccount", "name": name, "namespace": "kube-system" })
}

fn user(name: &str) -> Value {
    json!({ "kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io" })
}

fn named_group(name: &str) -> Value {
    json!({ "kind": "Group", "name": name, "apiGroup": "rbac.authorization.k8s.io" })
}

fn role(kind: &str, name: &str) -> Value {
    json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name })
}

fn binding(name: &str, to: &str, subject: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": role("ClusterRole", to),
        "subjects": [subject],
    })
}
