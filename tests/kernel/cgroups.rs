//! Where a pod's processes are, and what is in a slice when others are in it, too. With the cgroup driver systemd in
//! the VM that has it; without, the same calls in the plain tree.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_agent::cgroups::Cgroups;
use gantry_agent::cgroups::tree::Tree;
use gantry_proto::cri;
use gantry_systemd::{Property, Systemd, Value};
use gantry_tests::leakcheck::tagged_cgroups;
use gantry_tests::node::{Node, Roots};
use gantry_tests::place::{self, cgroup, driver, with_systemd};
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;
use gantry_tests::proc;
use rustix::process::{Pid, Signal};

use crate::images::ready;
use crate::volumes::place_of;

const PATIENCE: Duration = Duration::from_secs(30);

/// The path of a process in the v2 hierarchy, whatever else is mounted.
fn v2_path(pid: i32) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    path.map(str::to_owned).with_context(|| format!("no v2 hierarchy: {text}"))
}

/// The processes that have `id` in some path of their cgroups.
fn members(id: &str) -> Result<Vec<proc::Process>> {
    let is_its = |process: &proc::Process| {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        text.is_ok_and(|text| text.contains(id))
    };
    Ok(proc::all()?.into_iter().filter(is_its).collect())
}

#[test]
fn rt_5_1_monitor_pause_and_containers_are_in_the_v2_hierarchy_with_or_without_v1() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "v2")?;
    let id = pod.start(&pod::container_config("v2", &ready.image, &["/workload", "sleep", "60"]))?;
    let (own, rest): (Vec<_>, Vec<_>) =
        members(&pod.id)?.into_iter().partition(|process| process.name.contains("monitor"));
    let [monitor] = own.as_slice() else { anyhow::bail!("{own:?}") };
    let path = v2_path(monitor.pid)?;
    assert!(path.ends_with(&format!("-monitors/{}", pod.id)), "the monitor is in {path}");
    let pauses: Vec<_> = rest.iter().filter(|process| process.name == "pause").collect();
    let [pause] = pauses.as_slice() else { anyhow::bail!("{rest:?}") };
    let path = v2_path(pause.pid)?;
    assert!(path.ends_with(&format!("/{0}/{0}", pod.id)), "pause is in {path}");
    let processes = members(&id)?;
    let [process] = processes.as_slice() else { anyhow::bail!("{processes:?}") };
    let path = v2_path(process.pid)?;
    assert!(path.ends_with(&format!("/{}/{id}", pod.id)), "the container is in {path}");
    if with_systemd() {
        let unit = format!("gantry-{}.scope", pod.id);
        let scope = Systemd::default().description(&unit)?;
        assert_eq!(scope.as_deref(), Some(format!("gantry pod default/v2 {}", pod.id).as_str()));
    }
    // An exec is where the container is, which begins its view there on v2.
    let cmd = ["/bin/busybox", "cat", "/proc/self/cgroup"].map(str::to_owned).to_vec();
    let request = cri::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 30 };
    let answer = ready.node.cri().exec_sync(request)?;
    let seen = String::from_utf8_lossy(&answer.stdout).into_owned();
    let is_there = |line: &str| {
        line.strip_prefix("0::")
            .is_some_and(|path| path == "/" || path.ends_with(&format!("/{}/{id}", pod.id)))
    };
    assert!(seen.lines().any(is_there), "{seen}{}", String::from_utf8_lossy(&answer.stderr));
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}

fn sleeper() -> Result<Child> {
    Ok(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn()?)
}

/// Puts a process below these steps, as somebody does who knows nothing of us; ends it by `remove`.
struct Foreign {
    process: Child,
    unit: String,
    folders: Vec<PathBuf>,
}

impl Foreign {
    fn below(steps: &[&str]) -> Result<Self> {
        let process = sleeper()?;
        let unit = format!("foreign-{}.scope", process.id());
        let mut foreign = Foreign { process, unit, folders: Vec::new() };
        if with_systemd() {
            let properties = [
                Property::text("Slice", &place::cgroup_parent(steps)),
                Property { name: "PIDs", value: Value::Numbers(vec![foreign.process.id()]) },
            ];
            ensure!(Systemd::default().start(&foreign.unit, &properties)?, "the scope was there");
            return Ok(foreign);
        }
        let path = cgroup(steps);
        for folder in tagged_cgroups(steps[0])?.iter().filter(|f| f.ends_with(path.trim_start_matches('/'))) {
            let folder = folder.join("foreign");
            fs::create_dir(&folder)?;
            // A fresh cpuset takes nobody.
            let _ = fs::write(folder.join("cgroup.procs"), foreign.process.id().to_string());
            foreign.folders.push(folder);
        }
        ensure!(!foreign.folders.is_empty(), "no such cgroup: {path}");
        Ok(foreign)
    }

    fn runs(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_none())
    }

    fn remove(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        if with_systemd() {
            Systemd::default().stop(&self.unit)?;
        }
        for folder in &self.folders {
            fs::remove_dir(folder)?;
        }
        Ok(())
    }
}

/// As `systemctl stop`: the runtime ends, and takes back what only pods needed.
fn end(node: &mut Node) -> Result<()> {
    let pid = node.pid()?;
    rustix::process::kill_process(pid, Signal::TERM)?;
    poll("the runtime to end", PATIENCE, || {
        // It waits for its clients to take leave, and ours moves only when it is called.
        let _ = node.cri().version(cri::VersionRequest::default());
        let state = proc::one(Pid::as_raw(Some(pid))).map(|process| process.state);
        if state.is_none_or(|state| state == 'Z') { Ok(()) } else { Err(format!("{state:?}")) }
    })?;
    node.kill()
}

fn has_cgroup(tag: &str, steps: &[&str]) -> Result<bool> {
    let path = cgroup(steps);
    Ok(tagged_cgroups(tag)?.iter().any(|folder| folder.ends_with(path.trim_start_matches('/'))))
}

#[test]
fn rt_5_1_who_else_is_in_the_root_cgroup_outlives_the_end_of_a_runtime() -> Result<()> {
    place::require_own_namespaces()?;
    let mut node = Node::start_on(Roots::new()?)?;
    node.restart_with(&["--standalone".to_owned()])?;
    let tag = node.roots().tag().to_owned();
    Pod::run(&node, "first")?.remove()?;
    let root = [tag.as_str()];
    ensure!(has_cgroup(&tag, &root)?, "the pod's root cgroup is not there");
    let mut foreign = Foreign::below(&root)?;
    end(&mut node)?;
    assert!(foreign.runs()?, "ended with the runtime");
    assert!(has_cgroup(&tag, &root)?);
    foreign.remove()?;
    // Empty now, and its own: the next one takes it back.
    node.restart()?;
    Pod::run(&node, "second")?.remove()?;
    end(&mut node)?;
    assert!(!has_cgroup(&tag, &root)?, "{:?}", tagged_cgroups(&tag)?);
    Ok(())
}

#[test]
fn rt_5_1_a_slice_that_ends_alone_takes_nobody_along() -> Result<()> {
    place::require_own_namespaces()?;
    let systemd = Systemd::default();
    if !with_systemd() {
        let told = systemd.check().map_err(|error| error.to_string());
        assert!(told.as_ref().is_err_and(|told| told.contains("use the driver cgroupfs")), "{told:?}");
        gantry_tests::not_run("systemd is not init here");
        return Ok(());
    }
    let tag = format!("gantryalone{}", std::process::id());
    let slice = format!("{tag}.slice");
    let limits = [Property::number("MemoryMax", 1 << 30), Property::text("Description", "mine")];
    assert!(systemd.start(&slice, &limits)?);
    assert_eq!(systemd.description(&slice)?.as_deref(), Some("mine"));
    let mut foreign = Foreign::below(&[&tag])?;
    systemd.stop_alone(&slice)?;
    assert!(foreign.runs()?);
    assert_eq!(
        systemd.description(&foreign.unit)?.as_deref(),
        Some(foreign.unit.as_str()),
        "its scope is over"
    );
    foreign.remove()?;
    // It can be made again, whatever of it is left.
    systemd.start(&slice, &limits)?;
    systemd.stop(&slice)?;
    assert_eq!(systemd.description(&slice)?, None);
    assert_eq!(tagged_cgroups(&tag)?, Vec::<PathBuf>::new());
    Ok(())
}

const LIMITED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: limited}
spec: {containers: [{name: c, image: i, resources: {limits: {cpu: 123m, memory: 64Mi}}}]}
";

#[test]
fn rt_5_1_what_is_ended_behind_the_agents_back_comes_back_with_its_limits() -> Result<()> {
    let place = place_of(LIMITED)?;
    let tag = format!("gantrybehind{}", std::process::id());
    let tree = Tree::new(&format!("/{tag}"), 2000, driver())?;
    let pod = place.pod()?;
    let parent = place.runtime.block_on(tree.set_up(pod))?;
    let kubepods = [tag.as_str(), "kubepods"];
    let own_file = |name: &str| -> Result<String> {
        let folders = tagged_cgroups(&tag)?;
        let own = folders.iter().filter(|folder| folder.ends_with(parent.trim_start_matches('/')));
        let mut files = own.map(|folder| folder.join(name)).filter(|file| file.exists());
        Ok(fs::read_to_string(files.next().with_context(|| format!("no {name}"))?)?.trim().to_owned())
    };
    let memory = || own_file("memory.limit_in_bytes").or_else(|_| own_file("memory.max"));
    let limit = (64 << 20).to_string();
    assert_eq!(memory()?, limit);
    let is_v1 = own_file("memory.limit_in_bytes").is_ok();
    if with_systemd() {
        let ended = Command::new("systemctl").args(["stop", &place::cgroup_parent(&kubepods)]).status()?;
        ensure!(ended.success(), "systemctl stop: {ended}");
    } else {
        for folder in tagged_cgroups(&tag)?.iter().rev() {
            fs::remove_dir(folder)?;
        }
    }
    // On a hybrid host systemd knows some hierarchies only.
    assert!(is_v1 || !has_cgroup(&tag, &kubepods)?);
    assert_eq!(place.runtime.block_on(tree.set_up(pod))?, parent);
    assert_eq!(memory()?, limit);
    if with_systemd() {
        // It writes what it was told whenever it looks at the slice again.
        let unit = parent.rsplit('/').next().context("a path")?.to_owned();
        let shown = Command::new("systemctl").args(["show", &unit]).output()?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let named = if is_v1 { "MemoryLimit" } else { "MemoryMax" };
        for line in [format!("{named}={limit}"), "CPUQuotaPerSecUSec=130ms".to_owned()] {
            assert!(shown.lines().any(|shown| shown == line), "no {line}: {shown}");
        }
        // And the file says what systemd was told.
        let quota = if is_v1 { own_file("cpu.cfs_quota_us")? } else { own_file("cpu.max")? };
        assert_eq!(quota.split(' ').next(), Some("13000"));
    }
    place.runtime.block_on(tree.tear_down(&pod.uid))?;
    assert_eq!(tagged_cgroups(&tag)?, Vec::<PathBuf>::new());
    Ok(())
}

#[test]
fn rt_5_1_a_seed_ends_when_its_maker_does() -> Result<()> {
    let program = place::bin_dir()?.join("gantry-pause");
    let mut seed = Command::new(program).arg("--seed").stdin(Stdio::piped()).spawn()?;
    assert!(seed.try_wait()?.is_none());
    drop(seed.stdin.take());
    poll("the seed to end", PATIENCE, || match seed.try_wait() {
        Ok(Some(status)) if status.success() => Ok(()),
        other => Err(format!("{other:?}")),
    })
}
