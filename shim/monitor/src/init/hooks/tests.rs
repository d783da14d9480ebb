//! Hooks as plain processes of the test: no root, no namespaces.

use super::*;

fn hook(stage: HookStage, script: &str) -> Hook {
    Hook {
        stage: stage.into(),
        path: "/bin/sh".into(),
        args: vec!["sh".into(), "-c".into(), script.into()],
        ..Hook::default()
    }
}

fn hooks(all: Vec<Hook>) -> Hooks {
    let annotations = [("a".to_owned(), "b".to_owned())].into_iter().collect();
    Hooks { bundle: "/the/bundle".into(), annotations, hooks: all }
}

fn try_run(all: Vec<Hook>, stage: HookStage) -> Result<(), String> {
    let state = HookState { id: "c1", status: "creating", pid: 7 };
    run(&hooks(all), stage, state, &default_env(), None).map_err(|error| error.to_string())
}

const CREATE: HookStage = HookStage::HookCreateContainer;

#[test]
fn a_hook_reads_the_state_and_those_of_its_stage_run_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seen").display().to_string();
    let mut first = hook(CREATE, &format!("cat > {file}; echo \"|$WORD|$PATH|$#|$1\" >> {file}"));
    first.env = vec!["WORD=a=b".into()];
    first.args.extend(["zero".into(), "one".into()]);
    let second = hook(CREATE, &format!("echo $PATH >> {file}; sleep 100 & exit 0"));
    let other = hook(HookStage::HookPoststop, &format!("echo never >> {file}"));
    try_run(vec![first, other, second], CREATE).unwrap();
    let seen = std::fs::read_to_string(&file).unwrap();
    let (json, rest) = seen.split_once('|').unwrap();
    let state: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(
        state,
        serde_json::json!({"ociVersion": "1.3.0", "id": "c1", "status": "creating", "pid": 7,
            "bundle": "/the/bundle", "annotations": {"a": "b"}})
    );
    // Its own variables and no others, then none of its own: what is usual.
    let lines: Vec<&str> = rest.lines().collect();
    assert_eq!(lines.len(), 2, "{rest}");
    assert!(lines[0].starts_with("a=b|") && lines[0].ends_with("|1|one"), "{rest}");
    assert!(lines[1].starts_with("/usr/local/sbin:"), "{rest}");
    let gone = HookState { id: "c1", status: "stopped", pid: 0 }.json(&hooks(Vec::new()));
    assert!(!String::from_utf8(gone).unwrap().contains("pid"));
}

#[test]
fn the_first_failure_ends_it_in_runcs_words() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ran");
    let after = hook(CREATE, &format!("touch {}", file.display()));
    let failing = hook(CREATE, "echo out; echo no such card >&2; exit 3");
    assert_eq!(
        try_run(vec![hook(CREATE, "true"), failing, after], CREATE).unwrap_err(),
        "error running createContainer hook #1: exit status 3, stdout: out\n, stderr: no such card\n"
    );
    assert!(!file.exists());
    let missing = Hook { path: "/none".into(), ..hook(CREATE, "") };
    assert_eq!(
        try_run(vec![missing], CREATE).unwrap_err(),
        "error running createContainer hook #0: fork/exec /none: no such file or directory"
    );
    assert!(try_run(vec![hook(CREATE, "kill -9 $$")], CREATE).unwrap_err().contains("signal: killed"));
}

#[test]
fn what_a_hook_says_is_bounded_and_nobody_waits_for_what_it_leaves_behind() {
    let text = try_run(vec![hook(CREATE, "yes | head -c 3000000 >&2; sleep 100 & exit 1")], CREATE);
    let text = text.unwrap_err();
    assert!((1000..2000).contains(&text.len()), "{}", text.len());
}

#[test]
fn a_hook_past_its_time_is_killed_with_what_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid").display().to_string();
    let slow = Hook { timeout: Some(1), ..hook(CREATE, &format!("sleep 1000 & echo $! > {file}; wait")) };
    assert_eq!(
        try_run(vec![slow], CREATE).unwrap_err(),
        "error running createContainer hook #0: hook ran past specified timeout of 1.0s"
    );
    let pid: i32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    let gone = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    while !gone() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_start_that_is_called_off_ends_its_hook() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(theirs);
    let state = HookState { id: "c1", status: "creating", pid: 7 };
    let all = hooks(vec![hook(CREATE, "sleep 1000")]);
    let error = run(&all, CREATE, state, &default_env(), Some(ours.as_fd())).unwrap_err();
    assert!(error.to_string().ends_with("the start was called off"), "{error}");
}

#[test]
fn the_container_waits_for_the_hooks_beside_it_and_hears_why_they_failed() {
    let answer = |script: &str| {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let all =
            hooks(vec![hook(HookStage::HookPrestart, "true"), hook(HookStage::HookCreateRuntime, script)]);
        let start = StartContainer { id: "c1".into(), hooks: Some(all), ..StartContainer::default() };
        let waits = std::thread::spawn(move || await_runtimes(&ours.into()).map_err(|error| error.what));
        // As the process that it is cloned for: the socket ends with it. Signals of a test are left alone.
        let socket: OwnedFd = theirs.into();
        if script != "killed" {
            let mut asked = [0u8; 1];
            assert_eq!(rustix::io::read(&socket, &mut asked[..]), Ok(1));
            let state = HookState { id: "c1", status: "creating", pid: 7 };
            let hooks = start.hooks.as_ref().unwrap();
            let ran = run(hooks, HookStage::HookCreateRuntime, state, &[], Some(socket.as_fd()));
            let answer = ran.map_or_else(|e| [&[FAILED], e.to_string().as_bytes()].concat(), |()| vec![OK]);
            rustix::io::write(&socket, &answer).unwrap();
        }
        drop(socket);
        waits.join().unwrap()
    };
    assert_eq!(answer("true"), Ok(()));
    let failed = answer("echo no >&2; exit 2").unwrap_err();
    assert_eq!(failed, "error running createRuntime hook #0: exit status 2, stdout: , stderr: no\n");
    assert!(answer("killed").unwrap_err().contains("was killed"));
}
