//! ExecSync: a further process in a container, as confined as the container itself, with its code, its
//! output and its time limit.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::proc;

use crate::images::{Ready, facts, ready};

/// ExecSync of a command; the request's own time limit, or none.
fn exec(ready: &Ready, id: &str, cmd: &[&str], timeout: i64) -> Result<cri::ExecSyncResponse, tonic::Status> {
    let request = cri::ExecSyncRequest {
        container_id: id.to_owned(),
        cmd: cmd.iter().map(|&word| word.to_owned()).collect(),
        timeout,
    };
    ready.node.cri().exec_sync(request)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_exec_is_a_process_of_its_container() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "exec")?;
    let mut config = pod::container_config("own", &ready.image, &["/workload", "sleep", "60"]);
    config.envs = vec![cri::KeyValue { key: "OWN".into(), value: b"yes".to_vec() }];
    pod::with_security(&mut config, |security| {
        security.run_as_user = Some(cri::Int64Value { value: 1234 });
        security.supplemental_groups = vec![55];
        security.no_new_privs = true;
    });
    let id = pod.start(&config)?;

    let answer = exec(&ready, &id, &["/workload", "id"], 10)?;
    assert_eq!(answer.exit_code, 0, "{}", text(&answer.stderr));
    let inside = facts(&text(&answer.stdout));
    assert_eq!(inside["Uid"], "1234 1234 1234 1234");
    assert_eq!(inside["NoNewPrivs"], "1");
    assert_eq!(inside["Groups"], "0 55");
    assert_eq!(inside["Umask"], "0022");
    assert_eq!(inside["SigBlk"], "0000000000000000");
    assert_eq!(inside["CapEff"], "0000000000000000");
    assert_eq!(inside["cwd"], "/srv");
    assert_eq!(inside["oom_score_adj"], "1000");
    assert_eq!(inside["fds"], "0 1 2", "no descriptor of the monitor's");
    assert!(text(&answer.stdout).contains("limit Max open files 1024 "), "{}", text(&answer.stdout));
    // Every namespace is that of the container's first process.
    let first = exec(
        &ready,
        &id,
        &[
            "/bin/sh",
            "-c",
            "for n in mnt net pid uts ipc cgroup user; do \
        echo ns.$n $(readlink /proc/1/ns/$n); done",
        ],
        10,
    )?;
    // As user 1234 nothing of process 1 can be read when it is undumpable; it is the user's own.
    let first = facts(&text(&first.stdout));
    assert_eq!(first.len(), 7, "{first:?}");
    for (name, value) in first {
        assert!(value.contains(":["), "{name} is {value:?}");
        assert_eq!(inside.get(&name), Some(&value), "{name}");
    }
    let env = text(&exec(&ready, &id, &["/workload", "env"], 10)?.stdout);
    for line in ["OWN=yes", "FROM_IMAGE=yes", "HOSTNAME=exec"] {
        assert!(env.lines().any(|found| found == line), "{line} is not in:\n{env}");
    }
    // Found by PATH, both streams, and the program's own code.
    let answer = exec(&ready, &id, &["sh", "-c", "echo out; echo err >&2; exit 3"], 10)?;
    assert_eq!(
        (answer.exit_code, text(&answer.stdout), text(&answer.stderr)),
        (3, "out\n".into(), "err\n".into())
    );
    let answer = exec(&ready, &id, &["sh", "-c", "kill -9 $$"], 10)?;
    assert_eq!(answer.exit_code, 137);
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_11_an_exec_out_of_time_takes_its_group_along_and_not_the_container() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "late")?;
    let id = pod.start(&pod::container_config("late", &ready.image, &["/workload", "sleep", "600"]))?;
    let error = exec(&ready, &id, &["sh", "-c", "sleep 4321 & sleep 4321"], 1).unwrap_err();
    assert_eq!(error.code(), tonic::Code::DeadlineExceeded, "{error:?}");
    let wording = "failed to exec in container: timeout 1s exceeded: context deadline exceeded";
    assert_eq!(error.message(), wording);
    // Process 1 of this image does not reap what is left to it: a zombie is as gone as it gets.
    let script =
        "for s in /proc/[0-9]*/status; do grep -q '^State:.Z' $s || grep '^Name:.sleep' $s; done; true";
    poll("the exec's processes to be gone", Duration::from_secs(10), || {
        let left = exec(&ready, &id, &["sh", "-c", script], 10).map_err(|e| e.to_string())?;
        if left.stdout.is_empty() { Ok(()) } else { Err(text(&left.stdout)) }
    })?;
    let status = pod::container_status(&ready.node, &id)?;
    assert_eq!(status.state, i32::from(cri::ContainerState::ContainerRunning));
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn rt_2_11_output_held_by_a_straggler_is_waited_for_a_while_only() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "held")?;
    let id = pod.start(&pod::container_config("held", &ready.image, &["/workload", "sleep", "600"]))?;
    // Who waits for the straggler is out of time long before it ends. The limit is the program's own, and no longer
    // than the wait for its output: a probe that fails at once has failed.
    for limit in [60, 1] {
        let answer = exec(&ready, &id, &["sh", "-c", "echo before; sleep 3600 & exit 4"], limit)?;
        assert_eq!((answer.exit_code, text(&answer.stdout)), (4, "before\n".into()));
    }
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn what_cannot_be_run_is_named() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "errors")?;
    let id = pod.start(&pod::container_config("errors", &ready.image, &["/workload", "sleep", "600"]))?;
    let error = exec(&ready, &id, &["/no/such"], 10).unwrap_err();
    assert!(error.message().contains("exec \"/no/such\": no such file or directory"), "{error:?}");
    let error = exec(&ready, &id, &["nothing-in-path"], 10).unwrap_err();
    assert!(error.message().contains("executable file not found in $PATH"), "{error:?}");
    assert_eq!(exec(&ready, &id, &[], 10).unwrap_err().code(), tonic::Code::InvalidArgument);
    assert_eq!(exec(&ready, "nobody", &["x"], 10).unwrap_err().code(), tonic::Code::NotFound);
    let ended = pod.start(&pod::container_config("ended", &ready.image, &["/workload", "exit", "0"]))?;
    pod::await_exit(&ready.node, &ended)?;
    let error = exec(&ready, &ended, &["/workload", "id"], 10).unwrap_err();
    assert_eq!(error.message(), "failed to exec in container: container is in CONTAINER_EXITED state");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn execs_run_at_the_same_time_and_leave_nothing() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "many")?;
    let id = pod.start(&pod::container_config("many", &ready.image, &["/workload", "sleep", "600"]))?;
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..20)
            .map(|number| {
                let (ready, id) = (&ready, &id);
                scope.spawn(move || {
                    let script = format!("echo {number}; exit {number}");
                    exec(ready, id, &["sh", "-c", &script], 30)
                })
            })
            .collect();
        for (number, run) in runs.into_iter().enumerate() {
            let answer = run.join().unwrap()?;
            assert_eq!(answer.exit_code, i32::try_from(number)?);
            assert_eq!(text(&answer.stdout).trim(), number.to_string());
        }
        anyhow::Ok(())
    })?;
    let monitor = proc::all()?.into_iter().find(|process| process.name.starts_with("gantry-monitor"));
    let monitor = monitor.ok_or_else(|| anyhow::anyhow!("no monitor"))?;
    let open = || std::fs::read_dir(proc::folder(monitor.pid).join("fd")).map(Iterator::count);
    let before = open()?;
    for _ in 0..10 {
        exec(&ready, &id, &["/bin/true"], 30)?;
    }
    // The answer may be here before the monitor has put everything away.
    poll("the descriptors to be closed", Duration::from_secs(10), || match open() {
        Ok(now) if now <= before => Ok(()),
        now => Err(format!("{now:?} open, {before} before")),
    })?;
    assert_eq!(proc::children(monitor.pid)?.len(), 2, "pause and the container");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

/// The container's folders in every hierarchy that has one.
fn folders(ready: &Ready, id: &str) -> Result<Vec<std::path::PathBuf>> {
    let mut folders = gantry_tests::leakcheck::tagged_cgroups(ready.node.roots().tag())?;
    folders.retain(|folder| folder.ends_with(id));
    anyhow::ensure!(!folders.is_empty(), "container {id} has no cgroup");
    Ok(folders)
}

/// Of v2, whose folders with controllers to hand on have no processes; a hybrid host's v2 hierarchy has none.
fn has_controllers(folder: &Path) -> bool {
    std::fs::read_to_string(folder.join("cgroup.controllers")).is_ok_and(|text| !text.trim().is_empty())
}

/// Processes of a cgroup folder.
fn members(folder: &Path) -> Result<Vec<i32>> {
    let text = std::fs::read_to_string(folder.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}

/// An exec that goes on is in the container's cgroup or in `leaf` below it, in every hierarchy; on v2
/// only in there.
fn assert_in_leaf(ready: &Ready, id: &str) -> Result<()> {
    let words = "/workload sleep 3599";
    let pid = poll("the exec to run", Duration::from_secs(20), || {
        let all = proc::all().map_err(|error| format!("{error:#}"))?;
        let found = all.iter().find(|process| proc::command_line(process.pid).trim_end() == words);
        found.map(|process| process.pid).ok_or_else(|| "it does not".to_owned())
    })?;
    for folder in folders(ready, id)? {
        let there = members(&folder.join("leaf"))?.contains(&pid);
        assert!(
            there || (!has_controllers(&folder) && members(&folder)?.contains(&pid)),
            "not in {}",
            folder.display()
        );
    }
    // Its answer is the end of the exec.
    proc::kill(pid)
}

#[test]
fn rt_2_11_an_exec_follows_its_container_into_a_cgroup_below_its_own() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "below")?;
    let id = pod.start(&pod::container_config("below", &ready.image, &["/workload", "sleep", "600"]))?;
    for folder in folders(&ready, &id)? {
        // What systemd or a Docker in the container does.
        let leaf = folder.join("leaf");
        std::fs::create_dir(&leaf)?;
        for name in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = std::fs::read_to_string(folder.join(name)) {
                // v2 inherits; v1 takes no process without them.
                let _ = std::fs::write(leaf.join(name), value);
            }
        }
        let members = std::fs::read_to_string(folder.join("cgroup.procs"))?;
        for member in members.lines() {
            std::fs::write(leaf.join("cgroup.procs"), member)?;
        }
        if has_controllers(&folder) {
            // From now on a clone into the container's own folder is EBUSY.
            std::fs::write(folder.join("cgroup.subtree_control"), "+pids")
                .or_else(|_| std::fs::write(folder.join("cgroup.subtree_control"), "+memory"))?;
        }
    }
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| exec(&ready, &id, &["/workload", "sleep", "3599"], 60));
        let looked = assert_in_leaf(&ready, &id);
        let answer = answer.join().unwrap()?;
        looked?;
        assert_eq!(answer.exit_code, 137, "{}", text(&answer.stderr));
        anyhow::Ok(())
    })?;
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

#[test]
fn a_frozen_container_holds_up_its_exec_and_nothing_else() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "frozen")?;
    let id = pod.start(&pod::container_config("frozen", &ready.image, &["/workload", "sleep", "600"]))?;
    let awake = pod.start(&pod::container_config("awake", &ready.image, &["/workload", "sleep", "600"]))?;
    let freeze = |frozen: bool| -> Result<()> {
        for folder in folders(&ready, &id)? {
            for (name, values) in [("freezer.state", ["THAWED", "FROZEN"]), ("cgroup.freeze", ["0", "1"])] {
                if folder.join(name).exists() {
                    std::fs::write(folder.join(name), values[usize::from(frozen)])?;
                }
            }
        }
        Ok(())
    };
    let monitor = proc::all()?.into_iter().find(|process| process.name.starts_with("gantry-monitor"));
    let monitor = monitor.ok_or_else(|| anyhow::anyhow!("no monitor"))?.pid;
    // User and system time: fields 14 and 15 of proc_pid_stat(5), counted after the name.
    let busy = || -> Result<u64> {
        let stat = std::fs::read_to_string(proc::folder(monitor).join("stat"))?;
        let fields = stat.rsplit(')').next().unwrap_or_default();
        Ok(fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum())
    };
    freeze(true)?;
    let before = busy()?;
    // Its set-up never ends: the monitor must not wait for it, nor turn in circles.
    let error = exec(&ready, &id, &["/bin/true"], 1).unwrap_err();
    assert_eq!(error.code(), tonic::Code::DeadlineExceeded, "{error:?}");
    assert_eq!(exec(&ready, &awake, &["/bin/true"], 10)?.exit_code, 0);
    let spent = busy()? - before;
    assert!(spent < 50, "the monitor was busy for {spent} ticks");
    freeze(false)?;
    assert_eq!(exec(&ready, &id, &["/bin/true"], 10)?.exit_code, 0);
    poll("the killed exec to be gone", Duration::from_secs(10), || {
        let children = proc::children(monitor).map_err(|error| error.to_string())?;
        if children.len() == 3 { Ok(()) } else { Err(format!("{children:?}")) }
    })?;
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
