//! Seccomp as the container's processes meet it. What the filter says to each call is tested where it
//! is compiled (shim/src/seccomp).

use anyhow::{Context, Result};
use gantry_proto::cri;
use gantry_proto::cri::security_profile::ProfileType;
use gantry_tests::pod::{self, Pod};
use gantry_tests::proc;

use crate::images::{Ready, ready};

/// What differs with a filter even for root of the container: a user namespace takes no capability.
const LOOK: &str = "grep Seccomp: /proc/self/status; unshare -U true && echo unshared; echo end";

fn profile(kind: ProfileType, path: &str) -> cri::SecurityProfile {
    cri::SecurityProfile { profile_type: kind.into(), localhost_ref: path.to_owned() }
}

fn look(
    ready: &Ready,
    pod: &Pod,
    name: &str,
    change: impl FnOnce(&mut cri::LinuxContainerSecurityContext),
) -> Result<String> {
    let mut config = pod::container_config(name, &ready.image, &["/bin/sh", "-c", LOOK]);
    pod::with_security(&mut config, change);
    let id = pod.start(&config)?;
    pod::await_exit(&ready.node, &id)?;
    pod.log(name)
}

#[test]
fn rt_2_12_the_default_profile_holds_with_and_without_no_new_privs_and_for_any_user() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "confined")?;
    let free = look(&ready, &pod, "free", |_| {})?;
    assert!(free.contains("Seccomp:\t0") && free.contains("unshared"), "{free}");
    let default = || Some(profile(ProfileType::RuntimeDefault, ""));
    let users = |uid| Some(cri::Int64Value { value: uid });
    for (name, uid, no_new_privs) in
        [("root", 0, false), ("root-nnp", 0, true), ("user", 1000, false), ("user-nnp", 1000, true)]
    {
        let log = look(&ready, &pod, name, |security| {
            security.seccomp = default();
            security.no_new_privs = no_new_privs;
            security.run_as_user = users(uid);
        })?;
        assert!(log.contains("Seccomp:\t2") && log.contains("end"), "{name}: {log}");
        assert!(!log.contains("unshared"), "{name}: {log}");
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_profile_of_the_node_is_compiled_and_a_missing_one_refused_at_create() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "localhost")?;
    let file = ready.node.roots().path("profile.json");
    std::fs::write(
        &file,
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 122}]}"#,
    )?;
    let path = file.to_string_lossy().into_owned();
    let mut config = pod::container_config("mkdir", &ready.image, &["/bin/sh", "-c", "mkdir /x; echo end"]);
    pod::with_security(&mut config, |security| {
        security.seccomp = Some(profile(ProfileType::Localhost, &path));
    });
    let id = pod.start(&config)?;
    pod::await_exit(&ready.node, &id)?;
    let log = pod.log("mkdir")?;
    // errno 122.
    assert!(log.contains("quota exceeded") && log.contains("end"), "{log}");
    std::fs::remove_file(&file)?;
    let mut config = pod::container_config("gone", &ready.image, &["/bin/true"]);
    pod::with_security(&mut config, |security| {
        security.seccomp = Some(profile(ProfileType::Localhost, &path));
    });
    let error = pod.create(&config).expect_err("created with a profile that is not there");
    assert!(error.message().contains(&path), "{error:?}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn pause_is_confined_as_its_pod_asks() -> Result<()> {
    let ready = ready()?;
    let mut config = pod::sandbox_config(&ready.node, "pause");
    let linux = config.linux.get_or_insert_default();
    linux.security_context.get_or_insert_default().seccomp = Some(profile(ProfileType::RuntimeDefault, ""));
    let pod = Pod::run_config(&ready.node, config)?;
    let all = proc::all()?;
    let is_pause =
        |pid: i32| std::fs::read(proc::folder(pid).join("cmdline")).is_ok_and(|line| line == b"pause\0");
    let pause = all.iter().find(|process| is_pause(process.pid)).context("no pause")?;
    let status = std::fs::read_to_string(proc::folder(pause.pid).join("status"))?;
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn the_nodes_own_setting_is_for_containers_that_name_none() -> Result<()> {
    let mut ready = ready()?;
    ready.node.set_flags(&["--unset-seccomp-profile=runtime/default".to_owned()]);
    ready.node.restart()?;
    let pod = Pod::run(&ready.node, "unset")?;
    let log = look(&ready, &pod, "none", |security| security.seccomp = None)?;
    assert!(log.contains("Seccomp:\t2"), "{log}");
    let log = look(&ready, &pod, "unconfined", |_| {})?;
    assert!(log.contains("Seccomp:\t0"), "{log}");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
