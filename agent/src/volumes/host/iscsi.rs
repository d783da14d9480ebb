//! Disks of iSCSI targets on this node: logged into, mounted once for all pods, bound for each, and given back when the last
//! pod has ended. Owns which there are, who has or wants each, and whose turn it is with it; how a target is logged into is
//! [`session`]'s. The mount table and `iscsi.json` say all of it again after a restart. Called by [`super`].
//!
//! ```text
//! set up ───▶ turn of the disk ──▶ attached? ──▶ note ──▶ log in ──▶ mount ──▶ bind ──▶ the pod has it
//! tear down ▶ unbind ──▶ (the last pod) ──▶ turn of the disk ──▶ unmount ──▶ log out ──▶ forget, beside everything else
//! ```

#![expect(clippy::disallowed_methods, reason = "a disk that nobody has is given back, whoever stops waiting")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gantry_failpoint::failpoint;
use gantry_model::pod::volume::Volume;
use gantry_model::pod::{Pod, PodUid};

use super::super::disk::DiskMount;
use super::super::iscsi::session::{Chap, IscsiHost};
use super::super::iscsi::{self, FOLDER, IscsiDisk, IscsiRecord, PLUGIN};
use super::super::ownership_progress::GroupChange;
use super::super::turns::Turns;
use super::super::{VolumeOrigin, removal};
use super::claims::{Failed, IN_USE};
use super::failures::MissingVolume;
use super::{HostVolumes, blocking, make_folder};
use crate::attachments::{Attachments, InUse};
use crate::block::{self, BlockMap};
use crate::csi::owner::{MountError, Retry, timed_out};

/// How long a pod's turn waits for the controller; then the pod asks again.
const ATTACH_LOOK: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5_000 });
/// `podAttachAndMountTimeout`: then waiting is told.
const LONG_WAIT: Duration = Duration::from_secs(123);
const ATTACHED: &str = "VerifyControllerAttachedVolume";

/// What upstream calls the steps of a volume.
struct StepNames {
    new: &'static str,
    attach: &'static str,
    device: &'static str,
    set_up: &'static str,
}

const OF_FOLDERS: StepNames = StepNames {
    new: "MountVolume.NewMounter initialization",
    attach: "MountVolume.WaitForAttach",
    device: "MountVolume.MountDevice",
    set_up: "MountVolume.SetUp",
};

const OF_DEVICES: StepNames = StepNames {
    new: "MapVolume.NewBlockVolumeMapper initialization",
    attach: "MapVolume.WaitForAttach",
    device: "MapVolume.SetUpDevice",
    set_up: "MapVolume.MapBlockVolume",
};

/// What disks of targets need.
#[derive(Debug, Clone, Default)]
pub(super) struct IscsiParts {
    pub(super) host: IscsiHost,
    /// None without a cluster, where nobody attaches.
    attachments: Option<Attachments>,
    /// Of disks, by their places.
    turns: Turns,
    /// Of targets, by their names.
    targets: Turns,
    /// By their places.
    disks: Arc<Mutex<BTreeMap<PathBuf, Disk>>>,
}

/// One on this node.
#[derive(Debug, Default)]
struct Disk {
    /// As the Node's status names it. None where an earlier kubelet has left it, and no pod has wanted it since.
    name: Option<String>,
    /// What that one may have called it.
    names: Vec<String>,
    /// Who has or wants it.
    pods: BTreeSet<PodUid>,
    /// It is being given back.
    leaving: bool,
}

/// Why a pod has not got its volume.
enum NotThere {
    Failed(Failed),
    /// A controller has not attached it yet.
    Unattached(String),
}

impl IscsiParts {
    /// The same, in a cluster whose controllers attach.
    pub(super) fn with_attachments(self, attachments: Attachments) -> Self {
        Self { attachments: Some(attachments), ..self }
    }

    fn disks(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Disk>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, place: &Path, uid: &PodUid, wanted: &IscsiDisk) {
        {
            let mut disks = self.disks();
            let disk = disks.entry(place.to_owned()).or_default();
            disk.name = Some(wanted.unique_name());
            disk.pods.insert(uid.clone());
        }
        self.tell();
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.disks().is_empty()
    }

    pub(super) fn has(&self, place: &Path, uid: &PodUid) -> bool {
        self.disks().get(place).is_some_and(|disk| disk.pods.contains(uid))
    }

    /// The pod has none any more; which nobody has or wants now.
    fn leave(&self, uid: &PodUid) -> BTreeSet<PathBuf> {
        let mut disks = self.disks();
        for disk in disks.values_mut() {
            disk.pods.remove(uid);
        }
        disks.iter().filter(|(_, disk)| disk.pods.is_empty()).map(|(place, _)| place.clone()).collect()
    }

    /// It was given back; a pod that came for it meanwhile waits for its turn.
    fn forget(&self, place: &Path) {
        {
            let mut disks = self.disks();
            if let Some(disk) = disks.get_mut(place) {
                disk.leaving = false;
            }
            disks.retain(|of, disk| of != place || !disk.pods.is_empty());
        }
        self.tell();
    }

    /// Tells which volumes are in use.
    fn tell(&self) {
        let Some(attachments) = &self.attachments else { return };
        let mut new = InUse::default();
        for disk in self.disks().values() {
            match &disk.name {
                Some(name) => drop(new.sure.insert(name.clone())),
                None => new.perhaps.extend(disk.names.iter().cloned()),
            }
        }
        attachments.tell(PLUGIN, new);
    }

    /// Marks it, unless a pod has or wants it, or it is being given back already.
    fn begin_to_leave(&self, place: &Path) -> bool {
        let mut disks = self.disks();
        let disk = disks.entry(place.to_owned()).or_default();
        let begins = disk.pods.is_empty() && !disk.leaving;
        disk.leaving |= begins;
        begins
    }

    /// A pod wants it.
    fn stays(&self, place: &Path) -> bool {
        let mut disks = self.disks();
        let Some(disk) = disks.get_mut(place) else { return true };
        disk.leaving = disk.pods.is_empty();
        !disk.leaving
    }
}

impl HostVolumes {
    pub(super) fn iscsi_target(&self, uid: &PodUid, name: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(FOLDER).join(name)
    }

    fn map_at(&self, place: PathBuf, uid: &PodUid, name: &str) -> BlockMap {
        let link = self.pod(uid).join(block::FOLDER).join(FOLDER).join(name);
        BlockMap { global: place, pod: uid.clone(), link }
    }

    pub(super) fn iscsi_map(&self, uid: &PodUid, disk: &IscsiDisk) -> BlockMap {
        self.map_at(disk.place(&self.plugins), uid, &disk.name)
    }

    pub(super) async fn mount_iscsi(
        &self,
        pod: &Pod,
        volume: &Volume,
        wanted: Box<IscsiDisk>,
        begun: Instant,
    ) -> Result<(), MissingVolume> {
        let uid = &pod.uid;
        let done = self.set_up_disk(pod, &wanted).await;
        self.tally.record_mount(pod, volume, begun, done.is_ok());
        let failed = match done {
            Ok(()) => {
                self.waits.end(uid, &wanted.name);
                return Ok(());
            }
            Err(NotThere::Failed(failed)) => failed,
            Err(NotThere::Unattached(why)) => return Err(self.unattached(uid, volume, &wanted, why)),
        };
        if let Failed::Of { why, .. } = &failed {
            self.waits.fail(uid, &wanted.name, why);
        }
        Err(MissingVolume::of(&volume.name, &failed))
    }

    /// Told when it takes long, as upstream.
    fn unattached(&self, uid: &PodUid, volume: &Volume, wanted: &IscsiDisk, why: String) -> MissingVolume {
        self.waits.fail(uid, &wanted.name, &why);
        let (name, quiet) = (&volume.name, !self.waits.is_long(uid, &wanted.name, LONG_WAIT));
        let message = if quiet { why } else { timed_out(name) };
        let reason = "FailedMount";
        MissingVolume::of_mount(name, MountError { message, reason, quiet, unattached: true, no_room: false })
    }

    async fn set_up_disk(&self, pod: &Pod, disk: &IscsiDisk) -> Result<(), NotThere> {
        let (uid, steps) = (&pod.uid, if disk.block { OF_DEVICES } else { OF_FOLDERS });
        let of = |step, why| NotThere::Failed(Failed::Of { step, volume: disk.name.clone(), why });
        let begin = |step| self.waits.begin(uid, &disk.name, VolumeOrigin::Target(disk.target()), step);
        disk.check_names().map_err(|why| of(steps.new, why))?;
        if self.has_disk(uid, disk).await.map_err(|why| of(steps.set_up, why))? {
            return Ok(());
        }
        let place = disk.place(&self.plugins);
        self.iscsi.enter(&place, uid, disk);
        begin(ATTACHED);
        if let Some(attachments) = &self.iscsi.attachments {
            let attached = attachments.attached(&disk.unique_name(), ATTACH_LOOK).await;
            let told = |why| NotThere::Unattached(format!("{why} for volume {:?}", disk.name));
            attached.map_err(told)?;
        }
        begin(steps.attach);
        let chap = self.chap(pod, disk).await.map_err(|why| of(steps.new, why))?;
        let turn = self.iscsi.turns.of(&place);
        let _turn = turn.lock().await;
        let mounted = match disk.block {
            true => self.map_disk(uid, disk, &chap).await,
            false => self.mount_disk(pod, disk, &chap, begin).await,
        };
        mounted.map_err(|(step, why)| of(step, why))
    }

    /// Whether the pod got it from this kubelet.
    async fn has_disk(&self, uid: &PodUid, disk: &IscsiDisk) -> Result<bool, String> {
        if !self.iscsi.has(&disk.place(&self.plugins), uid) {
            return Ok(false);
        }
        let (map, kernel) = (self.iscsi_map(uid, disk), self.blocks.clone());
        match disk.block {
            true => blocking(move || map.is_mapped(kernel.as_ref())).await,
            false => self.served.is_mounted(&self.iscsi_target(uid, &disk.name)).await,
        }
    }

    /// Within the disk's turn: whoever else wants it has it before or after.
    async fn refuse_second(&self, uid: &PodUid, disk: &IscsiDisk) -> Result<(), String> {
        if !disk.one_pod {
            return Ok(());
        }
        let holders = self.holders(&disk.place(&self.plugins)).await?;
        if holders.iter().any(|holder| holder != uid) { Err(IN_USE.to_owned()) } else { Ok(()) }
    }

    async fn mount_disk(
        &self,
        pod: &Pod,
        disk: &IscsiDisk,
        chap: &Chap,
        begin: impl Fn(&'static str),
    ) -> Result<(), (&'static str, String)> {
        let (place, steps) = (disk.place(&self.plugins), OF_FOLDERS);
        let set_up = |why| (steps.set_up, why);
        self.refuse_second(&pod.uid, disk).await.map_err(set_up)?;
        let failed = |why| (steps.device, why);
        if !self.served.is_mounted(&place).await.map_err(failed)? {
            let device = self.attach(disk, &place, chap).await.map_err(|why| (steps.attach, why))?;
            begin(steps.device);
            let (device, target, options) = (&*device, &*place, disk.mount_options(None));
            let mount = DiskMount { device, target, fs_type: &disk.of.fs_type, options };
            self.disk_programs.mount(&self.served.program, &mount).await.map_err(|failure| {
                if let Some(of) = &disk.uid {
                    self.tell_mismatch(&pod.uid, (&disk.name, of), &failure);
                }
                failed(failure.why)
            })?;
            failpoint!("iscsi.mounted");
        }
        begin(steps.set_up);
        self.bind_disk(pod, disk, &place).await.map_err(set_up)
    }

    /// Pods that have the disk, also from a kubelet before.
    pub(super) async fn holders(&self, place: &Path) -> Result<BTreeSet<PodUid>, String> {
        let (place, pods, plugins) = (place.to_owned(), self.pods.clone(), self.plugins.clone());
        let list = self.served.program.copies;
        let work = move || {
            if iscsi::is_block(&place, &plugins) {
                let found =
                    block::entries(&place).map_err(|error| format!("list {}: {error}", place.display()))?;
                return Ok(found
                    .iter()
                    .filter_map(|path| PodUid::parse(path.file_name()?.to_str()?))
                    .collect());
            }
            let points = list(&place).map_err(|error| format!("read the mount table: {error}"))?;
            let pod =
                |point: &PathBuf| PodUid::parse(point.strip_prefix(&pods).ok()?.iter().next()?.to_str()?);
            Ok(points.iter().filter_map(pod).collect())
        };
        blocking(work).await
    }

    /// The secret's keys are `iscsiadm`'s own.
    async fn chap(&self, pod: &Pod, disk: &IscsiDisk) -> Result<Chap, String> {
        let (discovery, session) = (disk.of.discovery_chap, disk.of.session_chap);
        let mut chap = Chap { discovery, session, ..Chap::default() };
        let Some((namespace, name)) = disk.of.secret.as_ref().filter(|_| discovery || session) else {
            return Ok(chap);
        };
        let namespace = if namespace.is_empty() { &pod.namespace } else { namespace };
        let failed = |why: String| format!("couldn't get secret {namespace}/{name} error: {why}");
        let secret = self.api.secret(namespace, name).await.map_err(|error| failed(error.message))?;
        let secret = secret.ok_or_else(|| failed(format!("secrets {name:?} not found")))?;
        // As Go makes a string of bytes.
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        chap.secret = secret.data.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        Ok(chap)
    }

    /// Logs in. What it takes to log out is written down before.
    async fn attach(&self, disk: &IscsiDisk, place: &Path, chap: &Chap) -> Result<PathBuf, String> {
        let record = disk.record();
        let (noted, folder) = (record.clone(), place.to_owned());
        let note = move || {
            make_folder(&folder).map_err(|error| format!("mkdir {}: {error}", folder.display()))?;
            noted.save(&folder)
        };
        blocking(note).await?;
        failpoint!("iscsi.noted"?);
        let target = self.iscsi.targets.of(Path::new(record.iqn()));
        let _target = target.lock().await;
        let device = self.iscsi.host.attach(&record, chap).await?;
        failpoint!("iscsi.attached"?);
        Ok(device)
    }

    async fn bind_disk(&self, pod: &Pod, disk: &IscsiDisk, place: &Path) -> Result<(), String> {
        let target = self.iscsi_target(&pod.uid, &disk.name);
        if self.served.is_mounted(&target).await? {
            return Ok(());
        }
        let options = disk.mount_options(Some("bind")).join(",");
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        let arguments = ["-o".to_owned(), options, shown(place), shown(&target)];
        self.served.mount(&arguments, &target).await?;
        failpoint!("iscsi.bound"?);
        if disk.of.read_only {
            return Ok(());
        }
        let changed = GroupChange::of(pod, self.notes.clone()).apply(target.clone()).await;
        if let Err(why) = changed {
            // What is mounted counts as whole.
            self.served.program.unmount(&target).await?;
            return Err(format!("applyFSGroup failed: {why}"));
        }
        Ok(())
    }

    async fn map_disk(
        &self,
        uid: &PodUid,
        disk: &IscsiDisk,
        chap: &Chap,
    ) -> Result<(), (&'static str, String)> {
        let (map, kernel) = (self.iscsi_map(uid, disk), self.blocks.clone());
        let of = map.clone();
        self.refuse_second(uid, disk).await.map_err(|why| (OF_DEVICES.device, why))?;
        let mapped = blocking(move || of.is_mapped(kernel.as_ref())).await;
        if mapped.map_err(|why| (OF_DEVICES.set_up, why))? {
            return Ok(());
        }
        let device = self.attach(disk, &map.global, chap).await.map_err(|why| (OF_DEVICES.attach, why))?;
        let (of, kernel) = (map.clone(), self.blocks.clone());
        let mapped = blocking(move || of.map(&device, kernel.as_ref())).await;
        mapped.map_err(|why| (OF_DEVICES.set_up, why))?;
        self.tell_map(uid, &disk.name, &map);
        Ok(())
    }

    /// Takes back the pod's maps of disks, also what an earlier kubelet has mapped. Blocks.
    pub(super) fn unmap_disks(&self, uid: &PodUid) -> Result<(), String> {
        for place in iscsi::list_disks(&self.plugins)? {
            if !iscsi::is_block(&place, &self.plugins) || !block::holds(&place, uid) {
                continue;
            }
            let name = IscsiRecord::load(&place)?.volume().to_owned();
            let map = self.map_at(place, uid, &name);
            map.unmap(self.blocks.as_ref())
                .and_then(|()| map.forget())
                .map_err(|why| format!("UnmapVolume.UnmapBlockVolume failed for volume {name:?} : {why}"))?;
        }
        Ok(())
    }

    /// Pods that have maps of disks. Blocks.
    pub(super) fn pods_with_disks(&self) -> Result<BTreeSet<PodUid>, String> {
        let mut found = BTreeSet::new();
        for place in iscsi::list_disks(&self.plugins)? {
            if iscsi::is_block(&place, &self.plugins) {
                let entries = block::entries(&place);
                let entries = entries.map_err(|error| format!("list {}: {error}", place.display()))?;
                found.extend(entries.iter().filter_map(|path| PodUid::parse(path.file_name()?.to_str()?)));
            }
        }
        Ok(found)
    }

    /// The pod has no disks any more: what nobody else has is given back.
    pub(super) async fn leave_disks(&self, uid: &PodUid) -> Result<(), String> {
        // One that was never attached has no folder yet.
        let mut places = self.iscsi.leave(uid);
        let plugins = self.plugins.clone();
        places.extend(blocking(move || iscsi::list_disks(&plugins)).await?);
        places.into_iter().for_each(|place| self.give_back_later(place));
        Ok(())
    }

    /// Gives back disks that an earlier kubelet has left and no pod has, and looks after the growth of local volumes. Within a
    /// runtime, beside everything else.
    ///
    /// # Errors
    /// The folders of disks cannot be listed.
    pub fn begin(&self) -> Result<(), String> {
        self.watch_local_growth();
        self.leave_local_disks(self.list_local_disks()?);
        for place in iscsi::list_disks(&self.plugins)? {
            // Never by a file: what is mounted there is the pods', and its target may be dead.
            let names = iscsi::unique_names(&place);
            self.iscsi.disks().entry(place.clone()).or_default().names = names;
            self.give_back_later(place);
        }
        self.iscsi.tell();
        Ok(())
    }

    /// Until that has worked or a pod wants the disk. Beside everything else: a pod's end does not wait for it, as upstream.
    fn give_back_later(&self, place: PathBuf) {
        if !self.iscsi.begin_to_leave(&place) {
            return;
        }
        let this = self.clone();
        tokio::spawn(async move {
            let mut retry = Retry::default();
            while let Err(why) = this.give_back(&place).await {
                tracing::warn!(disk = %place.display(), why, "UnmountDevice failed; it is tried again");
                tokio::time::sleep(retry.next()).await;
            }
        });
    }

    async fn give_back(&self, place: &Path) -> Result<(), String> {
        let turn = self.iscsi.turns.of(place);
        let _turn = turn.lock().await;
        if self.iscsi.stays(place) {
            return Ok(());
        }
        if !self.holders(place).await?.is_empty() {
            // A pod of an earlier kubelet: its end comes back here.
            self.iscsi.disks().entry(place.to_owned()).or_default().leaving = false;
            return Ok(());
        }
        let (of, plugins) = (place.to_owned(), self.plugins.clone());
        let has_folder = blocking(move || Ok(iscsi::list_disks(&plugins)?.contains(&of))).await?;
        // Without its folder the disk is not among those that keep its target's session.
        if !has_folder {
            self.iscsi.forget(place);
            return Ok(());
        }
        let failed = |why: String| format!("iscsi: failed to detach disk: {}\nError: {why}", place.display());
        if self.served.is_mounted(place).await.map_err(failed)? {
            self.served.program.unmount(place).await.map_err(failed)?;
            failpoint!("iscsi.unmounted"?);
        }
        self.detach(place).await.map_err(failed)?;
        self.iscsi.forget(place);
        Ok(())
    }

    /// The folder goes within the target's turn: by it others know that they are not the last.
    async fn detach(&self, place: &Path) -> Result<(), String> {
        let folder = place.to_owned();
        let record = blocking(move || IscsiRecord::load(&folder)).await?;
        let target = self.iscsi.targets.of(Path::new(record.iqn()));
        let _target = target.lock().await;
        if let Err(why) = self.iscsi.host.forget_devices(&record).await {
            tracing::warn!(disk = %place.display(), why, "its devices stay");
        }
        let (of, plugins) = (record.clone(), self.plugins.clone());
        if !blocking(move || of.is_shared(&plugins)).await? {
            self.iscsi.host.log_out(&record).await?;
            failpoint!("iscsi.logged-out"?);
        }
        let folder = place.to_owned();
        blocking(move || {
            removal::remove_folder(&folder).map_err(|error| format!("remove {}: {error}", folder.display()))
        })
        .await
    }
}
