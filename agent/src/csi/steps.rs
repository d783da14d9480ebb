//! What the steps of a volume do: they look up what a driver wants to know, write down what will have to be taken back,
//! and call it. Owns the requests and upstream's words for what fails; never decides which step is next. Called by
//! [`super::owner`].

mod block;
mod growth;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use gantry_failpoint::failpoint;
use gantry_model::go_json;
use gantry_model::pod::volume::TokenFile;
use gantry_model::pod::{Pod, PodUid};

use super::driver::{Access, CallError, Capabilities, Driver, Map, PublishCall, StageCall};
use super::drivers::Drivers;
use super::expand::Expansion;
use super::files::{self, DevicePlace, Mounts, Places};
use super::label::WantedLabel;
use super::volume::Outcome;
use crate::api::{Api, Attachment, ClaimSize, CsiDriver, CsiSource};
use crate::block::BlockKernel;

/// The key under which a driver finds tokens.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
pub(super) const ATTACH: &str = "MountVolume.WaitForAttach";
pub(super) const STAGE: &str = "MountVolume.MountDevice";
pub(super) const PUBLISH: &str = "MountVolume.SetUp";
pub(crate) const EXPAND: &str = "MountVolume.Setup";
const ATTACH_BLOCK: &str = "MapVolume.WaitForAttach";
const STAGE_BLOCK: &str = "MapVolume.SetUpDevice";
const PUBLISH_BLOCK: &str = "MapVolume.MapPodDevice";
pub(crate) const EXPAND_BLOCK: &str = "MapVolume.MarkVolumeAsMounted";
/// Another pod has the volume with another label, or has it mounted so yet.
pub(super) const LABEL: &str = "AddPodToVolume";
pub(super) const OTHER_LABEL: &str = "PodExistsInVolume";
/// Of a pod that has the volume already.
pub(crate) const EXPAND_IN_USE: &str = "NodeExpandVolume.NodeExpandVolume";

/// A volume that a pod wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedVolume {
    /// Of the PersistentVolume; of an ephemeral one the pod's own name for it.
    pub(crate) name: String,
    /// What it is made of.
    pub(crate) source: CsiSource,
    /// No container may write to it.
    pub(crate) read_only: bool,
    /// ReadWriteOncePod is its only access mode.
    pub(crate) one_pod: bool,
    /// The pod's own name for it.
    pub(crate) own_name: String,
    /// None where the node has no SELinux, or the pod no label of its own that is understood.
    pub(crate) label: Option<WantedLabel>,
    /// Pods have it as a device, not as a folder.
    pub(crate) block: bool,
    /// It is the pod's own, written inline.
    pub(crate) ephemeral: bool,
    /// None when it is the pod's own.
    pub(crate) claim: Option<WantedClaim>,
}

/// The claim behind a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedClaim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Of this very claim.
    pub(crate) uid: String,
    /// Its volume is larger than it says.
    pub(crate) outgrown: bool,
    /// As it was when the pod asked.
    pub(crate) size: ClaimSize,
    /// None when it need not grow here.
    pub(crate) expansion: Option<Expansion>,
}

impl WantedVolume {
    /// What upstream calls the step that publishes it.
    pub(super) fn publish_step(&self) -> &'static str {
        if self.block { PUBLISH_BLOCK } else { PUBLISH }
    }

    /// The one in which upstream sees that another pod has it.
    pub(super) fn refuse_step(&self) -> &'static str {
        if self.block { STAGE_BLOCK } else { PUBLISH }
    }

    /// The one that makes it larger.
    pub(super) fn expand_step(&self) -> &'static str {
        if self.block { EXPAND_BLOCK } else { EXPAND }
    }

    /// Where it is for all pods.
    pub(super) fn place(&self, places: &Places) -> DevicePlace {
        match self.block {
            true => DevicePlace::Block(places.block(&self.name)),
            false => places.folder(&self.source.driver, &self.source.handle),
        }
    }

    /// Names become folders, and come from a manifest or from the API server.
    ///
    /// # Errors
    /// Names what cannot be one.
    pub(super) fn check_names(&self) -> Result<(), StepError> {
        let wrong = |why: String| Err(StepError::before(self.publish_step(), why));
        if !files::is_driver_name(&self.source.driver) {
            return wrong(format!(
                "{:?} is no name of a CSI driver: it must be a DNS name",
                self.source.driver
            ));
        }
        if !files::is_volume_name(&self.name) {
            return wrong(format!("{:?} is no name of a volume: rename it", self.name));
        }
        Ok(())
    }
}

/// The handle of an inline volume.
pub(crate) fn ephemeral_handle(pod: &Pod, volume: &str) -> String {
    format!("csi-{}", files::sha256(&format!("{}{volume}", pod.uid)))
}

/// The name of the object that says whether a volume is attached to a node.
pub(crate) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", files::sha256(&format!("{handle}{driver}{node}")))
}

/// As upstream tells of a pod that waits for a volume, by the pod's name for it.
pub(crate) fn unmounted(own_name: &str, unprocessed: &str, why: &str) -> String {
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[{own_name}], unattached volumes=[], failed to process volumes=[{unprocessed}]: {why}"
    )
}

/// In upstream's words: a step of the volume of that name has failed.
pub(crate) fn failure_message(step: &str, volume: &str, why: &str) -> String {
    let meanwhile = if [EXPAND, EXPAND_BLOCK].contains(&step) { " while expanding volume" } else { "" };
    format!("{step} failed{meanwhile} for volume {volume:?} : {why}")
}

/// A step that has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepError {
    pub(super) step: &'static str,
    pub(super) why: String,
    /// None when the driver was not called.
    pub(super) outcome: Option<Outcome>,
}

impl StepError {
    pub(super) fn before(step: &'static str, why: String) -> Self {
        Self { step, why, outcome: None }
    }

    /// As upstream tells it of that volume, which the pod has another name for.
    pub(super) fn message(&self, volume: &str, own_name: &str) -> String {
        if let LABEL | OTHER_LABEL = self.step {
            let unprocessed = if self.step == LABEL { own_name } else { "" };
            return unmounted(own_name, unprocessed, &self.why);
        }
        failure_message(self.step, volume, &self.why)
    }

    fn of(step: &'static str, error: &CallError) -> Self {
        let outcome = match error {
            CallError::Final(_) => Outcome::Refused,
            CallError::Uncertain(_) => Outcome::Unknown,
        };
        Self { step, why: error.why().to_owned(), outcome: Some(outcome) }
    }
}

/// A call that is ready to be made.
pub(super) struct Ready<T> {
    driver: Driver,
    can: Capabilities,
    call: T,
    place: DevicePlace,
}

/// How a volume that was published is to be given to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Published {
    /// The kubelet sets the group of all its files, since the driver does not.
    pub(super) set_group: bool,
}

/// What steps are done with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps<'a> {
    pub(super) api: &'a dyn Api,
    pub(super) drivers: &'a Drivers,
    pub(super) mounts: &'a dyn Mounts,
    pub(super) places: &'a Places,
    pub(super) kernel: &'a Arc<dyn BlockKernel>,
    /// This node's name.
    pub(super) node: &'a str,
}

impl Steps<'_> {
    /// What the attacher has left for the driver.
    pub(super) async fn attachment(&self, wanted: &WantedVolume) -> Result<Map, StepError> {
        let handle = &wanted.source.handle;
        let name = attachment_name(handle, &wanted.source.driver, self.node);
        let step = if wanted.block { ATTACH_BLOCK } else { ATTACH };
        let failed = |why: String| StepError::before(step, why);
        let get =
            |why: &str| failed(format!("volume {handle} has GET error for volume attachment {name}: {why}"));
        let found = self.api.attachment(&name).await.map_err(|error| get(&error.message))?;
        let found =
            found.ok_or_else(|| get(&format!("volumeattachments.storage.k8s.io {name:?} not found")))?;
        let Attachment { attached, deleted, error, error_code: _, metadata } = &*found;
        match (deleted, attached, error) {
            (true, ..) => Err(failed("volume attachment is being deleted".to_owned())),
            (false, true, _) => Ok(metadata.clone()),
            (false, false, Some(error)) => Err(failed(error.clone())),
            (false, false, None) => {
                Err(failed(format!("volume {handle} is not attached for volume attachment {name}")))
            }
        }
    }

    async fn secrets(
        &self,
        of: Option<&(String, String)>,
        field: &str,
        step: &'static str,
    ) -> Result<Map, StepError> {
        let Some((namespace, name)) = of else { return Ok(Map::new()) };
        let failed = |why: &str| {
            let found =
                format!("failed to find the secret {name} in the namespace {namespace} with error: {why}");
            let words = match step {
                STAGE_BLOCK | PUBLISH_BLOCK => {
                    format!("kubernetes.io/csi: failed to get {field} {namespace}/{name}")
                }
                EXPAND | EXPAND_BLOCK => {
                    format!("expander.NodeExpand failed to get {field} {namespace}/{name}")
                }
                _ => format!("fetching {field} {namespace}/{name} failed"),
            };
            let why = format!("{words}: kubernetes.io/csi: {found}");
            StepError::before(step, why)
        };
        let secret = self.api.secret(namespace, name).await.map_err(|error| failed(&error.message))?;
        let secret = secret.ok_or_else(|| failed(&format!("secrets {name:?} not found")))?;
        // As Go makes a string of bytes.
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Ok(secret.data.iter().map(|(key, value)| (key.clone(), text(value))).collect())
    }

    /// None of a driver that does not stage: then there is nothing to be done.
    pub(super) async fn prepare_stage(
        &self,
        wanted: &WantedVolume,
        pod: &Pod,
        (context, label): (&Map, &str),
    ) -> Result<Option<Ready<StageCall>>, StepError> {
        if wanted.block {
            return self.prepare_stage_block(wanted, context).await;
        }
        let source = &wanted.source;
        let before = |why: String| StepError::before(STAGE, why);
        let words = "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient";
        let driver = self.drivers.get(&source.driver).map_err(|why| before(format!("{words}: {why}")))?;
        let can = driver.capabilities().await.map_err(|error| before(error.why().to_owned()))?;
        if !can.stage {
            return Ok(None);
        }
        let secrets = self.secrets(source.stage_secret.as_ref(), "NodeStageSecretRef", STAGE).await?;
        let staging = self.places.device(&source.driver, &source.handle);
        let (folder, data) =
            (staging.clone(), [source.driver.clone(), source.handle.clone(), label.to_owned()]);
        let write = move || {
            let [driver, handle, label] = &data;
            let parent = folder.parent().unwrap_or(&folder);
            files::make_folder(&folder).map_err(|error| {
                format!("kubernetes.io/csi: attacher.MountDevice failed to create dir {folder:?}:  {error}")
            })?;
            failpoint!("csi.stage-folder"?);
            let known = [("driverName", driver.as_str()), ("volumeHandle", handle)];
            files::save(parent, &known.into_iter().chain(labelled(label)).collect::<Vec<_>>())?;
            failpoint!("csi.stage-noted"?);
            Ok(())
        };
        blocking(write).await.map_err(before)?;
        let call = StageCall {
            handle: source.handle.clone(),
            staging,
            publish_context: context.clone(),
            volume_context: source.attributes.clone(),
            secrets,
            access: access(source, can, pod, label),
        };
        Ok(Some(Ready { driver, can, call, place: wanted.place(self.places) }))
    }

    /// Stages. What was written for a call that was refused is removed.
    pub(super) async fn stage(&self, ready: Ready<StageCall>) -> Result<(), StepError> {
        let Ready { driver, can, call, place } = ready;
        let staged = driver.stage(call, can).await;
        failpoint!("csi.staged");
        let Err(error) = staged else { return Ok(()) };
        let step = if matches!(place, DevicePlace::Block(_)) { STAGE_BLOCK } else { STAGE };
        let failed = StepError::of(step, &error);
        if failed.outcome == Some(Outcome::Refused) {
            warn_of_rest(match &place {
                DevicePlace::Folder(staging) => files::remove(staging, self.mounts),
                DevicePlace::Block(block) => block.remove(),
            });
        }
        Err(failed)
    }

    /// How the driver's object says that pods get its volumes.
    pub(super) async fn driver_object(
        &self,
        driver: &str,
        step: &'static str,
    ) -> Result<Option<CsiDriver>, StepError> {
        let found = self.api.csi_driver(driver).await;
        found.map(|found| found.as_deref().cloned()).map_err(|error| StepError::before(step, error.message))
    }

    /// Looks up and writes down.
    pub(super) async fn prepare_publish(
        &self,
        wanted: &WantedVolume,
        pod: &Pod,
        (context, label): (&Map, &str),
    ) -> Result<(Ready<PublishCall>, Published), StepError> {
        if wanted.block {
            return self.prepare_publish_block(wanted, pod, context).await;
        }
        let source = &wanted.source;
        let before = |why: String| StepError::before(PUBLISH, why);
        let at = |why: String| before(format!("kubernetes.io/csi: mounter.{why}"));
        let client = self.drivers.get(&source.driver);
        let driver = client.map_err(|why| at(format!("SetUpAt failed to get CSI client: {why}")))?;
        let object = self.driver_object(&source.driver, PUBLISH).await?;
        check_mode(wanted, object.as_ref())
            .map_err(|why| at(format!("SetupAt failed to check volume lifecycle mode: {why}")))?;
        let can = driver.capabilities().await.map_err(|error| {
            at(format!("SetUpAt failed to check for STAGE_UNSTAGE_VOLUME capability: {}", error.why()))
        })?;
        let mut secrets =
            self.secrets(source.publish_secret.as_ref(), "NodePublishSecretRef", PUBLISH).await?;
        let mut volume_context = source.attributes.clone();
        if object.as_ref().is_some_and(|object| object.pod_info) {
            volume_context.extend(pod_info(pod, wanted.ephemeral));
        }
        if let Some(object) = object.as_ref().filter(|object| !object.tokens.is_empty()) {
            let tokens = self.tokens(pod, &object.tokens).await.map_err(|why| {
                at(format!("SetUpAt failed to get service accoount token attributes: {why}"))
            })?;
            let to = if object.tokens_in_secrets { &mut secrets } else { &mut volume_context };
            to.insert(TOKENS.to_owned(), tokens);
        }
        let target = self.places.target(&pod.uid, &wanted.name);
        self.write_down(wanted, &target, label).await.map_err(before)?;
        let staging =
            (can.stage && !wanted.ephemeral).then(|| self.places.device(&source.driver, &source.handle));
        let call = PublishCall {
            handle: source.handle.clone(),
            staging,
            target,
            read_only: wanted.read_only,
            publish_context: context.clone(),
            volume_context,
            secrets,
            access: access(source, can, pod, label),
        };
        let set_group = !can.mount_group && kubelet_sets_group(wanted, object.as_ref());
        Ok((Ready { driver, can, call, place: wanted.place(self.places) }, Published { set_group }))
    }

    /// By audience, in the API's form.
    async fn tokens(&self, pod: &Pod, wanted: &[(String, i64)]) -> Result<String, String> {
        let mut all = BTreeMap::new();
        for (audience, seconds) in wanted {
            let of = TokenFile { path: String::new(), audience: audience.clone(), seconds: *seconds }.of(pod);
            let token = self.api.token(&of).await.map_err(|error| error.message)?;
            let expires =
                jiff::Timestamp::from_nanosecond(token.expires.into()).map_err(|e| e.to_string())?;
            let expires = expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            all.insert(audience, BTreeMap::from([("expirationTimestamp", expires), ("token", token.text)]));
        }
        go_json::text(&all).map_err(|error| error.to_string())
    }

    async fn write_down(&self, wanted: &WantedVolume, target: &Path, label: &str) -> Result<(), String> {
        let (name, source, node) = (wanted.name.clone(), wanted.source.clone(), self.node.to_owned());
        let mode = if wanted.ephemeral { "Ephemeral" } else { "Persistent" };
        let (folder, label) = (target.parent().unwrap_or(target).to_owned(), label.to_owned());
        blocking(move || {
            let attachment = attachment_name(&source.handle, &source.driver, &node);
            let data = [
                ("specVolID", name.as_str()),
                ("volumeHandle", &source.handle),
                ("driverName", &source.driver),
                ("nodeName", &node),
                ("volumeLifecycleMode", mode),
                ("attachmentID", &attachment),
            ];
            files::save(&folder, &data.into_iter().chain(labelled(&label)).collect::<Vec<_>>())?;
            failpoint!("csi.publish-noted"?);
            Ok(())
        })
        .await
    }

    /// Publishes, and maps what is a device. What was written for a call that was refused is removed, if this one has
    /// written it.
    pub(super) async fn publish(
        &self,
        ready: Ready<PublishCall>,
        pod: &PodUid,
        found: bool,
    ) -> Result<(), StepError> {
        let Ready { driver, can, call, place } = ready;
        let target = call.target.clone();
        let published = driver.publish(call, can).await;
        failpoint!("csi.published");
        let step = match (&published, &place) {
            (Ok(()), DevicePlace::Folder(_)) => return Ok(()),
            (Ok(()), DevicePlace::Block(block)) => return self.map(block, pod).await,
            (Err(_), DevicePlace::Folder(_)) => PUBLISH,
            (Err(_), DevicePlace::Block(_)) => PUBLISH_BLOCK,
        };
        let Err(error) = published else { return Ok(()) };
        let failed = StepError::of(step, &error);
        if failed.outcome == Some(Outcome::Refused) && !found {
            warn_of_rest(match &place {
                DevicePlace::Folder(_) => files::remove(&target, self.mounts),
                DevicePlace::Block(block) => block.forget(pod, self.mounts),
            });
        }
        Err(failed)
    }

    /// Takes a pod's mount back, and then what is known of it.
    pub(super) async fn unpublish(&self, driver: &str, handle: &str, target: &Path) -> Result<(), String> {
        let words = "kubernetes.io/csi: Unmounter.TearDownAt failed";
        let client = self.drivers.get(driver).map_err(|why| format!("{words} to get CSI client: {why}"))?;
        client.unpublish(handle, target).await.map_err(|error| format!("{words}: {}", error.why()))?;
        failpoint!("csi.unpublished"?);
        files::remove(target, self.mounts)
            .map_err(|why| format!("{words} to clean mount dir [{}]: {why}", target.display()))
    }

    /// Takes the device back, and then what is known of it.
    pub(super) async fn unstage(&self, driver: &str, handle: &str, staging: &Path) -> Result<(), String> {
        let folder = staging.parent().unwrap_or(staging);
        if files::read(folder)?.is_none() {
            // Its driver does not stage, or all of it but the folders has gone.
            return files::remove(staging, self.mounts);
        }
        let copies = self.mounts.copies(staging, self.places.pods());
        let copies = copies.map_err(|error| format!("read the mount table: {error}"))?;
        if !copies.is_empty() {
            return Err(format!(
                "GetDeviceMountRefs check failed: the device mount path {staging:?} is still mounted by other references {copies:?}"
            ));
        }
        let words = "kubernetes.io/csi: attacher.UnmountDevice failed";
        let client =
            self.drivers.get(driver).map_err(|why| format!("{words} to create newCsiDriverClient: {why}"))?;
        let can = client
            .capabilities()
            .await
            .map_err(|error| format!("{words} to check whether STAGE_UNSTAGE_VOLUME set: {}", error.why()))?;
        if can.stage {
            client.unstage(handle, staging).await.map_err(|error| format!("{words}: {}", error.why()))?;
            failpoint!("csi.unstaged"?);
        }
        files::remove(staging, self.mounts).map_err(|why| {
            format!("kubernetes.io/csi: failed to clean up global mount {}: {why}", folder.display())
        })
    }
}

/// After a refusal; what is mounted all the same stays known.
fn warn_of_rest(removed: Result<(), String>) {
    if let Err(why) = removed {
        tracing::warn!(why, "what was written for a volume stays");
    }
}

/// What is written down of a label, where there is one.
fn labelled(label: &str) -> Option<(&'static str, &str)> {
    (!label.is_empty()).then_some((files::LABEL, label))
}

fn access(source: &CsiSource, can: Capabilities, pod: &Pod, label: &str) -> Access {
    let mut mount_options = source.mount_options.clone();
    if !label.is_empty() {
        // In quotes: a label has commas.
        mount_options.push(format!("context={label:?}"));
    }
    Access {
        mode: source.access_modes.first().cloned().unwrap_or_else(|| "ReadWriteOnce".to_owned()),
        fs_type: source.fs_type.clone(),
        mount_options,
        block: false,
        group: pod.security.fs_group.filter(|_| can.mount_group),
    }
}

fn pod_info(pod: &Pod, ephemeral: bool) -> [(String, String); 5] {
    [
        ("pod.name", pod.name.clone()),
        ("pod.namespace", pod.namespace.clone()),
        ("pod.uid", pod.uid.to_string()),
        ("serviceAccount.name", pod.shown.service_account.clone()),
        ("ephemeral", ephemeral.to_string()),
    ]
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
}

/// Whether the driver has volumes of that kind.
fn check_mode(wanted: &WantedVolume, object: Option<&CsiDriver>) -> Result<(), String> {
    let (mode, driver) = (if wanted.ephemeral { "Ephemeral" } else { "Persistent" }, &wanted.source.driver);
    match object {
        None if !wanted.ephemeral => Ok(()),
        None => Err(format!("volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)")),
        Some(object) if object.modes.iter().any(|known| known == mode) => Ok(()),
        Some(object) => {
            let modes: Vec<String> = object.modes.iter().map(|mode| format!("{mode:?}")).collect();
            let only = modes.join(" ");
            Err(format!("volume mode {mode:?} not supported by driver {driver} (only supports [{only}])"))
        }
    }
}

/// By the driver's fsGroupPolicy, as upstream.
fn kubelet_sets_group(wanted: &WantedVolume, object: Option<&CsiDriver>) -> bool {
    let once = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
    match object.map_or("ReadWriteOnceWithFSType", |object| object.fs_group_policy.as_str()) {
        _ if wanted.read_only => false,
        "None" => false,
        "File" => true,
        _ => {
            let once = wanted.ephemeral || wanted.source.access_modes.iter().any(once);
            once && !wanted.source.fs_type.is_empty()
        }
    }
}

/// File systems may block; the workers' threads must not.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(format!("the work on a volume died: {error}")),
    }
}
