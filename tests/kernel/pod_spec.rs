//! What a manifest says reaches the program: `gantry run` with a pod that uses ConfigMaps, Secrets,
//! the downward API, volumes, sub-paths, groups and names.

use anyhow::Result;
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;

use crate::images::web_image;

/// `gantry run --manifest-dir` on a folder below the roots, ended by its drop.
struct ManifestFolder {
    child: std::process::Child,
    roots: Roots,
}

impl ManifestFolder {
    fn start(roots: Roots) -> Result<Self> {
        let folder = roots.path("manifests");
        std::fs::create_dir_all(&folder)?;
        let child = std::process::Command::new(place::bin_dir()?.join("gantry"))
            .arg("run")
            .arg(format!("--manifest-dir={}", folder.display()))
            .args(roots.flags()?)
            .arg(format!("--agent-socket={}", roots.path("agent.sock").display()))
            .arg(format!("--pod-logs-dir={}", roots.path("logs").display()))
            .stdin(std::process::Stdio::null())
            .stdout(std::fs::File::create(roots.path("run.out"))?)
            .stderr(std::fs::File::create(roots.path("run.err"))?)
            .spawn()?;
        Ok(Self { child, roots })
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        let tmp = self.roots.path("manifests/.tmp");
        std::fs::write(&tmp, text)?;
        Ok(std::fs::rename(tmp, self.roots.path("manifests").join(name))?)
    }

    /// Name, phase and UID of each pod.
    fn pods(&self) -> Result<Vec<[String; 3]>, String> {
        let output = std::process::Command::new(place::bin_dir().map_err(|e| e.to_string())?.join("gantry"))
            .args(["ps", "--output=json"])
            .arg(format!("--agent-socket={}", self.roots.path("agent.sock").display()))
            .output()
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let pods = gantry_tests::standalone::flat(&text)
            .map_err(|error| format!("{error:#}: {}", String::from_utf8_lossy(&output.stderr)))?;
        let word = |pod: &serde_json::Value, key: &str| pod[key].as_str().unwrap_or_default().to_owned();
        Ok(pods.iter().map(|pod| ["name", "phase", "uid"].map(|key| word(pod, key))).collect())
    }

    fn await_pods(&self, names: &[&str]) -> Result<Vec<[String; 3]>> {
        let step = std::time::Duration::from_secs(60);
        gantry_tests::poll::poll(&format!("{names:?} to run"), step, || {
            let pods = self.pods()?;
            let fits = pods.len() == names.len()
                && names
                    .iter()
                    .all(|name| pods.iter().any(|[n, s, _]| n.starts_with(name) && s == "Running"));
            if fits { Ok(pods) } else { Err(format!("{pods:?}\n{}", self.said())) }
        })
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.roots.path("run.err")).unwrap_or_default()
    }

    fn end(&mut self) -> Result<std::process::ExitStatus> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
        Ok(self.child.wait()?)
    }
}

impl Drop for ManifestFolder {
    fn drop(&mut self) {
        // Over already when the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_manifest_folder_is_followed() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let pod = |name: &str, more: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
             containers: [{{name: c, image: {image}{more}}}]\n"
        )
    };
    let mut folder = ManifestFolder::start(roots)?;
    folder.put("a.yaml", &pod("a", ""))?;
    folder.put("broken.yaml", "kind: [")?;
    let secret = ", envFrom: [{secretRef: {name: s}}]";
    folder.put("secret.yaml", &pod("secret", secret))?;
    let first = folder.await_pods(&["a-"])?;
    folder.put("b.yaml", &pod("b", ""))?;
    let both = folder.await_pods(&["a-", "b-"])?;
    assert!(both.contains(&first[0]), "the first pod is left alone: {both:?}");
    let said = folder.said();
    assert!(said.contains("secret.yaml: static pods may not reference secrets"), "{said}");
    assert!(said.contains("broken.yaml: ") && said.contains("not valid YAML"), "{said}");
    // Other content is another pod, after the first is gone.
    folder.put("a.yaml", &pod("a", ", env: [{name: A, value: b}]"))?;
    let uid = |pods: &[[String; 3]], name: &str| {
        pods.iter().find(|[n, _, _]| n.starts_with(name)).map(|[_, _, uid]| uid.clone())
    };
    gantry_tests::poll::poll("the new pod", std::time::Duration::from_secs(60), || {
        let pods = folder.pods()?;
        let running = pods.len() == 2 && pods.iter().all(|[_, status, _]| status == "Running");
        if running && uid(&pods, "a-") != uid(&both, "a-") { Ok(()) } else { Err(format!("{pods:?}")) }
    })?;
    std::fs::remove_file(folder.roots.path("manifests/a.yaml"))?;
    let left = folder.await_pods(&["b-"])?;
    assert_eq!(uid(&left, "b-"), uid(&both, "b-"));
    let status = folder.end()?;
    assert!(status.success(), "{status}: {}", folder.said());
    drop(folder);
    before.await_clean(&scope)
}

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
