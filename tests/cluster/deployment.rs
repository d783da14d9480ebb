//! A Deployment as in any tutorial: created, applied, exposed, scaled, rolled out and back, deleted; exec and logs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::poll::poll_every;
use gantry_tests::{debian, http};
use serde_json::json;

use crate::spec::{PATIENCE, Spec};

pub(crate) fn nginx(spec: &Spec<'_>) -> Result<()> {
    spec.kubectl(&["create", "deployment", "web", "--image=nginx", "--replicas=2", "--port=80"])?;
    spec.kubectl(&["expose", "deployment", "web", "--port=80"])?;
    spec.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    // A pod asks by the Service's name: DNS, kube-proxy and the pods' network are all in the way.
    let image = "--image=registry.k8s.io/e2e-test-images/agnhost:2.63.0";
    let run = ["run", "asks", image, "--restart=Never", "--command", "--"];
    spec.kubectl(&[&run[..], &["curl", "--silent", "--max-time", "20", "http://web"]].concat())?;
    // Not with --attach: what is said before kubectl is attached is lost.
    spec.await_value(&["pod/asks"], "{.status.phase}", "Succeeded")?;
    let page = spec.kubectl(&["logs", "asks"])?;
    ensure!(page.contains(debian::nginx_page().trim()), "{page:?}");
    spec.kubectl(&["delete", "pod", "asks", "--timeout=60s"])?;
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
    spec.await_log(&["talks"], |log| log.contains("to stdout") && log.contains("to stderr"))?;
    let stamped = spec.kubectl(&["logs", "talks", "--timestamps", "--tail=1"])?;
    ensure!(stamped.lines().count() == 1 && stamped.starts_with("20"), "{stamped:?}");
    let said = spec.kubectl(&["exec", "talks", "--", "sh", "-c", "echo out; hostname; cat /etc/hosts"])?;
    ensure!(said.contains("out\ntalks\n") && said.contains("# Kubernetes-managed hosts file."), "{said:?}");
    let failed = spec.kubectl(&["exec", "talks", "--", "sh", "-c", "exit 42"]);
    let failed = failed.err().context("an exec that ends with 42 is a failure")?;
    ensure!(format!("{failed:#}").contains("exit status: 42"), "{failed:#}");
    spec.kubectl(&["delete", "pod", "talks", "--timeout=60s"]).map(drop)
}

/// As a user writes it.
const MANIFEST: &str = "apiVersion: v1
kind: ConfigMap
metadata:
  name: page
data:
  index.html: |
    a page of its own
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: site
spec:
  replicas: 1
  selector:
    matchLabels:
      app: site
  template:
    metadata:
      labels:
        app: site
    spec:
      containers:
      - name: nginx
        image: nginx
        ports:
        - containerPort: 80
        readinessProbe:
          httpGet:
            path: /
            port: 80
          periodSeconds: 1
        volumeMounts:
        - name: page
          mountPath: /srv/www
      volumes:
      - name: page
        configMap:
          name: page
---
apiVersion: v1
kind: Service
metadata:
  name: site
spec:
  type: NodePort
  selector:
    app: site
  ports:
  - port: 80
";

pub(crate) fn applied(spec: &Spec<'_>) -> Result<()> {
    let file = spec.folder()?.join("site.yaml");
    std::fs::write(&file, MANIFEST)?;
    let path = file.display().to_string();
    let apply = || spec.kubectl(&["apply", "-f", &path]);
    let said = apply()?;
    ensure!(said.matches(" created\n").count() == 3, "{said}");
    let said = apply()?;
    ensure!(said.matches(" unchanged\n").count() == 3, "{said}");
    spec.kubectl(&["wait", "--for=condition=Available", "deployment/site", "--timeout=120s"])?;
    std::fs::write(&file, MANIFEST.replace("replicas: 1", "replicas: 2"))?;
    let said = apply()?;
    ensure!(said.contains("deployment.apps/site configured\n"), "{said}");
    spec.kubectl(&["rollout", "status", "deployment/site", "--timeout=120s"])?;
    let all = spec.kubectl(&["get", "all"])?;
    ensure!(all.matches("pod/site-").count() == 2 && all.contains("service/site"), "{all}");
    // From the node itself: kube-proxy's rules, and a port of the node's.
    let port = spec.value(&["service/site"], "{.spec.ports[0].nodePort}")?;
    let node = spec.any().value(&["get", "node", "gantry-node"], "{.status.addresses[0].address}")?;
    let page = poll_every(Duration::from_millis(250), "the page at the node's port", PATIENCE, || {
        let address = format!("{node}:{port}").parse().map_err(|error| format!("{node}:{port}: {error}"))?;
        http::get(address, "/").map_err(|error| format!("{error:#}"))
    })?;
    ensure!(page.text() == "a page of its own\n", "{page:?}");
    spec.kubectl(&["delete", "-f", &path, "--timeout=60s"])?;
    spec.await_value(&["pods"], "{.items[*].metadata.name}", "")?;
    std::fs::remove_file(&file).with_context(|| path.clone())
}

pub(crate) fn rollout(spec: &Spec<'_>) -> Result<()> {
    spec.kubectl(&["create", "deployment", "web", "--image=nginx", "--replicas=2"])?;
    let status = || spec.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    status()?;
    spec.kubectl(&["set", "image", "deployment/web", "nginx=nginx:1.22"])?;
    status()?;
    let history = spec.kubectl(&["rollout", "history", "deployment/web"])?;
    ensure!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");
    // One that cannot be pulled: what there was serves on.
    spec.kubectl(&["set", "image", "deployment/web", "nginx=nginx:never-made"])?;
    let waiting = "{.items[*].status.containerStatuses[0].state.waiting.reason}";
    spec.await_value(&["pods"], waiting, "ImagePullBackOff")?;
    ensure!(spec.value(&["deployment/web"], "{.status.readyReplicas}")? == "2");
    spec.kubectl(&["rollout", "undo", "deployment/web"])?;
    status()?;
    let images = "{.items[*].spec.containers[0].image}";
    spec.await_value(&["pods"], images, "nginx:1.22 nginx:1.22").map(drop)
}
