//! Where a pod's processes are, and what is in a slice when others are in it, too. With the cgroup driver systemd in
//! the VM that has it; without, the same calls in the plain tree.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_agent::cgroups::Cgroups;
use gantry_agent::cgroups::tree::Tree;
use gantry_model::cgroup::Reserved;
use gantry_model::cgroup::limits::of_pod;
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
    let parent = place.runtime.block_on(tree.set_up(pod, &of_pod(pod, &tree.rules())))?;
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
    assert_eq!(place.runtime.block_on(tree.set_up(pod, &of_pod(pod, &tree.rules())))?, parent);
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

/// Ends with its maker.
struct Hungry(Child);

impl Hungry {
    /// 20 MB and more, in `folder`.
    fn within(folder: &Path) -> Result<Self> {
        let script =
            "echo $$ > \"$0\"; x=$(head -c 20000000 /dev/zero | tr '\\0' a); echo held; read end; echo ${#x}";
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script])
            .arg(folder.join("cgroup.procs"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = shell.spawn()?;
        let mut told = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut told)?;
        ensure!(told == "held\n", "{told:?}");
        Ok(Self(child))
    }
}

impl Drop for Hungry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn daemons_are_held_in_a_cgroup_that_is_there_and_none_is_made_for_them() -> Result<()> {
    let place = place_of(LIMITED)?;
    let tag = format!("gantrydaemons{}", std::process::id());
    let tree = Tree::new(&format!("/{tag}"), 2000, driver())?;
    // A cgroup with a pod in it stands for one of daemons: it has all controllers, however it is made.
    let pod = place.pod()?;
    place.runtime.block_on(tree.set_up(pod, &of_pod(pod, &tree.rules())))?;
    let name = cgroup(&[&tag]);
    let file = |v1: &str, v2: &str| -> Result<(PathBuf, bool)> {
        let folders = tagged_cgroups(&tag)?;
        let own: Vec<&PathBuf> =
            folders.iter().filter(|folder| folder.ends_with(name.trim_matches('/'))).collect();
        let find = |file: &str| own.iter().map(|folder| folder.join(file)).find(|path| path.exists());
        let of_v1 = find(v1).map(|path| (path, true));
        of_v1.or_else(|| find(v2).map(|path| (path, false))).with_context(|| format!("no {v1}, no {v2}"))
    };
    let value =
        |v1: &str, v2: &str| -> Result<String> { Ok(fs::read_to_string(file(v1, v2)?.0)?.trim().to_owned()) };
    let memory = || value("memory.limit_in_bytes", "memory.max");
    let enforce = |name: &str, to| place.runtime.block_on(tree.enforce(name, to));
    let to = Reserved { cpu: Some(500), memory: Some(256 << 20), pids: Some(100) };
    enforce(&name, Some(to))?;
    let weight = value("cpu.shares", "cpu.weight")?;
    assert!(matches!(weight.as_str(), "512" | "20"), "{weight}");
    assert_eq!((memory()?, value("pids.max", "pids.max")?), ((256 << 20).to_string(), "100".to_owned()));
    // What is not reserved stays as it is.
    enforce(&name, Some(Reserved { cpu: Some(1000), ..Reserved::default() }))?;
    let weight = value("cpu.shares", "cpu.weight")?;
    assert!(matches!(weight.as_str(), "1024" | "39"), "{weight}");
    assert_eq!((memory()?, value("pids.max", "pids.max")?), ((256 << 20).to_string(), "100".to_owned()));
    let told = enforce(&name, None).unwrap_err().to_string();
    assert_eq!(told, format!("[{tag:?}] cgroup is not configured properly"));
    let (limit, is_v1) = file("memory.limit_in_bytes", "memory.max")?;
    // With swap all of it could be made to fit.
    if is_v1 && fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() < 2) {
        let hungry = Hungry::within(limit.parent().context("a folder")?)?;
        let told = enforce(&name, Some(Reserved { memory: Some(1 << 20), ..to })).unwrap_err().to_string();
        assert!(told.starts_with("unable to set memory limit to 1048576 (current usage: "), "{told}");
        drop(hungry);
    }
    let other = format!("{tag}missing");
    let told = enforce(&cgroup(&[&other]), Some(to)).unwrap_err().to_string();
    let words = if is_v1 { "has some missing paths: " } else { "could not read controllers for cgroup " };
    assert!(told.contains(words) && told.contains(&format!("[{other:?}]")), "{told}");
    assert_eq!(tagged_cgroups(&other)?, Vec::<PathBuf>::new());
    place.runtime.block_on(tree.tear_down(&place.pod()?.uid))?;
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
