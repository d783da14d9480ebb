//! Programs that answer, fail, talk too much, hang and are not there: shell scripts stand for plugins.

use super::*;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

struct PluginFolder(tempfile::TempDir);

impl PluginFolder {
    fn new(name: &str, script: &str) -> PluginFolder {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        PluginFolder(dir)
    }

    fn program(&self, name: &str) -> Program {
        let conf = json!({"cniVersion": "0.4.0", "name": "net", "type": name});
        Program::find(name, &[PathBuf::from("/nonexistent"), self.0.path().into()], conf)
    }
}

fn target() -> AttachmentTarget<'static> {
    AttachmentTarget {
        network: "net",
        home: crate::request::NodeDirs::default_dirs(),
        container_id: "c1",
        ifname: "eth0",
        netns: Path::new("/run/netns/x"),
        args: &[],
    }
}

#[test]
fn a_program_gets_the_environment_and_configuration_of_the_specification() {
    let folder = PluginFolder::new(
        "echo",
        r#"cat > "$0.stdin"; env | grep ^CNI_ | sort > "$0.env"; echo '{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}'"#,
    );
    let previous = CniResult { ips: Vec::new(), ..CniResult::default() };
    let args = [("IgnoreUnknown".to_owned(), "1".to_owned()), ("K8S_POD_NAME".to_owned(), "web".to_owned())];
    let result =
        folder.program("echo").add(AttachmentTarget { args: &args, ..target() }, Some(&previous)).unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.0.0.2/24");
    let read =
        |ending: &str| std::fs::read_to_string(folder.0.path().join(format!("echo.{ending}"))).unwrap();
    assert_eq!(
        read("env").lines().collect::<Vec<_>>(),
        [
            "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web",
            "CNI_COMMAND=ADD",
            "CNI_CONTAINERID=c1",
            "CNI_IFNAME=eth0",
            "CNI_NETNS=/run/netns/x",
            &format!("CNI_PATH=/nonexistent:{}", folder.0.path().display()),
        ]
    );
    let conf: Value = serde_json::from_str(&read("stdin")).unwrap();
    assert_eq!(
        conf,
        json!({"cniVersion": "0.4.0", "name": "net", "type": "echo", "prevResult": {"cniVersion": "0.4.0"}})
    );
}

#[test]
fn status_and_gc_have_no_attachment() {
    let folder = PluginFolder::new("x", r#"cat > "$0.stdin"; env | grep ^CNI_ | sort > "$0.env""#);
    let valid = [request::ValidAttachment { container_id: "c1".into(), ifname: "eth0".into() }];
    folder.program("x").gc(&valid).unwrap();
    let env = std::fs::read_to_string(folder.0.path().join("x.env")).unwrap();
    assert!(env.starts_with("CNI_COMMAND=GC\nCNI_PATH="), "{env}");
    let conf: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.0.path().join("x.stdin")).unwrap()).unwrap();
    assert_eq!(conf["cni.dev/valid-attachments"], json!([{"containerID": "c1", "ifname": "eth0"}]));
    folder.program("x").status().unwrap();
    assert!(
        std::fs::read_to_string(folder.0.path().join("x.env")).unwrap().starts_with("CNI_COMMAND=STATUS\n")
    );
}

#[test]
fn an_error_object_is_told_with_code_details_and_stderr() {
    let folder = PluginFolder::new(
        "bad",
        r#"echo words >&2; echo '{"code":11,"msg":"busy","details":"later"}'; exit 1"#,
    );
    let error = folder.program("bad").add(target(), None).unwrap_err();
    assert_eq!(error.code(), Some(11));
    let text = error.to_string();
    assert!(text.contains("/bad: busy; later (code 11); on stderr: words"), "{text}");
}

#[test]
fn a_failure_without_an_error_object_tells_status_and_stderr() {
    let folder = PluginFolder::new("panic", "echo went wrong >&2; exit 3");
    let text = folder.program("panic").call(Verb::Del, target(), None).unwrap_err().to_string();
    assert!(text.contains("exit status: 3") && text.contains("on stderr: went wrong"), "{text}");
}

#[test]
fn an_answer_that_is_no_result_is_refused() {
    let folder = PluginFolder::new("odd", "echo no json");
    let error = folder.program("odd").add(target(), None).unwrap_err();
    assert!(matches!(error, Error::Decode { .. }), "{error}");
}

#[test]
fn a_program_that_never_stops_talking_is_killed() {
    let folder = PluginFolder::new("chatter", "exec yes");
    let error = folder.program("chatter").add(target(), None).unwrap_err();
    assert!(matches!(error, Error::TooMuch { .. }), "{error}");
}

#[test]
fn a_missing_program_is_named_with_the_folders() {
    let folder = PluginFolder::new("there", "true");
    for kind in ["not-there", "../there", "."] {
        let error = folder.program(kind).status().unwrap_err();
        assert!(error.is_missing(), "{kind}: {error}");
        assert!(error.to_string().contains("/nonexistent, /"), "{error}");
    }
}

#[test]
fn one_that_hangs_is_killed_with_its_children() {
    let folder = PluginFolder::new("hang", r#"sleep 1000 & echo $! > "$0.child"; echo waiting >&2; wait"#);
    let command = Command::new(folder.0.path().join("hang"));
    let error = child::run(command, b"", Duration::from_millis(500)).unwrap_err();
    let child::Error::Late { stderr } = error else { panic!("{error:?}") };
    assert_eq!(stderr, b"waiting\n");
    let child = std::fs::read_to_string(folder.0.path().join("hang.child")).unwrap();
    let stat = PathBuf::from(format!("/proc/{}/stat", child.trim()));
    // Killed at once, and reaped by whoever is its parent now; until then a zombie.
    let gone = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !gone() {
        assert!(std::time::Instant::now() < deadline, "the child runs on");
        std::thread::yield_now();
    }
}

#[test]
fn a_grandchild_that_holds_the_pipes_does_not_hold_the_answer() {
    let folder = PluginFolder::new("daemon", r#"sleep 1000 & echo '{"cniVersion":"0.4.0"}'"#);
    let command = Command::new(folder.0.path().join("daemon"));
    let outcome = child::run(command, b"ignored input", Duration::from_secs(60)).unwrap();
    assert_eq!(outcome.stdout, b"{\"cniVersion\":\"0.4.0\"}\n");
}
