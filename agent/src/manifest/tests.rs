//! From YAML text to pods, and to errors that name the field.

use gantry_model::pod::env::{EnvValue, EnvVar};
use gantry_model::pod::{Container, PullPolicy, RestartPolicy};

use super::*;

const GOOD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 5
  dnsPolicy: ClusterFirst
  enableServiceLinks: false
  containers:
  - name: web
    image: 127.0.0.1:5000/web:v1
    command: ["/bin/httpd"]
    args: ["-p", "$(PORT)", "$$(PORT)", "$(NOPE)"]
    env:
    - {name: PORT, value: "80"}
    - {name: URL, value: "http://x:$(PORT)"}
    ports: [{containerPort: 80}]
    resources:
      limits: {cpu: 1, memory: 64Mi}
      requests: {cpu: 250m}
    securityContext:
      runAsUser: 1000
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}
"#;

mod described;
mod fields;
mod ledger;
mod objects;

fn parse(text: &str) -> Result<Vec<Pod>, Error> {
    let objects = parse_text(Path::new("pod.yaml"), text)?;
    Ok(objects
        .into_iter()
        .filter_map(|object| match object {
            Object::Pod { pod, .. } => Some(*pod),
            Object::ConfigMap(_) | Object::Secret(_) => None,
        })
        .collect())
}

/// The error and its sources, as the terminal shows them.
fn error(text: &str) -> String {
    let error = parse(text).expect_err("must be refused");
    let mut out = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        out.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    out
}

fn with(field: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - name: web\n    image: a\n    {field}: {value}\n"
    )
}

fn with_spec(field: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  {field}: {value}\n  containers:\n  - name: web\n    image: a\n"
    )
}

/// The only container of a pod that is right.
fn container(field: &str, value: &str) -> Container {
    let text = with(field, value);
    parse(&text).unwrap_or_else(|e| panic!("{text}: {e:?}")).remove(0).containers.remove(0)
}

/// A pod that is right.
fn spec(field: &str, value: &str) -> Pod {
    let text = with_spec(field, value);
    parse(&text).unwrap_or_else(|e| panic!("{text}: {e:?}")).remove(0)
}

#[test]
fn a_whole_pod_is_read() {
    let pods = parse(GOOD).unwrap();
    let pod = pods.first().unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("default", "web"));
    assert_eq!(pod.restart_policy, RestartPolicy::OnFailure);
    assert_eq!(pod.grace.as_secs(), 5);
    assert_eq!(pod.hostname, "web");
    let web = pod.container("web").unwrap();
    let literal =
        |name: &str, value: &str| EnvVar { name: name.into(), value: EnvValue::Literal(value.into()) };
    assert_eq!(web.args, ["-p", "$(PORT)", "$$(PORT)", "$(NOPE)"]);
    assert_eq!(web.env, [literal("PORT", "80"), literal("URL", "http://x:$(PORT)")]);
    assert_eq!(web.pull_policy, PullPolicy::IfNotPresent);
    assert_eq!(web.resources.cpu_limit, Some(1000));
    assert_eq!(web.resources.cpu_request, Some(250));
    assert_eq!(web.resources.memory_request, Some(64 << 20));
    assert!(web.security.no_new_privileges);
    assert_eq!(web.security.run_as_user, Some(1000));
}

#[test]
fn the_uid_follows_the_content() {
    let uid = |text: &str| parse(text).unwrap().first().unwrap().uid.clone();
    assert_eq!(uid(GOOD), uid(GOOD));
    assert_ne!(uid(GOOD), uid(&GOOD.replace("web:v1", "web:v2")));
    assert_ne!(uid(GOOD), uid(&GOOD.replace("{name: web, labels", "{name: web, namespace: x, labels")));
    // Comments and order of keys are not content.
    assert_eq!(uid(GOOD), uid(&format!("# hello\n{GOOD}")));
    let given = GOOD.replace("{name: web, labels", "{name: web, uid: abc-1, labels");
    assert_eq!(uid(&given).as_str(), "abc-1");
}

#[test]
fn unknown_fields_are_named_with_path_and_hint() {
    assert_eq!(
        error(&with("imagee", "x")),
        "pod.yaml:8:5: spec.containers[0].imagee: unknown field (did you mean \"image\"?)"
    );
    assert_eq!(
        error(&with("securityContext", "{foo: 1}")),
        "pod.yaml:8:23: spec.containers[0].securityContext.foo: unknown field"
    );
    let second = format!("{GOOD}---\n{}", with("flavour", "x"));
    let line = GOOD.lines().count() + 1 + 8;
    assert_eq!(error(&second), format!("pod.yaml:{line}:5: spec.containers[0].flavour: unknown field"));
}

#[test]
fn all_that_is_wrong_is_told_at_once_each_with_its_line() {
    let text = "\
apiVersion: v1
kind: Pod
metadata: {name: Web}
spec:
  restartPolicy: Sometimes
  volumes:
  - {name: v, fc: {targetWWNs: [a], lun: 0}}
  containers:
  - name: web
    comand: [a]
    ports:
    - containerPort: abc
    - containerPort: 70000
  - name: other
    image: a
    volumeMounts:
    - {name: nowhere, mountPath: /n}
    livenes:
      exec: {command: [a]}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: d}
  dat: {}
";
    let said = error(text);
    let told: Vec<(&str, &str)> =
        said.lines().filter_map(|line| line.strip_prefix("pod.yaml:")?.split_once(": ")).collect();
    let expected = [
        ("3:12", "metadata.name: Invalid value"),
        ("5:3", "spec.restartPolicy: Unsupported value"),
        ("7:15", "spec.volumes[0].fc is not supported yet"),
        ("9:5", "spec.containers[0].image: Required value"),
        ("10:5", "spec.containers[0].comand: unknown field (did you mean \"command\"?)"),
        ("12:7", "spec.containers[0].ports[0].containerPort: wrong type"),
        ("13:7", "spec.containers[0].ports[1].containerPort: Invalid value"),
        ("17:8", "spec.containers[1].volumeMounts[0].name: Not found: \"nowhere\""),
        ("18:5", "spec.containers[1].livenes: unknown field"),
        ("28:3", "dat: unknown field"),
    ];
    for (place, start) in expected {
        assert!(
            told.iter().any(|(at, what)| *at == place && what.starts_with(start)),
            "{place} {start}: {said}"
        );
    }
    assert_eq!(told.len(), expected.len(), "{said}");
    assert_eq!(told.iter().map(|(at, _)| *at).collect::<Vec<_>>(), expected.map(|(at, _)| at), "{said}");
}

#[test]
fn wrong_types_are_named_with_their_path() {
    let text = error(&with("ports", "[{containerPort: 1}, {containerPort: abc}]"));
    assert!(
        text.starts_with("pod.yaml:8:34: spec.containers[0].ports[1].containerPort: wrong type: "),
        "{text}"
    );
    let text = error(&with("env", "[{name: A, value: 8080}]"));
    assert!(text.contains("spec.containers[0].env[0].value: wrong type"), "{text}");
}

#[test]
fn known_fields_that_are_not_honoured_are_refused() {
    for (field, value) in
        [("resources", "{limits: {hugepages-2Mi: 2Mi}}"), ("resources", "{claims: [{name: gpu}]}")]
    {
        let text = error(&with(field, value));
        assert!(text.starts_with("pod.yaml:8:"), "{text}");
        assert!(text.contains(&format!(": spec.containers[0].{field}")), "{text}");
        assert!(text.ends_with(" is not supported yet: remove it"), "{text}");
    }
    for (field, value) in [
        ("ephemeralContainers", "[{name: e, image: a}]"),
        ("runtimeClassName", "kata"),
        ("readinessGates", "[{conditionType: a}]"),
        ("overhead", "{cpu: 1}"),
        ("schedulingGates", "[{name: a}]"),
        ("volumes", "[{name: v, fc: {targetWWNs: [a], lun: 0}}]"),
    ] {
        let text = error(&with_spec(field, value));
        assert!(text.starts_with("pod.yaml:5:"), "{text}");
        assert!(text.contains(&format!(": spec.{field}")), "{text}");
        assert!(text.ends_with(" is not supported yet: remove it"), "{text}");
    }
}

#[test]
fn what_is_no_pod_is_refused_by_name() {
    assert_eq!(
        error("apiVersion: v1\nkind: Deployment\n"),
        "pod.yaml: document 1: kind Deployment of apiVersion v1 is not supported, only Pod, ConfigMap, Secret and List of apiVersion v1, Deployment, ReplicaSet, StatefulSet and DaemonSet of apps/v1, and Job of batch/v1"
    );
    assert!(parse("# nothing\n").unwrap().is_empty());
    assert!(error("a: 1\na: 2\n").contains("not valid YAML"));
    assert!(error("kind: [").contains("not valid YAML"));
    assert!(error(&GOOD.replace("kind: Pod", "kind: Pod\nkind: Pod")).contains("not valid YAML"));
}

#[test]
fn a_wrong_image_name_is_no_manifest_error_and_latest_means_always() {
    let policy = |image: &str| {
        let text = with("stdin", "false").replace("image: a", &format!("image: '{image}'"));
        parse(&text).unwrap().first().unwrap().containers.first().unwrap().pull_policy
    };
    assert_eq!(policy("busybox"), PullPolicy::Always);
    assert_eq!(policy("busybox:latest"), PullPolicy::Always);
    assert_eq!(policy("busybox:1"), PullPolicy::IfNotPresent);
    assert_eq!(policy("Not An Image"), PullPolicy::IfNotPresent);
}

#[test]
fn two_pods_of_one_name_are_refused_across_files() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
    for path in [&a, &b] {
        std::fs::write(path, GOOD).unwrap();
    }
    assert!(matches!(load(&[a.clone(), b]), Err(Error::Twice { .. })));
    assert_eq!(load(std::slice::from_ref(&a)).unwrap().pods.len(), 1);
    std::fs::write(&a, "# nothing\n").unwrap();
    assert!(matches!(load(&[a]), Err(Error::Empty { .. })));
    assert!(matches!(load(&[folder.path().join("none.yaml")]), Err(Error::Read { .. })));
}

#[test]
fn reading_a_pod_takes_few_instructions() {
    let test = "manifest::tests::reading_a_pod_takes_few_instructions";
    gantry_instructions::hold(test, 2_274_664, || assert_eq!(parse(GOOD).unwrap().len(), 1));
}
