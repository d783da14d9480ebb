//! Programs that are shell scripts.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::config::parse;
use super::*;

const V1: &str = "client.authentication.k8s.io/v1";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    /// `script` counts its runs in the file `runs`.
    fn program(&self, script: &str, more: &Value) -> Program {
        let path = self.path("plugin");
        std::fs::write(
            &path,
            format!("#!/bin/sh\ncd {}\necho run >> runs\n{script}\n", self.0.path().display()),
        )
        .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut exec = json!({ "apiVersion": V1, "command": "./plugin", "interactiveMode": "Never" });
        for (key, value) in more.as_object().into_iter().flatten() {
            exec[key] = value.clone();
        }
        let cluster = json!({ "server": "https://h", "certificate-authority": "ca.crt" });
        Program::new(parse(&json!({ "exec": exec }), &cluster, "u", self.0.path()).unwrap().unwrap())
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.path("runs")).unwrap_or_default().lines().count()
    }
}

fn says(status: &Value) -> String {
    format!("echo '{}'", json!({ "kind": "ExecCredential", "apiVersion": V1, "status": status }))
}

fn token(found: &Credentials) -> &str {
    found.token().unwrap_or_default()
}

#[tokio::test]
async fn a_program_is_told_where_it_is_and_run_once_for_as_long_as_its_answer_counts() {
    let folder = Folder::new();
    std::fs::write(folder.path("ca.crt"), "ca").unwrap();
    let script = format!(
        "echo \"$KUBERNETES_EXEC_INFO\" > info; echo \"$1 $WHO\" > args\n{}",
        says(&json!({ "token": "t" }))
    );
    let more = json!({ "args": ["get-token"], "env": [{ "name": "WHO", "value": "me" }], "provideClusterInfo": true });
    let program = folder.program(&script, &more);
    for _ in 0..3 {
        assert_eq!(token(&program.credentials(&Metrics::default()).await.unwrap()), "t");
    }
    assert_eq!(folder.runs(), 1);
    let info: Value = serde_json::from_str(&std::fs::read_to_string(folder.path("info")).unwrap()).unwrap();
    assert_eq!(
        info["spec"]["cluster"],
        json!({ "server": "https://h", "certificate-authority-data": "Y2E=" })
    );
    assert_eq!(std::fs::read_to_string(folder.path("args")).unwrap(), "get-token me\n");
}

#[tokio::test]
async fn an_answer_that_is_over_or_refused_is_asked_for_again() {
    let folder = Folder::new();
    let over = says(&json!({ "token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z" }));
    let program = folder.program(&over, &Value::Null);
    program.credentials(&Metrics::default()).await.unwrap();
    program.credentials(&Metrics::default()).await.unwrap();
    assert_eq!(folder.runs(), 2);
    let folder = Folder::new();
    let program = folder.program(&says(&json!({ "token": "t" })), &Value::Null);
    let first = program.credentials(&Metrics::default()).await.unwrap();
    program.refuse(&first, &Metrics::default()).await;
    // Two requests were refused, one is enough.
    program.refuse(&first, &Metrics::default()).await;
    assert_eq!(folder.runs(), 2);
    let second = program.credentials(&Metrics::default()).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert_eq!(first.generation, second.generation, "without a certificate connections stay");
}

#[tokio::test]
async fn what_goes_wrong_is_told_as_upstream_tells_it() {
    let folder = Folder::new();
    let error = async |program: Program| program.credentials(&Metrics::default()).await.err().unwrap();
    let path = folder.path("./plugin").display().to_string();
    let failed = folder.program("exit 3", &Value::Null);
    assert_eq!(error(failed).await, format!("exec: executable {path} failed with exit code 3"));
    assert_eq!(
        error(folder.program("kill -9 $$", &Value::Null)).await,
        format!("exec: executable {path} failed with exit code -1")
    );
    let missing = json!({ "command": "no-such-plugin", "installHint": "apt install it" });
    let told = error(folder.program("", &missing)).await;
    assert!(told.starts_with("exec: executable no-such-plugin not found\n\nIt looks like"), "{told}");
    assert!(told.ends_with("\n\napt install it"), "{told}");
    let plain = error(folder.program("", &json!({ "command": "no-such-plugin" }))).await;
    assert_eq!(plain, "exec: executable no-such-plugin not found");
    let always = folder.program(&says(&json!({ "token": "t" })), &json!({ "interactiveMode": "Always" }));
    let runs = folder.runs();
    assert!(error(always).await.starts_with("exec plugin cannot support interactive mode: "));
    assert_eq!(folder.runs(), runs);
    let no_authority = folder.program("", &json!({ "provideClusterInfo": true }));
    assert!(error(no_authority).await.contains("ca.crt"));
    let metrics = Metrics::default();
    for (script, more) in
        [("exit 3", json!({})), ("exit 3", missing), (says(&json!({ "token": "t" })).as_str(), json!({}))]
    {
        let _ = folder.program(script, &more).credentials(&metrics).await;
    }
    for (code, kind) in [("3", "plugin_execution_error"), ("1", "plugin_not_found_error"), ("0", "no_error")]
    {
        assert_eq!(metrics.exec_plugin_calls.get([code, kind]), Some(1.0), "{kind}");
    }
}
