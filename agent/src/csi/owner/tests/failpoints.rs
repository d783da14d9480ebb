//! At every durable step of a volume the kubelet ends, or the step fails; then a next one, or the same, goes on. What the
//! driver has is known throughout, and in the end the volume is mounted once, or gone (docs/adr/0024-failpoints.md).
//! Here kubelets are owners of volumes with a runtime each, and a kubelet that ends is a panic at the place and the loss of
//! its runtime. The tier `disruption` has one that is killed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Runtime};

use super::upkeep::growing;
use super::*;

/// What is under way when the place is come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Mount,
    Grow,
    Unmount,
    /// Beside everything else, once the pod has nothing any more.
    Unstage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VolumeMode {
    Filesystem,
    Block,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The kubelet ends there, and the pod is to have its volume.
    KilledAndWanted,
    /// The kubelet ends there, and the pod goes meanwhile.
    KilledAndGone,
    StepFails,
}

struct CsiRow {
    site: &'static str,
    phase: Phase,
    mode: VolumeMode,
}

const fn folder(site: &'static str, phase: Phase) -> CsiRow {
    CsiRow { site, phase, mode: VolumeMode::Filesystem }
}

const fn block(site: &'static str, phase: Phase) -> CsiRow {
    CsiRow { site, phase, mode: VolumeMode::Block }
}

const ROWS: &[CsiRow] = &[
    folder("csi.stage-folder", Phase::Mount),
    folder("csi.stage-noted", Phase::Mount),
    folder("csi.staged", Phase::Mount),
    folder("csi.publish-noted", Phase::Mount),
    folder("csi.published", Phase::Mount),
    folder("csi.growth-begun", Phase::Grow),
    folder("csi.grown", Phase::Grow),
    folder("csi.growth-told", Phase::Grow),
    folder("csi.unpublished", Phase::Unmount),
    folder("csi.mount-gone", Phase::Unmount),
    folder("csi.note-gone", Phase::Unmount),
    folder("csi.unstaged", Phase::Unstage),
    folder("csi.mount-gone", Phase::Unstage),
    folder("csi.note-gone", Phase::Unstage),
    block("csi.block-noted", Phase::Mount),
    block("csi.block-folder", Phase::Mount),
    block("csi.staged", Phase::Mount),
    block("block.noted", Phase::Mount),
    block("csi.published", Phase::Mount),
    block("block.bound", Phase::Mount),
    block("block.linked", Phase::Mount),
    block("block.locked", Phase::Mount),
    block("csi.growth-begun", Phase::Grow),
    block("csi.grown", Phase::Grow),
    block("csi.growth-told", Phase::Grow),
    block("block.unlocked", Phase::Unmount),
    block("block.unlinked", Phase::Unmount),
    block("block.unbound", Phase::Unmount),
    block("csi.block-unpublished", Phase::Unmount),
    block("csi.block-target-gone", Phase::Unmount),
    block("csi.block-unstaged", Phase::Unstage),
    block("csi.block-staging-gone", Phase::Unstage),
    block("csi.block-folders-gone", Phase::Unstage),
    block("csi.block-note-gone", Phase::Unstage),
];

/// Every place in this crate's source, and whether it can have its step fail. Those of iSCSI have a matrix of their own.
fn sites() -> BTreeMap<String, bool> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).unwrap();
                // In two words, or this line is a place.
                for place in text.split(concat!("failpoint", "!(\"")).skip(1) {
                    let (name, rest) = place.split_once('"').unwrap();
                    if name.starts_with("iscsi.") {
                        continue;
                    }
                    assert!(
                        found.insert(name.to_owned(), rest.starts_with('?')).is_none(),
                        "{name} is twice"
                    );
                }
            }
        }
    }
    found
}

/// One machine: a driver that outlives kubelets, and a disk.
struct Machine {
    root: TempDir,
    places: TempDir,
    api: Arc<FakeApi>,
    drivers: Drivers,
    driver: FakeDriver,
    _driver_runtime: Runtime,
    mode: VolumeMode,
}

/// A kubelet, which ends when it is dropped: nothing that it has under way goes on.
struct KubeletLife {
    volumes: CsiVolumes,
    runtime: Runtime,
}

impl Machine {
    fn new(mode: VolumeMode) -> Self {
        let (root, places) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let api = Arc::new(FakeApi::default());
        api.put_csi_driver(DRIVER, object());
        let driver = FakeDriver::new(DRIVER);
        driver.can_expand();
        let drivers = Drivers::with_patience(Duration::from_secs(60), Arc::new(Metrics::default()));
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = root.path().join("driver.sock");
        {
            let _inside = runtime.enter();
            drop(driver.serve(&socket));
        }
        drivers.put(DRIVER, &socket);
        Self { root, places, api, drivers, driver, _driver_runtime: runtime, mode }
    }

    /// A kubelet begins on what is there.
    fn kubelet(&self) -> KubeletLife {
        let folder = self.places.path().to_owned();
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(move || gantry_failpoint::look_in(folder.clone()))
            .enable_all()
            .build()
            .unwrap();
        let volumes = open(&self.root, &self.api, &self.drivers, &self.driver);
        let has = !self.driver.mounted().is_empty();
        let told = volumes.attachments().in_use().borrow().clone();
        assert!(!has || told.perhaps.contains(KEY), "#121937: what is mounted is in use: {told:?}");
        assert!(!told.in_doubt, "all that was left can be read");
        let kubelet = KubeletLife { volumes, runtime };
        let begun = kubelet.volumes.clone();
        kubelet.run(async move { begun.begin() });
        kubelet
    }

    fn wanted(&self, of: WantedVolume) -> WantedVolume {
        WantedVolume { block: self.mode == VolumeMode::Block, ..of }
    }

    /// The next to come to that place does so.
    fn arm(&self, site: &str, action: &str) {
        std::fs::write(self.places.path().join(site), action).unwrap();
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        for _ in 0..4000 {
            if holds() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("{what} does not come: {:?}", self.driver.calls());
    }

    fn await_site(&self, site: &str) {
        let reached = self.places.path().join(format!("{site}.reached"));
        self.until(site, || reached.exists());
        std::fs::remove_file(reached).unwrap();
    }

    /// Mounted once for all pods and once for this one.
    fn assert_mounted_once(&self, kubelet: &KubeletLife, uid: &str) {
        let (places, uid) = (&kubelet.volumes.shared.places, PodUid::parse(uid).unwrap());
        let mut want = match self.mode {
            VolumeMode::Filesystem => vec![places.device(DRIVER, "h1"), places.target(&uid, "pv")],
            VolumeMode::Block => vec![places.block("pv").staging(), places.block("pv").target(&uid)],
        };
        want.sort();
        assert_eq!(self.driver.mounted(), want);
        let (blocks, map) = (self.driver.blocks(), places.map(&uid, "pv"));
        let locked = if self.mode == VolumeMode::Block { vec![map.point()] } else { Vec::new() };
        assert_eq!(blocks.locked(), locked);
        assert!(self.mode == VolumeMode::Filesystem || map.is_mapped(&blocks).unwrap());
    }

    /// Nothing of it anywhere, on the disk neither.
    fn assert_gone(&self, kubelet: &KubeletLife) {
        // It is told a moment after it has gone.
        let is_told = || *kubelet.volumes.attachments().in_use().borrow() == InUse::default();
        self.until("the end of the volume", || kubelet.volumes.slots().is_empty() && is_told());
        assert_eq!((self.driver.mounted(), self.driver.blocks().locked()), (Vec::new(), Vec::new()));
        // Folders of pods are their pods' to remove, and of all volumes and drivers nobody's.
        let mut left = files_below(self.root.path());
        left.retain(|path| !path.ends_with("driver.sock"));
        assert_eq!(left, Vec::<PathBuf>::new());
        let plugin = self.root.path().join("plugins/kubernetes.io/csi");
        for folder in [plugin.join(DRIVER), plugin.join("volumeDevices")] {
            let mut own = crate::block::entries(&folder).unwrap();
            own.retain(|path| !["staging", "publish"].iter().any(|all| path.ends_with(all)));
            assert_eq!(own, Vec::<PathBuf>::new(), "folders of a volume that is gone");
        }
        assert!(!self.driver.overlapped(), "two calls of one volume at once");
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in crate::block::entries(folder).unwrap() {
        match path.is_dir() && !path.is_symlink() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

impl KubeletLife {
    /// What comes of it; none when it died at a place.
    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (send, receive) = std::sync::mpsc::channel();
        // No answer comes from a task that has panicked.
        self.runtime.spawn(async move { send.send(work.await) });
        receive.recv_timeout(Duration::from_secs(60)).ok()
    }

    fn mount(&self, uid: &str, wanted: &WantedVolume) -> Option<Result<bool, MountError>> {
        let (volumes, pod, wanted) = (self.volumes.clone(), pod(uid), wanted.clone());
        self.run(async move { volumes.mount(&pod, &wanted, nothing_owned).await })
    }

    /// Until it is mounted, however often it is to be asked for.
    fn have(&self, uid: &str, wanted: &WantedVolume) {
        for _ in 0..1000 {
            match self.mount(uid, wanted) {
                Some(Ok(_)) => return,
                Some(Err(_)) => thread::sleep(Duration::from_millis(20)),
                None => panic!("it has died"),
            }
        }
        panic!("it is not mounted: {:?}", self.volumes.waits(&PodUid::parse(uid).unwrap()));
    }

    fn unmount(&self, uid: &str) -> Option<Result<(), String>> {
        let (volumes, uid) = (self.volumes.clone(), PodUid::parse(uid).unwrap());
        self.run(async move { volumes.unmount_all(&uid).await })
    }
}

/// One fault at one place, what comes next, and the end of the volume.
fn case(row: &CsiRow, fault: Fault, fails: bool) {
    let machine = Machine::new(row.mode);
    let plain = machine.wanted(wanted());
    let grown = |status| machine.wanted(growing(status));
    let kubelet = machine.kubelet();
    if row.phase != Phase::Mount {
        kubelet.have("a", &plain);
    }
    if row.phase == Phase::Unstage {
        // The same places are come to by the pod's own end.
        machine.driver.fails("unstage", Trouble::Refused(Code::Internal));
        kubelet.unmount("a").unwrap().unwrap();
        machine
            .until("unstage", || machine.driver.calls().last().is_some_and(|call| call.ends_with("refused")));
    }
    machine.arm(row.site, if fault == Fault::StepFails || fails { "fail" } else { "panic" });
    let came = match row.phase {
        Phase::Mount => kubelet.mount("a", &plain).is_none_or(|done| done.is_err()),
        Phase::Grow => kubelet.mount("a", &grown("NodeResizePending")).is_none_or(|done| done.is_err()),
        Phase::Unmount => kubelet.unmount("a").is_none_or(|done| done.is_err()),
        Phase::Unstage => true,
    };
    assert!(came, "it has come to its end");
    machine.await_site(row.site);
    let kubelet = if fault == Fault::StepFails {
        kubelet
    } else {
        // Its runtime waits for what cannot be ended.
        drop(kubelet);
        machine.kubelet()
    };
    match (row.phase, fault) {
        (Phase::Mount, Fault::KilledAndWanted | Fault::StepFails) => {
            kubelet.have("a", &plain);
            machine.assert_mounted_once(&kubelet, "a");
        }
        (Phase::Grow, Fault::KilledAndWanted) => {
            kubelet.have("a", &grown("NodeResizeInProgress"));
            machine.assert_mounted_once(&kubelet, "a");
            let (_, last) = machine.api.claim_patches().pop().unwrap();
            assert_eq!(last["status"]["capacity"]["storage"], "2Ki");
        }
        (Phase::Unmount | Phase::Unstage, Fault::KilledAndWanted) => {
            // Another pod comes for it while the first one goes.
            kubelet.have("b", &plain);
            kubelet.unmount("a").unwrap().unwrap();
            machine.assert_mounted_once(&kubelet, "b");
            kubelet.unmount("b").unwrap().unwrap();
        }
        _ => {}
    }
    kubelet.unmount("a").unwrap().unwrap();
    machine.assert_gone(&kubelet);
}

#[test]
fn every_place_has_a_row() {
    let (mut known, sites) = (BTreeSet::new(), sites());
    known.extend(ROWS.iter().map(|row| row.site.to_owned()));
    assert_eq!(known, sites.keys().cloned().collect());
}

#[test]
fn a_volume_is_mounted_once_or_gone_whatever_step_of_it_a_kubelet_did_last() {
    let sites = sites();
    let mut cases = Vec::new();
    for row in ROWS {
        let can_fail = sites[row.site];
        cases.push((row, Fault::KilledAndWanted, can_fail));
        cases.push((row, Fault::KilledAndGone, can_fail));
        if can_fail {
            cases.push((row, Fault::StepFails, true));
        }
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((row, fault, fails)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = std::panic::catch_unwind(|| case(row, *fault, *fails));
            if outcome.is_err() {
                failed.lock().unwrap().push(format!("{} {:?} {:?} {fault:?}", row.site, row.phase, row.mode));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
}
