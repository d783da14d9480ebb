//! What a cluster says about itself in the ConfigMaps that kubeadm keeps in it. Owns reading them; never writes. Called
//! by [`super`], with the rights of a bootstrap token or of an administrator.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::Value;

use super::discovery::Endpoint;
use super::facts::{ClusterFacts, KubeletConfig};

/// For one answer.
const ANSWER: Duration = Duration::from_secs(15);

/// Reads them.
///
/// # Errors
/// When one is missing, or the rights are.
pub(super) async fn read(
    client: &kube::Client,
    endpoint: Endpoint,
    server: Endpoint,
) -> Result<ClusterFacts> {
    let system: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let kubeadm = document(&system, "kubeadm-config", "ClusterConfiguration").await?;
    let kubelet = document(&system, "kubelet-config", "kubelet").await?;
    // A token's holder may not look for what is not there: no right is as good as no map.
    let proxy = match within(system.get_opt("kube-proxy")).await? {
        Ok(found) => found.is_some(),
        Err(kube::Error::Api(status)) if status.code == 403 => false,
        Err(error) => return Err(error).context("read the ConfigMap kube-system/kube-proxy"),
    };
    let word = |value: &Value, path: &str| {
        value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let flag = |path: &str| kubelet.pointer(path).and_then(Value::as_bool);
    Ok(ClusterFacts {
        endpoint,
        server,
        version: word(&kubeadm, "/kubernetesVersion"),
        pod_subnets: word(&kubeadm, "/networking/podSubnet")
            .split(',')
            .map(str::trim)
            .filter(|net| !net.is_empty())
            .map(str::to_owned)
            .collect(),
        kube_proxy: proxy,
        kubelet: KubeletConfig {
            cgroup_root: word(&kubelet, "/cgroupRoot"),
            cgroup_driver: word(&kubelet, "/cgroupDriver"),
            runtime_endpoint: word(&kubelet, "/containerRuntimeEndpoint"),
            fail_swap_on: flag("/failSwapOn"),
            fail_cgroup_v1: flag("/failCgroupV1"),
            client_ca_file: word(&kubelet, "/authentication/x509/clientCAFile"),
        },
    })
}

async fn within<T>(asked: impl Future<Output = T>) -> Result<T> {
    let late = |_| anyhow!("the API server did not answer within {} s", ANSWER.as_secs());
    tokio::time::timeout(ANSWER, asked).await.map_err(late)
}

/// One key of a ConfigMap, as YAML.
async fn document(system: &Api<ConfigMap>, name: &str, key: &str) -> Result<Value> {
    let what = || format!("read the ConfigMap kube-system/{name}: was this cluster made by kubeadm?");
    let map = within(system.get(name)).await?.with_context(what)?;
    let text = map.data.as_ref().and_then(|data| data.get(key));
    let text = text.with_context(|| format!("the ConfigMap kube-system/{name} has no key {key}"))?;
    serde_saphyr::from_str(text).with_context(|| format!("{key} in the ConfigMap kube-system/{name}"))
}
