//! A pod's claims, from their lookup to the drivers' answers, and back. Owns the order of these; what is known of a claim is
//! [`super::claims`]'. Part of [`super::DraManager`]; called by the pod workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_model::pod::claim::{ClaimObject, PodResourceClaim};
use gantry_model::pod::{Pod, PodUid};

use super::DraManager;
use super::claims::{AskedClaim, WantedClaim};
use super::driver::Driver;

impl DraManager {
    /// Has the pod's claims ready, before its sandbox is made.
    ///
    /// # Errors
    /// Why they are not, in upstream's words. Before a driver was asked nothing of the pod is known here, and it may go as it
    /// came (#131957); after that its claims are its own until [`DraManager::unprepare`].
    pub(crate) async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let begun = self.0.clock.mono();
        let done = self.prepare_claims(pod).await;
        self.count_operation("PrepareResources", begun, done.is_err());
        done.map_err(|why| format!("prepare dynamic resources: {why}"))
    }

    /// The pod is over: drivers may take back what only it has.
    ///
    /// # Errors
    /// Why they have not, in upstream's words. It is to be tried again.
    pub(crate) async fn unprepare(&self, pod: &PodUid) -> Result<(), String> {
        let begun = self.0.clock.mono();
        let done = self.unprepare_claims(pod).await;
        self.count_operation("UnprepareResources", begun, done.is_err());
        done.map_err(|why| format!("unprepare dynamic resources: {why}"))
    }

    /// Of an earlier kubelet's pods all but these are over. For when all sources have told all of theirs. Returns whether
    /// nothing of them is left.
    pub(crate) async fn retain(&self, pods: &BTreeSet<&PodUid>) -> bool {
        let left: Vec<PodUid> = {
            let mut shared = self.0.lock();
            let known = shared.claims.pods();
            shared.restored.retain(|pod| known.contains(pod) && !pods.contains(pod));
            shared.restored.iter().cloned().collect()
        };
        let mut clean = true;
        for pod in left {
            if let Err(why) = self.unprepare_claims(&pod).await {
                tracing::info!(%pod, why, "claims of a pod that is gone are still prepared; trying again");
                clean = false;
            }
        }
        clean
    }

    fn count_operation(&self, operation: &str, begun: Duration, failed: bool) {
        let took = self.0.clock.mono().saturating_sub(begun);
        let failed = if failed { "true" } else { "false" };
        self.0.metrics.dra_operations_duration.took([operation, failed], took);
    }

    async fn prepare_claims(&self, pod: &Pod) -> Result<(), String> {
        let (wanted, drivers) = self.look_up(pod).await?;
        let _turns = self.turns(wanted.iter().map(|claim| claim.key.clone()).collect()).await;
        let batches = self.0.lock().claims.refer(&pod.uid, &wanted)?;
        // First: what a driver has begun is not forgotten, whatever becomes of this process (#116411).
        self.save().await.map_err(|why| format!("checkpoint ResourceClaim cache: {why}"))?;
        for (name, claims) in &batches {
            let driver = match drivers.get(name) {
                Some(driver) => driver.clone(),
                None => self.0.drivers.get(name)?,
            };
            self.prepare_at(&driver, claims).await?;
        }
        {
            let mut shared = self.0.lock();
            shared.claims.prepare(&wanted);
            self.count_claims(&shared);
        }
        self.save().await.map_err(|why| format!("checkpoint ResourceClaim state: {why}"))
    }

    /// All that the pod is to have, each once, and the drivers of it. Nothing is known of the pod here as long as something
    /// is wrong with that.
    async fn look_up(&self, pod: &Pod) -> Result<(Vec<WantedClaim>, BTreeMap<String, Driver>), String> {
        let extended = pod.resource_claims.extended.iter().map(|claim| PodResourceClaim {
            name: String::new(),
            object: ClaimObject::Named(claim.name.clone()),
        });
        let (mut wanted, mut drivers) = (Vec::<WantedClaim>::new(), BTreeMap::new());
        for claim in pod.resource_claims.listed.iter().cloned().chain(extended) {
            let Some((name, is_own)) = claim.object(&pod.full_name())? else { continue };
            let found = self.look_up_claim(pod, name, is_own).await?;
            for driver in &found.drivers {
                drivers.insert(driver.clone(), self.0.drivers.get(driver)?);
            }
            if wanted.iter().all(|known| known.key != found.key) {
                wanted.push(found);
            }
        }
        Ok((wanted, drivers))
    }

    async fn look_up_claim(&self, pod: &Pod, name: &str, is_own: bool) -> Result<WantedClaim, String> {
        let asked = self.0.api.resource_claim(&pod.namespace, name).await;
        let found = asked.map_err(|error| error.to_string()).and_then(|found| {
            found.ok_or_else(|| format!("resourceclaims.resource.k8s.io {name:?} not found"))
        });
        let claim = found.map_err(|why| format!("fetch ResourceClaim {name}: {why}"))?;
        if is_own && claim.controller != pod.uid.as_str() {
            let (namespace, full) = (&pod.namespace, pod.full_name());
            return Err(format!(
                "ResourceClaim {namespace}/{name} was not created for Pod {full} (Pod is not owner)"
            ));
        }
        if !claim.reserved_for.iter().any(|uid| uid == pod.uid.as_str()) {
            return Err(format!(
                "pod {} ({}) is not allowed to use ResourceClaim {name} ({})",
                pod.name, pod.uid, claim.uid
            ));
        }
        let drivers = claim.drivers.clone().ok_or_else(|| format!("ResourceClaim {name}: not allocated"))?;
        Ok(WantedClaim { key: (pod.namespace.clone(), name.to_owned()), uid: claim.uid.clone(), drivers })
    }

    /// What the driver gives is kept, also when it gives less than it was asked for (#137819): what it has prepared is
    /// unprepared at the pod's end.
    async fn prepare_at(&self, driver: &Driver, claims: &[AskedClaim]) -> Result<(), String> {
        let answers = driver.prepare(claims).await?;
        let answered = answers.len();
        let mut failure = None;
        for (uid, answer) in answers {
            let asked = claims.iter().find(|claim| claim.uid == uid);
            let failed = match (asked, answer) {
                (None, _) => format!("NodePrepareResources returned result for unknown claim UID {uid}"),
                (Some(claim), Err(why)) => {
                    format!("NodePrepareResources failed for ResourceClaim {}: {why}", claim.name)
                }
                (Some(claim), Ok(devices)) => {
                    self.0.lock().claims.give(claim, &driver.name, devices);
                    continue;
                }
            };
            failure.get_or_insert(failed);
        }
        match (failure, claims.len().abs_diff(answered)) {
            (Some(why), _) => Err(why),
            (None, 0) => Ok(()),
            (None, left) => Err(format!("NodePrepareResources skipped {left} ResourceClaims")),
        }
    }

    async fn unprepare_claims(&self, pod: &PodUid) -> Result<(), String> {
        let keys: BTreeSet<_> = self.0.lock().claims.of_pod(pod).into_iter().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let _turns = self.turns(keys).await;
        let batches = {
            let mut shared = self.0.lock();
            let batches = shared.claims.leave(pod);
            self.count_claims(&shared);
            batches
        };
        for (name, claims) in &batches {
            unprepare_at(&self.0.drivers.get(name)?, claims).await?;
        }
        self.0.lock().claims.forget(pod);
        self.save().await.map_err(|why| format!("checkpoint ResourceClaim state: {why}"))
    }
}

async fn unprepare_at(driver: &Driver, claims: &[AskedClaim]) -> Result<(), String> {
    let answers = driver.unprepare(claims).await?;
    let answered = answers.len();
    for (uid, answer) in answers {
        let Some(claim) = claims.iter().find(|claim| claim.uid == uid) else {
            return Err(format!("NodeUnprepareResources returned result for unknown claim UID {uid}"));
        };
        answer.map_err(|why| {
            format!("NodeUnprepareResources failed for ResourceClaim {}: {why}", claim.name)
        })?;
    }
    match claims.len().abs_diff(answered) {
        0 => Ok(()),
        left => Err(format!("NodeUnprepareResources skipped {left} ResourceClaims")),
    }
}
