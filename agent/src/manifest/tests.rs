//! From YAML text to pods, and to errors that name the field.

use super::*;
use crate::pod::spec::env::{EnvValue, EnvVar};
use crate::pod::spec::{PullPolicy, RestartPolicy};

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

fn parse(text: &str) -> Result<Vec<Pod>, Error> {
    parse_text(Path::new("pod.yaml"), text)
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
        "pod.yaml: document 1: spec.containers[0].imagee: unknown field (did you mean \"image\"?)"
    );
    assert_eq!(
        error(&with("securityContext", "{foo: 1}")),
        "pod.yaml: document 1: spec.containers[0].securityContext.foo: unknown field"
    );
    let second = format!("{GOOD}---\n{}", with("flavour", "x"));
    assert_eq!(error(&second), "pod.yaml: document 2: spec.containers[0].flavour: unknown field");
}

#[test]
fn wrong_types_are_named_with_their_path() {
    let text = error(&with("ports", "[{containerPort: 1}, {containerPort: abc}]"));
    assert!(
        text.starts_with("pod.yaml: document 1: spec.containers[0].ports[0].containerPort: wrong type: ")
            || text
                .starts_with("pod.yaml: document 1: spec.containers[0].ports[1].containerPort: wrong type: "),
        "{text}"
    );
    assert!(text.contains("containerPort"), "{text}");
    assert!(text.contains("ports[1]"), "{text}");
    let text = error(&with("env", "[{name: A, value: 8080}]"));
    assert!(text.contains("spec.containers[0].env[0].value: wrong type"), "{text}");
}

#[test]
fn known_fields_that_are_not_honoured_are_refused() {
    for (field, value) in [
        ("livenessProbe", "{exec: {command: [a]}}"),
        ("volumeMounts", "[{name: a, mountPath: /a}]"),
        ("lifecycle", "{}"),
        ("tty", "true"),
        ("envFrom", "[{configMapRef: {name: a}}]"),
    ] {
        let want =
            format!("pod.yaml: document 1: spec.containers[0].{field} is not supported yet: remove it");
        assert_eq!(error(&with(field, value)), want);
    }
    assert_eq!(
        error(&with("ports", "[{containerPort: 80, hostPort: 80}]")),
        "pod.yaml: document 1: spec.containers[0].ports[0].hostPort is not supported yet: remove it"
    );
    assert_eq!(
        error(&GOOD.replace("  restartPolicy:", "  volumes: [{name: v, emptyDir: {}}]\n  restartPolicy:")),
        "pod.yaml: document 1: spec.volumes is not supported yet: remove it"
    );
    assert_eq!(
        error(&with("resources", "{limits: {ephemeral-storage: 1Gi}}")),
        "pod.yaml: document 1: spec.containers[0].resources.limits.ephemeral-storage is not supported yet: remove it"
    );
}

#[test]
fn values_are_checked() {
    for (text, part) in [
        (GOOD.replace("{name: web, labels", "{name: Web, labels"), "metadata.name: \"Web\" is not"),
        (
            GOOD.replace("{name: web, labels", "{name: web, namespace: ../x, labels"),
            "metadata.namespace: \"../x\" is not",
        ),
        (
            GOOD.replace("{name: web, labels", "{name: web, uid: ../x, labels"),
            "metadata.uid: \"../x\" is not",
        ),
        (GOOD.replace("{name: web, labels", "{labels"), "metadata.name is missing"),
        (GOOD.replace("OnFailure", "Sometimes"), "spec.restartPolicy: \"Sometimes\" is not supported"),
        (
            GOOD.replace("64Mi", "64Mb"),
            "spec.containers[0].resources.limits.memory: \"64Mb\" is not a quantity",
        ),
        (
            GOOD.replace("cpu: 250m", "cpu: 2"),
            "spec.containers[0].resources.requests.cpu: \"2000\" is not at most its limit",
        ),
        (GOOD.replace("runAsUser: 1000", "runAsUser: -1"), "runAsUser: \"-1\" is not"),
        (GOOD.replace("{name: PORT, ", "{name: 'A=B', "), "env[0].name: \"A=B\" is not"),
        (
            GOOD.replace("  containers:\n", "  containers:\n  - {name: web, image: b}\n"),
            "spec.containers[1].name: \"web\" is not unique",
        ),
        (GOOD.replace("ClusterFirst", "None"), "spec.dnsPolicy: \"None\" is not supported"),
        (with("imagePullPolicy", "Often"), "imagePullPolicy: \"Often\" is not supported"),
    ] {
        let got = error(&text);
        assert!(got.contains(part), "{got}\nwants {part}");
    }
}

#[test]
fn what_is_no_pod_is_refused_by_name() {
    assert_eq!(
        error("apiVersion: apps/v1\nkind: Deployment\n"),
        "pod.yaml: document 1: kind Deployment of apiVersion apps/v1 is not supported, only kind Pod of apiVersion v1"
    );
    assert_eq!(error("# nothing\n"), "pod.yaml: no pod in it");
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
    assert_eq!(load(&[a]).unwrap().len(), 1);
    assert!(matches!(load(&[folder.path().join("none.yaml")]), Err(Error::Read { .. })));
}
