//! Workloads as files have them, to pods.

use std::path::{Path, PathBuf};

use gantry_model::pod::Pod;

use crate::manifest::{Text, load_texts};

fn load(text: &str) -> Result<(Vec<Pod>, Vec<String>), String> {
    let texts = [Text { path: PathBuf::from("f.yaml"), text: text.to_owned() }];
    load_texts(&texts).map(|loaded| (loaded.pods, loaded.notes)).map_err(|error| error.to_string())
}

fn pods(text: &str) -> Vec<Pod> {
    load(text).unwrap().0
}

fn names(text: &str) -> Vec<String> {
    pods(text).iter().map(Pod::full_name).collect()
}

/// With `spec` above the template.
fn apps(kind: &str, spec: &str, pod: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web, namespace: shop}}\nspec:\n  {spec}\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    spec:\n      {pod}\n      containers:\n      - {{name: c, image: i}}\n"
    )
}

fn job(spec: &str, policy: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: sum}}\nspec:\n  {spec}\n  template:\n    spec:\n      restartPolicy: {policy}\n      containers:\n      - {{name: c, image: i}}\n"
    )
}

#[test]
fn replicas_are_pods_with_numbers() {
    let file = apps("Deployment", "replicas: 3", "");
    let (made, notes) = load(&file).unwrap();
    let names: Vec<String> = made.iter().map(Pod::full_name).collect();
    assert_eq!(names, ["shop/web-0", "shop/web-1", "shop/web-2"]);
    assert!(made.iter().all(|pod| pod.labels["app"] == "web"));
    let uids: std::collections::BTreeSet<_> = made.iter().map(|pod| pod.uid.clone()).collect();
    assert_eq!(uids.len(), 3);
    assert_eq!(
        notes,
        ["Deployment shop/web runs as 3 pods on this node (web-0 to web-2): a pod that is stopped is not \
             replaced, a change is not rolled out"]
    );
    assert_eq!(self::names(&apps("ReplicaSet", "", "")), ["shop/web-0"], "one is the default");
    let (none, notes) = load(&apps("Deployment", "replicas: 0", "")).unwrap();
    assert!(none.is_empty() && notes == ["Deployment shop/web asks for no pod"], "{notes:?}");
}

#[test]
fn a_stateful_set_names_its_pods_and_their_domain() {
    let spec = "replicas: 2\n  serviceName: db\n  ordinals: {start: 5}";
    let made = pods(&apps("StatefulSet", spec, ""));
    let last = made.last().unwrap();
    assert_eq!(
        (last.name.as_str(), last.hostname.as_str(), last.subdomain.as_str()),
        ("web-6", "web-6", "db")
    );
    assert_eq!(last.labels["apps.kubernetes.io/pod-index"], "6");
    assert_eq!(last.labels["statefulset.kubernetes.io/pod-name"], "web-6");
}

#[test]
fn a_daemon_set_is_one_pod_of_its_name() {
    assert_eq!(names(&apps("DaemonSet", "", "")), ["shop/web"]);
}

#[test]
fn a_jobs_completions_are_pods_and_an_indexed_one_knows_its_number() {
    assert_eq!(names(&job("", "Never")), ["default/sum-0"]);
    assert_eq!(names(&job("parallelism: 2", "Never")).len(), 2, "a queue of work");
    let spec = "completions: 2\n  parallelism: 2\n  completionMode: Indexed\n  activeDeadlineSeconds: 9";
    let made = pods(&job(spec, "OnFailure"));
    let last = made.last().unwrap();
    assert_eq!(last.annotations["batch.kubernetes.io/job-completion-index"], "1");
    assert_eq!(last.active_deadline.unwrap().as_secs(), 9);
    let described = last.described.clone().unwrap();
    assert!(described.contains(r#""name":"JOB_COMPLETION_INDEX","value":"1""#), "{described}");
    assert_eq!(last.labels["job-name"], "sum");
    assert!(pods(&job("suspend: true", "Never")).is_empty());
}

#[test]
fn what_needs_a_controller_or_is_wrong_is_named() {
    for (text, words) in [
        (
            job("completions: 3\n  parallelism: 2", "Never"),
            "spec.parallelism: Invalid value: 2: a controller starts",
        ),
        (job("podFailurePolicy: {rules: []}", "Never"), "spec.podFailurePolicy is not supported yet"),
        (job("completionMode: Indexed", "Never"), "spec.completions: Required value"),
        (job("", "Always"), "f.yaml:8:7: spec.template.spec.restartPolicy: Unsupported value: \"Always\""),
        (
            apps("Deployment", "", "restartPolicy: Never"),
            "spec.template.spec.restartPolicy: Unsupported value",
        ),
        (
            apps("Deployment", "replicas: 111", ""),
            "spec.replicas: Invalid value: 111: one node runs at most 110",
        ),
        (apps("Deployment", "replicas: -1", ""), "spec.replicas: Invalid value: -1: must be greater"),
        (apps("Deployment", "replica: 1", ""), "replica: unknown field"),
        (apps("Deployment", "", "hostnam: x"), "spec.template.spec.hostnam: unknown field"),
        (apps("Deployment", "", "hostname: X_"), "spec.template.spec.hostname: Invalid value: \"X_\""),
        (
            apps("StatefulSet", "volumeClaimTemplates: [{metadata: {name: data}}]", ""),
            "spec.volumeClaimTemplates is not supported yet: a controller makes",
        ),
        (
            apps("Deployment", "", "").replacen("app: web", "app: db", 1),
            "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template",
        ),
    ] {
        let error = load(&text).unwrap_err();
        assert!(error.contains(words), "{error}\nhas no {words}");
    }
}

#[test]
fn a_static_pods_file_holds_no_workload() {
    let error = crate::manifest::parse_text(Path::new("f.yaml"), &job("", "Never")).unwrap_err().to_string();
    assert!(error.contains("kind Job of apiVersion batch/v1 is not supported"), "{error}");
}

#[test]
fn other_kinds_are_refused_with_what_to_do() {
    let error = load("apiVersion: v1\nkind: Service\nmetadata: {name: web}\n").unwrap_err();
    assert!(
        error.contains("kind Service of apiVersion v1 is not supported: kube-proxy serves its address"),
        "{error}"
    );
    let error = load("apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: x}\n").unwrap_err();
    assert!(error.contains("a controller starts its Jobs by the clock"), "{error}");
}
