//! The tree in the cgroup file systems, with the kubelet's names for either driver; with systemd each folder is a
//! slice of its, too ([`super::units`]). Owns every folder from `ROOT/kubepods` on, but not the containers' own;
//! never decides a number. Called by the workers through [`Cgroups`].
//!
//! ```text
//! ROOT/kubepods/pod<uid>               Guaranteed
//! ROOT/kubepods/burstable/pod<uid>     /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice
//! ROOT/kubepods/besteffort/pod<uid>
//! ```

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use gantry_base::error::chain;
use gantry_cgroup::{Hierarchy, Layout};
use gantry_model::cgroup::limits::{self, BEST_EFFORT, Limits, Rules};
use gantry_model::cgroup::names::{self, Driver};
use gantry_model::cgroup::{Reserved, Together};
use gantry_model::pod::qos::{Qos, qos};
use gantry_model::pod::{Pod, PodUid};
use gantry_systemd::Property;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::existing;
use super::units::{self, Units};
use super::{Cgroups, Error};
use crate::cgroups::page_sizes;

const KUBEPODS: &str = "kubepods";
const BURSTABLE: &str = "burstable";
const BESTEFFORT: &str = "besteffort";
/// For leftovers to die; they were sent SIGKILL.
const PATIENCE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(10);

/// The tree of one agent.
#[derive(Debug, Clone)]
pub struct Tree {
    inner: Arc<Inner>,
    rules: Rules,
}

#[derive(Debug)]
struct Inner {
    layout: Layout,
    /// Path below the mounts, without slashes at its ends; may be empty.
    root: String,
    /// With the driver systemd.
    units: Option<Units>,
    /// Of huge pages, in KiB.
    page_sizes: Vec<i64>,
    /// What all pods have together; until it is told, the weight of the node's cores.
    all: Mutex<Together>,
    /// It was told: what is written must stay.
    held: AtomicBool,
    /// One change of the classes at a time: making a pod's folder and removing an empty class must
    /// not cross.
    turn: Mutex<()>,
}

impl Tree {
    /// A tree at `root/kubepods` on a node of `cpu` thousandths of cores. What is left empty goes,
    /// unless `root` is `/`, where another kubelet may count on it.
    ///
    /// # Errors
    /// When no cgroup file system is mounted, the path is not plain, or systemd cannot be asked.
    pub fn new(root: &str, cpu: i64, driver: Driver) -> Result<Self, Error> {
        let plain = root.starts_with('/') && !root.split('/').any(|part| matches!(part, ".." | "."));
        if !plain {
            return Err(Error { message: format!("cgroup root {root:?} is not an absolute, plain path") });
        }
        let layout = Layout::detect().map_err(|error| Error { message: chain(&error) })?;
        let root = root.trim_matches('/').to_owned();
        let all = Mutex::new(Together { cpu, ..Together::default() });
        let (held, turn) = (AtomicBool::new(false), Mutex::new(()));
        let units = match driver {
            Driver::Cgroupfs => None,
            Driver::Systemd => Some(Units::connect().map_err(|message| Error { message })?),
        };
        let inner = Arc::new(Inner { layout, root, units, page_sizes: page_sizes(), all, held, turn });
        Ok(Self { inner, rules: Rules::default() })
    }

    /// The same, by a node's own rules.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }
}

/// Names the file and a remedy where there is one.
fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => ": run as root, or delegate the cgroup",
        io::ErrorKind::ReadOnlyFilesystem => ": mount the cgroup file systems read-write",
        io::ErrorKind::ResourceBusy if what == "enable controllers in" => {
            ": it holds processes of its own; choose another cgroup root"
        }
        _ => "",
    };
    format!("{what} {}: {error}{remedy}", path.display())
}

impl Inner {
    /// Below each mount.
    fn class(&self, qos: Qos) -> PathBuf {
        let driver = if self.units.is_some() { Driver::Systemd } else { Driver::Cgroupfs };
        let steps = match qos {
            Qos::Guaranteed => &[KUBEPODS][..],
            Qos::Burstable => &[KUBEPODS, BURSTABLE],
            Qos::BestEffort => &[KUBEPODS, BESTEFFORT],
        };
        PathBuf::from(names::path(driver, &self.root, steps).trim_start_matches('/'))
    }

    fn pod(&self, class: &Path, uid: &PodUid) -> PathBuf {
        names::below(&class.display().to_string(), &[&format!("pod{uid}")]).into()
    }

    fn classes(&self) -> [PathBuf; 3] {
        [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort].map(|qos| self.class(qos))
    }

    fn mounts(&self) -> Vec<&Path> {
        self.layout.mounts()
    }

    fn set_up(&self, pod: &Pod, limits: &Limits) -> Result<String, String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let class = self.class(qos(pod));
        let path = self.pod(&class, &pod.uid);
        self.make(&path)?;
        self.write(&path, limits)?;
        self.hold_huge_pages(&path, pod)?;
        match qos(pod) {
            Qos::Guaranteed => {}
            Qos::Burstable => self.weigh_burstable()?,
            Qos::BestEffort => self.write(&class, &BEST_EFFORT)?,
        }
        self.write_all()?;
        Ok(format!("/{}", path.display()))
    }

    fn update(&self, pod: &Pod, limits: &Limits) -> Result<(), String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let class = qos(pod);
        self.write(&self.pod(&self.class(class), &pod.uid), limits)?;
        if class == Qos::Burstable { self.weigh_burstable() } else { Ok(()) }
    }

    fn memory_in_use(&self, pod: &Pod) -> Result<Option<u64>, String> {
        let Some(mount) = self.layout.mount_of("memory") else { return Ok(None) };
        let file = if self.is_unified() { "memory.current" } else { "memory.usage_in_bytes" };
        let path = mount.join(self.pod(&self.class(qos(pod)), &pod.uid)).join(file);
        let text = fs::read_to_string(&path).map_err(|error| failed("read", &path, &error))?;
        Ok(text.trim().parse().ok())
    }

    /// systemd knows no such limits. A kernel without the controller holds nobody to them.
    fn hold_huge_pages(&self, path: &Path, pod: &Pod) -> Result<(), String> {
        let Some(mount) = self.layout.mount_of("hugetlb") else { return Ok(()) };
        let all = limits::huge_pages(pod, &self.page_sizes, self.is_unified());
        let files = all.iter().map(|held| (mount.join(path).join(&held.file), &held.value));
        files.filter(|(file, _)| file.exists()).try_for_each(|(file, value)| set(&file, value))
    }

    /// Memory that is in use already may be more than the limit: the kernel says so then.
    fn hold(&self, all: &Together) -> Result<(), String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone_from(all);
        self.held.store(true, Ordering::Relaxed);
        self.make(&self.class(Qos::Guaranteed))?;
        self.write_all()
    }

    fn write_all(&self) -> Result<(), String> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let folder = self.class(Qos::Guaranteed);
        self.tell(&folder, || units::of_together(&all, self.is_unified()))?;
        let missing = |controller| format!("no cgroup file system has the controller {controller}: mount it");
        match &self.layout {
            Layout::Unified { mount } => all.v2().iter().try_for_each(|held| {
                let path = mount.join(&folder).join(&held.file);
                if held.is_optional() && !path.exists() { Ok(()) } else { set(&path, &held.value) }
            }),
            Layout::Legacy { .. } => {
                all.v1().iter().try_for_each(|held| match self.layout.mount_of(held.controller) {
                    Some(mount) => set(&mount.join(&folder).join(&held.file), &held.value),
                    None if held.is_optional() => Ok(()),
                    None => Err(missing(held.controller)),
                })
            }
        }
    }

    /// Of a cgroup that is there.
    fn enforce(&self, name: &str, to: Option<Reserved>) -> Result<(), String> {
        let driver = if self.units.is_some() { Driver::Systemd } else { Driver::Cgroupfs };
        let steps = names::steps_of(driver, name);
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        let to =
            to.ok_or_else(|| format!("{} cgroup is not configured properly", existing::in_go(&steps)))?;
        let path = names::path(driver, "", &steps);
        let path = Path::new(path.trim_start_matches('/'));
        existing::check(&self.layout, path, &steps)?;
        existing::warn_if_tight(&self.layout, path, to);
        if let (Some(units), Some(unit)) = (&self.units, unit_of(path)) {
            units.limit_foreign(&unit, &units::of_reserved(&to, self.is_unified()))?;
        }
        existing::hold(&self.layout, path, to)
    }

    fn is_unified(&self) -> bool {
        self.layout.is_unified()
    }

    /// systemd must know, or it writes its own again.
    fn tell(&self, path: &Path, limits: impl FnOnce() -> Vec<Property>) -> Result<(), String> {
        match (&self.units, unit_of(path)) {
            (Some(units), Some(unit)) => units.limit(&unit, limits()),
            _ => Ok(()),
        }
    }

    fn make(&self, path: &Path) -> Result<(), String> {
        if let Some(units) = &self.units {
            let mut parent = None;
            for part in path.components().map(|part| part.as_os_str().to_string_lossy()) {
                units.make(&part, parent.as_deref(), self.is_unified())?;
                parent = Some(part);
            }
        }
        match &self.layout {
            Layout::Unified { mount } => make_v2(mount, path),
            Layout::Legacy { hierarchies } => hierarchies.iter().try_for_each(|h| make_v1(h, path)),
        }
    }

    fn write(&self, path: &Path, limits: &Limits) -> Result<(), String> {
        let limits = if self.units.is_some() { limits.in_percents() } else { *limits };
        self.tell(path, || units::of_limits(&limits, self.is_unified()))?;
        match &self.layout {
            Layout::Unified { mount } => limits
                .v2()
                .into_iter()
                .try_for_each(|(_, file, value)| set(&mount.join(path).join(file), &value)),
            Layout::Legacy { .. } => limits.v1().into_iter().try_for_each(|(controller, file, value)| {
                let mount = self.layout.mount_of(controller).ok_or_else(|| {
                    format!("no cgroup file system with the controller {controller} is mounted: mount it")
                })?;
                set(&mount.join(path).join(file), &value)
            }),
        }
    }

    /// The class gets what its pods ask for together, read back from them: nothing is remembered
    /// that a restart could forget.
    fn weigh_burstable(&self) -> Result<(), String> {
        let class = self.class(Qos::Burstable);
        let Some(mount) = self.layout.mount_of("cpu") else { return Ok(()) };
        let file = if self.is_unified() { "cpu.weight" } else { "cpu.shares" };
        let mut sum = 0_i64;
        for name in pods_in(&mount.join(&class))? {
            let path = mount.join(&class).join(name).join(file);
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                // Removed meanwhile.
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(failed("read", &path, &error)),
            };
            let value: i64 = text.trim().parse().unwrap_or(0);
            let shares = if file == "cpu.weight" { limits::shares_of(value) } else { value };
            sum = sum.saturating_add(shares);
        }
        let limits = Limits { cpu_shares: sum.clamp(2, 262_144), ..Limits::default() };
        self.write(&class, &limits)
    }

    /// Only the classes are changed in turn: a pod whose processes do not end holds up no other.
    fn tear_down(&self, uid: &PodUid) -> Result<(), String> {
        let mut failures = Vec::new();
        let mut found = false;
        for class in self.classes() {
            let folders: Vec<PathBuf> = self
                .mounts()
                .iter()
                .map(|mount| mount.join(self.pod(&class, uid)))
                .filter(|p| p.is_dir())
                .collect();
            if !folders.is_empty() {
                found = true;
                failures.extend(self.end(&self.pod(&class, uid), &folders).err());
            } else if let (Some(units), Some(unit)) = (&self.units, unit_of(&self.pod(&class, uid))) {
                units.forget(&unit);
            }
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let burstable = self.class(Qos::Burstable);
        if found && failures.is_empty() && self.mounts().iter().all(|mount| mount.join(&burstable).is_dir()) {
            failures.extend(self.weigh_burstable().err());
        }
        if !self.root.is_empty() && !self.held.load(Ordering::Relaxed) {
            failures.extend(self.tidy().err());
        }
        if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
    }

    /// systemd would ask whoever is left politely, and wait: they are killed first. Its folders go with the unit.
    fn end(&self, path: &Path, folders: &[PathBuf]) -> Result<(), String> {
        if let (Some(units), Some(unit)) = (&self.units, unit_of(path)) {
            folders.iter().try_for_each(|folder| kill_all(folder))?;
            units.end(&unit)?;
        }
        remove(folders)
    }

    /// Removes what is empty, from the classes up to the root folder itself. Others may share them, and put somebody
    /// in at any time: no slice is ended but by itself.
    fn tidy(&self) -> Result<(), String> {
        let [kubepods, burstable, besteffort] = self.classes();
        let above = kubepods.ancestors().filter(|path| !path.as_os_str().is_empty());
        for path in [burstable.as_path(), besteffort.as_path()].into_iter().chain(above) {
            let folders = self.mounts().into_iter().map(|mount| mount.join(path));
            let folders: Vec<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
            if folders.is_empty() {
                continue;
            }
            if let (Some(units), Some(unit)) = (&self.units, unit_of(path))
                && !(folders.iter().all(|folder| is_vacant(folder)) && units.leave(&unit)?)
            {
                continue;
            }
            for folder in folders {
                match fs::remove_dir(&folder) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    // Somebody lives there, or below.
                    Err(error) if is_in_use(&error) => {}
                    Err(error) => return Err(failed("remove", &folder, &error)),
                }
            }
        }
        Ok(())
    }
}

/// The slice of a folder.
fn unit_of(path: &Path) -> Option<String> {
    names::unit(&path.to_string_lossy()).map(str::to_owned)
}

/// Whether nobody is in it, and nothing below it.
fn is_vacant(folder: &Path) -> bool {
    let members = fs::read_to_string(folder.join("cgroup.procs"));
    tree_of(folder).len() == 1 && members.is_ok_and(|pids| pids.trim().is_empty())
}

/// ENODEV is what reading a file says that was open when its cgroup went.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

fn is_in_use(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty)
}

/// Names of the pods' folders in a class; none when there is no such class.
fn pods_in(class: &Path) -> Result<Vec<String>, String> {
    let entries = match fs::read_dir(class) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", class, &error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| failed("list", class, &error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if names::is_pod(class, &name) && entry.path().is_dir() {
            names.push(name);
        }
    }
    Ok(names)
}

/// Each folder hands its controllers down before the next is made in it.
fn make_v2(mount: &Path, path: &Path) -> Result<(), String> {
    let mut folder = mount.to_owned();
    for part in path.components() {
        delegate(&folder)?;
        folder.push(part);
        make_folder(&folder)?;
    }
    // The containers' folders will be made in it.
    delegate(&folder)
}

fn delegate(folder: &Path) -> Result<(), String> {
    let read = |file: &str| {
        let path = folder.join(file);
        fs::read_to_string(&path).map_err(|error| failed("read", &path, &error))
    };
    let on = read("cgroup.subtree_control")?;
    let missing: Vec<String> = read("cgroup.controllers")?
        .split_whitespace()
        .filter(|controller| !on.split_whitespace().any(|other| other == *controller))
        .map(|controller| format!("+{controller}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let path = folder.join("cgroup.subtree_control");
    write_file(&path, &missing.join(" ")).map_err(|error| failed("enable controllers in", &path, &error))
}

/// A new cpuset holds no CPU: nothing could run in it.
fn make_v1(hierarchy: &Hierarchy, path: &Path) -> Result<(), String> {
    let mut folder = hierarchy.mount.clone();
    for part in path.components() {
        let above = folder.clone();
        folder.push(part);
        make_folder(&folder)?;
        if hierarchy.has("cpuset") {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                inherit(&above.join(file), &folder.join(file))?;
            }
        }
    }
    Ok(())
}

fn inherit(from: &Path, to: &Path) -> Result<(), String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| failed("read", path, &error));
    if read(to)?.trim().is_empty() {
        set(to, read(from)?.trim())?;
    }
    Ok(())
}

fn make_folder(folder: &Path) -> Result<(), String> {
    match fs::create_dir(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed("make the cgroup", folder, &error)),
    }
}

pub(super) fn set(path: &Path, value: &str) -> Result<(), String> {
    write_file(path, value).map_err(|error| failed(&format!("write {value:?} to"), path, &error))
}

/// Never makes a file: one that is missing is a controller that is missing.
pub(super) fn write_file(path: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// Kills what is left in the folders and removes them with all that is below.
fn remove(folders: &[PathBuf]) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut left = None;
        for folder in folders {
            kill_all(folder)?;
            left = remove_below(folder)?.or(left);
        }
        match left {
            None => return Ok(()),
            Some(folder) if Instant::now() >= deadline => {
                return Err(format!("cgroup {}: processes in it do not end", folder.display()));
            }
            Some(_) => std::thread::sleep(STEP),
        }
    }
}

/// On v2 the kernel kills the whole tree; on v1 each process is named once it cannot become another.
fn kill_all(folder: &Path) -> Result<(), String> {
    let kill = folder.join("cgroup.kill");
    if kill.exists() {
        return match write_file(&kill, "1") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("write to", &kill, &error)),
            _ => Ok(()),
        };
    }
    for folder in tree_of(folder) {
        let Ok(text) = fs::read_to_string(folder.join("cgroup.procs")) else { continue };
        for pid in text.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw) {
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            // Held by the descriptor now: still in the cgroup, it is the one that was listed.
            let still = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            if still.lines().any(|line| line.trim() == pid.as_raw_nonzero().to_string()) {
                // Gone already is as good as killed; the folder tells in the end.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
    }
    Ok(())
}

/// The folder and all below it, the deepest last.
fn tree_of(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(folder) = found.get(next).cloned() {
        next += 1;
        let Ok(entries) = fs::read_dir(folder) else { continue };
        found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    found
}

/// What is still in use, if anything.
fn remove_below(folder: &Path) -> Result<Option<PathBuf>, String> {
    let mut left = None;
    for folder in tree_of(folder).into_iter().rev() {
        match fs::remove_dir(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_in_use(&error) => left = Some(folder),
            Err(error) => return Err(failed("remove the cgroup", &folder, &error)),
        }
    }
    Ok(left)
}

/// Reclaiming memory can take its time; the workers' threads must not wait.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|message| Error { message }),
        Err(error) => Err(Error { message: format!("the work on a cgroup died: {error}") }),
    }
}

impl Cgroups for Tree {
    fn set_up<'a>(&'a self, pod: &'a Pod, limits: &'a Limits) -> BoxFuture<'a, Result<String, Error>> {
        let (inner, pod, limits) = (self.inner.clone(), pod.clone(), *limits);
        Box::pin(blocking(move || inner.set_up(&pod, &limits)))
    }

    fn rules(&self) -> Rules {
        self.rules
    }

    fn update<'a>(&'a self, pod: &'a Pod, limits: &'a Limits) -> BoxFuture<'a, Result<(), Error>> {
        let (inner, pod, limits) = (self.inner.clone(), pod.clone(), *limits);
        Box::pin(blocking(move || inner.update(&pod, &limits)))
    }

    fn memory_in_use<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<Option<u64>, Error>> {
        let (inner, pod) = (self.inner.clone(), pod.clone());
        Box::pin(blocking(move || inner.memory_in_use(&pod)))
    }

    fn hold<'a>(&'a self, all: &'a Together) -> BoxFuture<'a, Result<(), Error>> {
        let (inner, all) = (self.inner.clone(), all.clone());
        Box::pin(blocking(move || inner.hold(&all)))
    }

    fn enforce<'a>(&'a self, name: &'a str, to: Option<Reserved>) -> BoxFuture<'a, Result<(), Error>> {
        let (inner, name) = (self.inner.clone(), name.to_owned());
        Box::pin(blocking(move || inner.enforce(&name, to)))
    }

    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        let (inner, uid) = (self.inner.clone(), uid.clone());
        Box::pin(blocking(move || inner.tear_down(&uid)))
    }
}
