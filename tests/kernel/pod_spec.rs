//! What a manifest says reaches the program: `gantry run` with a pod that uses ConfigMaps, Secrets,
//! the downward API, volumes, sub-paths, groups and names.

use anyhow::Result;
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;

use crate::images::web_image;

const OBJECTS: &str = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {GREETING: hello, file: from-file}}
- {apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {password: hidden}}
---
";

fn pod(image: &str, script: &str) -> String {
    format!(
        "{OBJECTS}
apiVersion: v1
kind: Pod
metadata: {{name: all, labels: {{app: all}}}}
spec:
  restartPolicy: Never
  hostname: inside
  subdomain: sub
  hostAliases: [{{ip: 192.0.2.7, hostnames: [alias.example]}}]
  dnsPolicy: None
  dnsConfig: {{nameservers: [192.0.2.53], searches: [example], options: [{{name: ndots, value: '2'}}]}}
  securityContext: {{fsGroup: 4242, supplementalGroups: [4343]}}
  volumes:
  - {{name: shared, emptyDir: {{}}}}
  - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}
  - {{name: config, configMap: {{name: c, items: [{{key: file, path: deep/file}}]}}}}
  - {{name: secret, secret: {{secretName: s, defaultMode: 0440}}}}
  - {{name: pod, downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}}}
  initContainers:
  - {{name: first, image: {image}, command: [/bin/sh, -c, 'echo made-by-init > /s/made'], volumeMounts: [{{name: shared, mountPath: /s, subPath: part}}]}}
  containers:
  - name: c
    image: {image}
    command: [/bin/sh, -c]
    args: [\"{script}\"]
    workingDir: /m
    envFrom: [{{prefix: P_, configMapRef: {{name: c}}}}]
    env:
    - {{name: WORD, value: '$(P_GREETING)-$(NOPE)-$$(P_GREETING)'}}
    - {{name: PASSWORD, valueFrom: {{secretKeyRef: {{name: s, key: password}}}}}}
    - {{name: POD_IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}
    - {{name: LIMIT, valueFrom: {{resourceFieldRef: {{resource: limits.memory, divisor: 1Mi}}}}}}
    resources: {{limits: {{memory: 64Mi, cpu: 500m}}}}
    terminationMessagePath: /words
    volumeMounts:
    - {{name: shared, mountPath: /s, readOnly: true}}
    - {{name: memory, mountPath: /m}}
    - {{name: config, mountPath: /c}}
    - {{name: secret, mountPath: /x}}
    - {{name: pod, mountPath: /d}}
"
    )
}

#[test]
fn what_a_manifest_says_reaches_the_program() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let script = "echo word $WORD; echo password $PASSWORD; echo limit $LIMIT; echo ip $POD_IP; echo cwd $PWD; \
        cat /s/part/made /c/deep/file /x/password /d/labels; echo; cat /etc/hosts /etc/resolv.conf; hostname; \
        grep Groups /proc/self/status; touch /s/no 2>/dev/null || echo read-only; touch /m/yes && echo written; \
        echo last > /words; cat /proc/self/cgroup | head -n 1; exit 3";
    let mut run = Standalone::start(roots, &pod(&image, script))?;
    let status = run.await_end()?;
    let said = run.stdout();
    assert_eq!(status.code(), Some(1), "{said}\n{}", run.stderr());
    for line in [
        "word hello-$(NOPE)-$(P_GREETING)",
        "password hidden",
        "limit 64",
        "cwd /m",
        "made-by-init",
        "from-file",
        "app=\"all\"",
        "# Kubernetes-managed hosts file.",
        "inside.sub.default.svc.cluster.local",
        "192.0.2.7\talias.example",
        "nameserver 192.0.2.53",
        "options ndots:2",
        "read-only",
        "written",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}\n{}", run.stderr());
    }
    let groups = said.lines().find(|line| line.contains("Groups:")).unwrap_or_default();
    assert!(groups.contains("4242") && groups.contains("4343"), "{groups}");
    before.await_clean(&scope)
}

#[test]
fn what_is_missing_is_told_and_comes_to_nothing_else() -> Result<()> {
    place::require_own_namespaces()?;
    let roots = Roots::new()?;
    let before = Snapshot::take(&roots.scope())?;
    let file = roots.path("pod.yaml");
    let text =
        pod("127.0.0.1:1/x:v1", "true").replace("{name: memory, mountPath: /m}", "{name: x, mountPath: /m}");
    std::fs::write(&file, text)?;
    let output = gantry_tests::standalone::run_command(&roots, &file)?.output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("spec.containers[0].volumeMounts[1].name: Not found: \"x\""), "{said}");
    before.await_clean(&roots.scope())
}
