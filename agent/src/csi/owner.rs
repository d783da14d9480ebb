//! Every volume of CSI that is on this node. Owns which there are, whose turn it is with each, and what is told of them;
//! what is next is [`super::volume`]'s to say, and to do [`super::steps`]'. Called by [`crate::volumes`] for pods, and by
//! the assembly, which connects it with the Node object.
//!
//! ```text
//! mount(pod) ──▶ turn of the volume ──▶ attached? ──▶ stage ──▶ publish ──▶ the pod has it
//! unmount(pod) ─▶ turn of the volume ──▶ unpublish ──▶ (the last pod) ──▶ unstage, beside everything else
//! ```

#![expect(
    clippy::disallowed_methods,
    reason = "what is left of a volume is taken back, whoever stops waiting"
)]

mod labels;
mod limit;
mod told;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use gantry_model::pod::{Pod, PodUid};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::allocatable::Allocatable;
use super::drivers::Drivers;
use super::files::{DevicePlace, Found, FoundDevice, FoundMount, Mounts, Places};
use super::steps::{self, Published, StepError, Steps, WantedVolume};
use super::volume::{Facts, Outcome, Step, Volume};
use crate::api::Api;
use crate::attachments::{Attachments, InUse};
use crate::block::BlockKernel;
use crate::events::VolumeNotes;
use crate::timeline::Span;
pub(crate) use told::{MountError, Retry, Wait, event_reason, timed_out};
use told::{Stages, Waits, refusal};

/// How long a pod's turn waits for the controller; then the pod asks again.
const ATTACH_LOOK: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5_000 });
/// `podAttachAndMountTimeout`: then waiting is told.
const LONG_WAIT: Duration = Duration::from_secs(123);
const IN_USE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

/// The files' group is being changed.
pub(crate) type Owned = BoxFuture<'static, Result<(), String>>;

/// Clones are the same owner.
#[derive(Debug, Clone)]
pub(crate) struct CsiVolumes {
    shared: Arc<OwnerParts>,
}

#[derive(Debug)]
struct OwnerParts {
    api: Arc<dyn Api>,
    drivers: Drivers,
    mounts: Arc<dyn Mounts>,
    places: Places,
    kernel: Arc<dyn BlockKernel>,
    node: String,
    slots: Mutex<BTreeMap<String, Slot>>,
    waits: Waits,
    stages: Stages,
    attachments: Attachments,
    notes: VolumeNotes,
    /// None without a cluster.
    allocatable: OnceLock<Allocatable>,
    /// What an earlier kubelet has left and nobody can read.
    unread: Mutex<Vec<String>>,
}

/// A volume by its unique name.
#[derive(Debug, Clone)]
struct Slot {
    driver: String,
    handle: String,
    /// Where the device is.
    place: DevicePlace,
    /// None when an earlier kubelet has left it, and nobody has looked since.
    attachable: Option<bool>,
    /// Namespace and name of the claim behind it, where it may grow.
    claim: Option<(String, String)>,
    /// Whoever has or wants it, by the name of the volume's folder.
    pods: BTreeMap<PodUid, String>,
    /// Those that have it mounted with an SELinux label.
    labelled: BTreeSet<PodUid>,
    turn: Arc<AsyncMutex<Volume>>,
    /// Its device is being taken back.
    leaving: bool,
}

/// `kubernetes.io/csi/DRIVER^HANDLE`, as the Node's status names it.
fn unique_name(driver: &str, handle: &str) -> String {
    format!("{}/{driver}^{handle}", super::PLUGIN)
}

impl CsiVolumes {
    /// With what an earlier kubelet has left; folders of which nothing is known go. Blocks, for as long as it reads that.
    pub(crate) fn open(
        api: Arc<dyn Api>,
        drivers: Drivers,
        mounts: Arc<dyn Mounts>,
        kernel: Arc<dyn BlockKernel>,
        places: Places,
        node: &str,
    ) -> Self {
        let mut found = places.find();
        found.remove_leftovers(mounts.as_ref());
        let slots = Slot::all(&mut found);
        for why in &found.unread {
            tracing::error!(why, "what an earlier kubelet left of a volume cannot be read: it stays");
        }
        let shared = OwnerParts {
            api,
            drivers,
            mounts,
            places,
            kernel,
            node: node.to_owned(),
            slots: Mutex::new(slots),
            waits: Waits::default(),
            stages: Stages::default(),
            attachments: Attachments::default(),
            notes: VolumeNotes::default(),
            allocatable: OnceLock::new(),
            unread: Mutex::new(found.unread),
        };
        let this = Self { shared: Arc::new(shared) };
        this.tell();
        this
    }

    /// Drivers that may be called.
    pub(crate) fn drivers(&self) -> Drivers {
        self.shared.drivers.clone()
    }

    /// What the Node's status says of volumes, and is to say.
    pub(crate) fn attachments(&self) -> &Attachments {
        &self.shared.attachments
    }

    /// What happens to volumes of pods.
    pub(crate) fn notes(&self) -> VolumeNotes {
        self.shared.notes.clone()
    }

    /// What pods wait for, by volume.
    pub(crate) fn waits(&self, pod: &PodUid) -> Vec<Wait> {
        self.shared.waits.of(pod)
    }

    /// How long steps of the pod's volumes took.
    pub(crate) fn stages(&self, pod: &PodUid) -> Vec<Span> {
        self.shared.stages.of(pod)
    }

    /// Pods that have or want a volume, also those that an earlier kubelet has left.
    pub(crate) fn pods(&self) -> BTreeSet<PodUid> {
        self.slots().values().flat_map(|slot| slot.pods.keys().cloned()).collect()
    }

    /// Takes back devices that an earlier kubelet has left and no pod has, and has others kept up.
    pub(crate) fn begin(&self) {
        // Ends with the process.
        tokio::spawn(upkeep::run(self.clone()));
        let keys: Vec<String> = self.slots().keys().cloned().collect();
        for key in keys {
            self.leave(&key);
        }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steps(&self) -> Steps<'_> {
        let OwnerParts { api, drivers, mounts, places, kernel, node, .. } = &*self.shared;
        Steps { api: api.as_ref(), drivers, mounts: mounts.as_ref(), places, kernel, node }
    }

    /// Tells which volumes are in use.
    fn tell(&self) {
        let in_doubt = !self.shared.unread.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        let mut new = InUse { in_doubt, ..InUse::default() };
        for (key, slot) in &*self.slots() {
            match slot.attachable {
                Some(true) => drop(new.sure.insert(key.clone())),
                Some(false) => {}
                None => drop(new.perhaps.insert(key.clone())),
            }
        }
        self.shared.attachments.tell(super::PLUGIN, new);
    }

    /// The volume's slot, made when there is none, with the pod in it.
    fn enter(
        &self,
        wanted: &WantedVolume,
        pod: &PodUid,
        attachable: bool,
    ) -> Result<(String, Arc<AsyncMutex<Volume>>), StepError> {
        let (driver, handle) = (&wanted.source.driver, &wanted.source.handle);
        let (key, place) = (unique_name(driver, handle), wanted.place(&self.shared.places));
        let turn = {
            let mut slots = self.slots();
            let slot =
                slots.entry(key.clone()).or_insert_with(|| Slot::new((driver, handle), place.clone(), None));
            if !slot.place.is_like(&place) {
                let why = format!(
                    "volume {handle:?} of {driver} is here by another PersistentVolume, whose volumeMode or name is another: one alone may name it"
                );
                return Err(StepError::before(wanted.publish_step(), why));
            }
            slot.attachable = Some(attachable);
            // As upstream, which makes nothing larger that is not written to.
            let claim = wanted.claim.as_ref().filter(|_| !wanted.read_only);
            slot.claim = claim.map(|claim| (claim.namespace.clone(), claim.name.clone()));
            slot.pods.insert(pod.clone(), wanted.name.clone());
            slot.turn.clone()
        };
        self.tell();
        Ok((key, turn))
    }

    /// Has the volume mounted for the pod; whether that was anything new. `own` gives the files to the pod's group where the driver does not.
    ///
    /// # Errors
    /// Which step failed or is waited for, in upstream's words.
    pub(crate) async fn mount(
        &self,
        pod: &Pod,
        wanted: &WantedVolume,
        own: impl FnOnce(PathBuf) -> Owned + Send + 'static,
    ) -> Result<bool, MountError> {
        let key = (pod.uid.clone(), wanted.name.clone());
        if let Some(error) = self.shared.waits.too_early(&key) {
            return Err(error);
        }
        match self.attempt(pod, wanted, own).await {
            Ok(is_new) => {
                self.shared.waits.over(&key);
                Ok(is_new)
            }
            Err(error) => Err(self.failed(&key, pod, wanted, error).await),
        }
    }

    async fn attempt(
        &self,
        pod: &Pod,
        wanted: &WantedVolume,
        own: impl FnOnce(PathBuf) -> Owned + Send + 'static,
    ) -> Result<bool, StepError> {
        wanted.check_names()?;
        let object = self.steps().driver_object(&wanted.source.driver, wanted.publish_step()).await?;
        // As upstream, where the driver has no object.
        let attachable = !wanted.ephemeral && object.as_ref().is_none_or(|object| object.attach_required);
        let republish = object.as_ref().is_some_and(|object| object.republish);
        let takes_label = object.is_some_and(|object| object.se_linux_mount);
        let (key, mut volume) = self.turn(wanted, &pod.uid, attachable).await?;
        let label = self.want(&mut volume, wanted, &pod.uid, takes_label)?;
        let mut is_new = false;
        let WantedVolume { ephemeral, one_pod, .. } = *wanted;
        let mut facts =
            Facts { attached: !attachable, ephemeral, one_pod, republish, label: label.as_deref() };
        let (mut context, mut own) = (BTreeMap::new(), Some(own));
        let detail = format!("{} {}", wanted.name, wanted.source.driver);
        loop {
            let step = volume.next(&pod.uid, facts);
            let Some(stage) = step.stage() else {
                refusal(step, wanted, &key)?;
                self.note_label(&key, &pod.uid, volume.label().mounted());
                return self.grow(&mut volume, wanted, pod, is_new).await.map(|()| is_new);
            };
            let with = volume.label_for(&pod.uid, label.as_deref().unwrap_or_default()).to_owned();
            self.shared.stages.begin(&pod.uid, stage, &detail);
            match step {
                Step::Attach => {
                    self.attached(&key, wanted).await?;
                    context = self.steps().attachment(wanted).await?;
                    facts.attached = true;
                }
                Step::Restage => self.restage(&mut volume, &key).await?,
                Step::Stage => self.stage(&mut volume, wanted, pod, (&context, &with)).await?,
                Step::Publish => {
                    self.publish(&mut volume, wanted, pod, (&context, &with), own.take()).await?;
                    facts.republish = false;
                    is_new = true;
                }
                Step::Refuse | Step::Wait | Step::Done => {}
            }
            self.shared.stages.end(&pod.uid, stage, &detail);
        }
    }

    /// The volume, and nobody else is at work with it.
    async fn turn(
        &self,
        wanted: &WantedVolume,
        pod: &PodUid,
        attachable: bool,
    ) -> Result<(String, OwnedMutexGuard<Volume>), StepError> {
        loop {
            let (key, turn) = self.enter(wanted, pod, attachable)?;
            let volume = turn.lock_owned().await;
            if !volume.gone {
                return Ok((key, volume));
            }
        }
    }

    /// Until the node's status says that the volume is in use and attached.
    async fn attached(&self, key: &str, wanted: &WantedVolume) -> Result<(), StepError> {
        let Err(why) = self.shared.attachments.attached(key, ATTACH_LOOK).await else { return Ok(()) };
        Err(StepError::before(told::WAITS, format!("{why} for volume {:?}", wanted.name)))
    }

    async fn stage(
        &self,
        volume: &mut Volume,
        wanted: &WantedVolume,
        pod: &Pod,
        with: (&BTreeMap<String, String>, &str),
    ) -> Result<(), StepError> {
        let ready = self.steps().prepare_stage(wanted, pod, with).await?;
        // Before the call: what is cut off in it is to be taken back.
        volume.begin_stage(with.1);
        let staged = match ready {
            Some(ready) => self.steps().stage(ready).await,
            None => Ok(()),
        };
        volume.end_stage(outcome(&staged));
        staged
    }

    async fn publish(
        &self,
        volume: &mut Volume,
        wanted: &WantedVolume,
        pod: &Pod,
        with: (&BTreeMap<String, String>, &str),
        own: Option<impl FnOnce(PathBuf) -> Owned + Send + 'static>,
    ) -> Result<(), StepError> {
        let found = volume.may_have(&pod.uid);
        let (ready, Published { set_group }) = self.steps().prepare_publish(wanted, pod, with).await?;
        volume.begin_publish(&pod.uid, with.1);
        let published = self.steps().publish(ready, &pod.uid, found).await;
        if published.is_err() {
            volume.end_publish(&pod.uid, outcome(&published));
            return published;
        }
        // Mounted, and no pod's before its group has it.
        if let Some(own) = own.filter(|_| set_group && pod.security.fs_group.is_some()) {
            let path = self.shared.places.target(&pod.uid, &wanted.name);
            own(path).await.map_err(|why| {
                let why = format!("applyFSGroup failed for vol {}: {why}", wanted.source.handle);
                StepError::before(steps::PUBLISH, why)
            })?;
        }
        volume.end_publish(&pod.uid, Outcome::Done);
        Ok(())
    }

    /// Takes back every volume that the pod has here, each in its own turn.
    ///
    /// # Errors
    /// What stays, and why.
    pub(crate) async fn unmount_all(&self, pod: &PodUid) -> Result<(), String> {
        let of_pod: Vec<(String, String)> = {
            let slots = self.slots();
            let of =
                |(key, slot): (&String, &Slot)| slot.pods.get(pod).map(|name| (key.clone(), name.clone()));
            slots.iter().filter_map(of).collect()
        };
        let all = of_pod.iter().map(|(key, name)| self.unmount(key, name, pod));
        let failures: Vec<String> = join_all(all).await.into_iter().filter_map(Result::err).collect();
        if !failures.is_empty() {
            return Err(failures.join("; "));
        }
        self.shared.waits.forget(pod);
        self.shared.stages.forget(pod);
        Ok(())
    }

    async fn unmount(&self, key: &str, name: &str, pod: &PodUid) -> Result<(), String> {
        let Some(Slot { driver, handle, place, turn, .. }) = self.slots().get(key).cloned() else {
            return Ok(());
        };
        let mut volume = turn.lock_owned().await;
        volume.forget(pod);
        if volume.begin_unpublish(pod) {
            self.unpublish((&driver, &handle), (name, pod), &place).await?;
            volume.unpublished(pod);
        }
        if let Some(slot) = self.slots().get_mut(key) {
            slot.pods.remove(pod);
            slot.labelled.remove(pod);
        }
        self.remove_if_over(key, &mut volume);
        drop(volume);
        self.leave(key);
        Ok(())
    }

    async fn unpublish(
        &self,
        (driver, handle): (&str, &str),
        (name, pod): (&str, &PodUid),
        place: &DevicePlace,
    ) -> Result<(), String> {
        let (steps, target) = (self.steps(), self.shared.places.target(pod, name));
        let (step, done) = match place {
            DevicePlace::Folder(_) => {
                ("UnmountVolume.TearDown", steps.unpublish(driver, handle, &target).await)
            }
            DevicePlace::Block(block) => {
                ("UnmapVolume.UnmapPodDevice", steps.unpublish_block((driver, handle), block, pod).await)
            }
        };
        done.map_err(|why| format!("{step} failed for volume {name:?} : {why}"))
    }

    /// Nothing of it is here any more.
    fn remove_if_over(&self, key: &str, volume: &mut Volume) {
        {
            let mut slots = self.slots();
            // Somebody may wait for a turn to have it.
            let is_wanted = slots.get(key).is_some_and(|slot| !slot.pods.is_empty());
            if !volume.is_over() || is_wanted {
                return;
            }
            volume.gone = true;
            slots.remove(key);
        }
        self.tell();
    }

    /// Has the device taken back when no pod has it, until that has worked or a pod wants it. Beside everything else: a
    /// pod's end does not wait for it, as upstream.
    fn leave(&self, key: &str) {
        let turn = {
            let mut slots = self.slots();
            let Some(slot) = slots.get_mut(key).filter(|slot| slot.pods.is_empty() && !slot.leaving) else {
                return;
            };
            slot.leaving = true;
            slot.turn.clone()
        };
        let (this, key) = (self.clone(), key.to_owned());
        tokio::spawn(async move {
            let mut retry = Retry::default();
            while let Err(why) = this.unstage(&key, &turn).await {
                tracing::warn!(volume = key, why, "UnmountDevice failed; it is tried again");
                tokio::time::sleep(retry.next()).await;
            }
        });
    }

    async fn unstage(&self, key: &str, turn: &Arc<AsyncMutex<Volume>>) -> Result<(), String> {
        let mut volume = turn.clone().lock_owned().await;
        let slot = {
            let mut slots = self.slots();
            let Some(slot) = slots.get_mut(key) else { return Ok(()) };
            if !slot.pods.is_empty() || !volume.begin_unstage() {
                slot.leaving = false;
                return Ok(());
            }
            slot.clone()
        };
        match &slot.place {
            DevicePlace::Folder(staging) => self.steps().unstage(&slot.driver, &slot.handle, staging).await?,
            DevicePlace::Block(block) => {
                self.steps().unstage_block((&slot.driver, &slot.handle), block).await?;
            }
        }
        volume.unstaged();
        if let Some(slot) = self.slots().get_mut(key) {
            slot.leaving = false;
        }
        self.remove_if_over(key, &mut volume);
        Ok(())
    }
}

impl Slot {
    fn new((driver, handle): (&str, &str), place: DevicePlace, attachable: Option<bool>) -> Self {
        Self {
            driver: driver.to_owned(),
            handle: handle.to_owned(),
            place,
            attachable,
            claim: None,
            pods: BTreeMap::new(),
            labelled: BTreeSet::new(),
            turn: Arc::default(),
            leaving: false,
        }
    }
}

impl Slot {
    /// Of what an earlier kubelet has left. Of two that share a handle and not their place the second cannot be told apart:
    /// it stays.
    fn all(found: &mut Found) -> BTreeMap<String, Self> {
        let (mut slots, mut devices): (BTreeMap<String, Self>, _) = (BTreeMap::new(), BTreeSet::new());
        let mut labels: BTreeMap<String, String> = BTreeMap::new();
        let mut unread = Vec::new();
        for FoundDevice { place, driver, handle, label } in std::mem::take(&mut found.devices) {
            let key = unique_name(&driver, &handle);
            if slots.contains_key(&key) {
                unread.push(format!("{key} is here twice: {place:?}"));
                continue;
            }
            devices.insert(key.clone());
            labels.insert(key.clone(), label);
            slots.insert(key, Self::new((&driver, &handle), place, None));
        }
        for FoundMount { pod, name, driver, handle, ephemeral, label, place } in
            std::mem::take(&mut found.mounts)
        {
            let (key, attachable) = (unique_name(&driver, &handle), ephemeral.then_some(false));
            labels.entry(key.clone()).or_insert(label);
            let slot =
                slots.entry(key).or_insert_with(|| Self::new((&driver, &handle), place.clone(), attachable));
            match slot.place.is_like(&place) {
                true => drop(slot.pods.insert(pod, name)),
                false => unread.push(format!("pod {pod} has volume {name} in a place of its own: {place:?}")),
            }
        }
        for (key, slot) in &mut slots {
            let pods = slot.pods.keys().cloned();
            slot.turn =
                Arc::new(AsyncMutex::new(Volume::found(devices.contains(key), pods, labels.remove(key))));
        }
        found.unread.extend(unread);
        slots
    }
}

/// What a step came to, for the state machine.
fn outcome(result: &Result<(), StepError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(error) => error.outcome.unwrap_or(Outcome::Unknown),
    }
}

#[cfg(test)]
mod tests;
