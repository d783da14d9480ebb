//! Workloads: a Deployment with a Service, exec and logs, a Job.

use anyhow::{Context, Result, ensure};
use gantry_tests::debian;
use serde_json::json;

use crate::spec::Spec;

pub(crate) fn nginx(spec: &Spec<'_>) -> Result<()> {
    spec.kubectl(&["create", "deployment", "web", "--image=nginx", "--replicas=2", "--port=80"])?;
    spec.kubectl(&["expose", "deployment", "web", "--port=80"])?;
    spec.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    // A pod asks by the Service's name: DNS, kube-proxy and the pods' network are all in the way.
    let image = "--image=registry.k8s.io/e2e-test-images/agnhost:2.63.0";
    let run = ["run", "asks", image, "--restart=Never", "--attach", "--rm", "--quiet", "--command", "--"];
    let page = spec.kubectl(&[&run[..], &["curl", "--silent", "--max-time", "20", "http://web"]].concat())?;
    ensure!(page.contains(debian::nginx_page().trim()), "{page:?}");
    let ready = "{.status.readyReplicas}";
    spec.kubectl(&["scale", "deployment/web", "--replicas=1"])?;
    spec.await_value(&["deployment/web"], ready, "1")?;
    spec.kubectl(&["rollout", "restart", "deployment/web"])?;
    spec.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    spec.kubectl(&["delete", "deployment,service", "web", "--timeout=60s"])?;
    spec.await_value(&["pods"], "{.items[*].metadata.name}", "").map(drop)
}

pub(crate) fn exec_and_logs(spec: &Spec<'_>) -> Result<()> {
    let script = "echo to stdout; echo to stderr >&2; trap 'exit 0' TERM; while :; do sleep 1; done";
    spec.apply(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "talks" },
        "spec": {
            "containers": [{ "name": "main", "image": "busybox", "command": ["sh", "-c", script] }],
            "terminationGracePeriodSeconds": 5,
        },
    }))?;
    spec.kubectl(&["wait", "--for=condition=Ready", "pod/talks", "--timeout=120s"])?;
    let logs = spec.kubectl(&["logs", "talks"])?;
    ensure!(logs.contains("to stdout") && logs.contains("to stderr"), "{logs:?}");
    let stamped = spec.kubectl(&["logs", "talks", "--timestamps", "--tail=1"])?;
    ensure!(stamped.lines().count() == 1 && stamped.starts_with("20"), "{stamped:?}");
    let said = spec.kubectl(&["exec", "talks", "--", "sh", "-c", "echo out; hostname; cat /etc/hosts"])?;
    ensure!(said.contains("out\ntalks\n") && said.contains("# Kubernetes-managed hosts file."), "{said:?}");
    let failed = spec.kubectl(&["exec", "talks", "--", "sh", "-c", "exit 42"]);
    let failed = failed.err().context("an exec that ends with 42 is a failure")?;
    ensure!(format!("{failed:#}").contains("exit status: 42"), "{failed:#}");
    spec.kubectl(&["delete", "pod", "talks", "--timeout=60s"]).map(drop)
}

pub(crate) fn job(spec: &Spec<'_>) -> Result<()> {
    spec.kubectl(&["create", "job", "sums", "--image=busybox", "--", "sh", "-c", "echo $((6 * 7))"])?;
    spec.kubectl(&["wait", "--for=condition=Complete", "job/sums", "--timeout=120s"])?;
    let logs = spec.kubectl(&["logs", "job/sums"])?;
    ensure!(logs.trim() == "42", "{logs:?}");
    spec.await_value(&["pods"], "{.items[0].status.phase}", "Succeeded").map(drop)
}
