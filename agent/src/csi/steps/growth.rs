//! The step that makes a volume larger. Owns the request, upstream's words for what fails, and what a failure means for
//! another try. Called by [`crate::csi::owner`].

use gantry_model::pod::Pod;
use tonic::Code;

use super::{Access, Steps, WantedVolume, access};
use crate::csi::driver::ExpandCall;
use crate::csi::expand::{GrowthError, GrowthFailure};
use crate::csi::files::DevicePlace;

/// No other try can succeed (CSI, errors of NodeExpandVolume).
const INFEASIBLE: [Code; 3] = [Code::InvalidArgument, Code::OutOfRange, Code::NotFound];

impl Steps<'_> {
    /// Makes the volume larger that the pod has.
    ///
    /// # Errors
    /// In upstream's words.
    pub(in crate::csi) async fn expand(
        &self,
        wanted: &WantedVolume,
        pod: &Pod,
        bytes: i64,
    ) -> Result<(), GrowthError> {
        let source = &wanted.source;
        let failed = |failure, why: String| GrowthError { why, failure };
        let driver = self.drivers.get(&source.driver).map_err(|why| failed(GrowthFailure::Away, why))?;
        let can = driver.capabilities().await.map_err(|error| {
            let why = error.why();
            let why = format!("Expander.NodeExpand failed to check if node supports expansion : {why}");
            failed(GrowthFailure::Failed, why)
        })?;
        if !can.expand {
            let why = format!("NodeExpand is not supported by the CSI driver {}", source.driver);
            return Err(failed(GrowthFailure::Unsupported, why));
        }
        let step = wanted.expand_step();
        let secrets = self.secrets(source.expand_secret.as_ref(), "NodeExpandSecretRef", step).await;
        let secrets = secrets.map_err(|error| failed(GrowthFailure::Failed, error.why))?;
        let (target, staging) = match wanted.place(self.places) {
            DevicePlace::Folder(staging) => (self.places.target(&pod.uid, &wanted.name), staging),
            DevicePlace::Block(block) => (block.target(&pod.uid), block.staging()),
        };
        let call = ExpandCall {
            handle: source.handle.clone(),
            target,
            staging: can.stage.then_some(staging),
            bytes,
            secrets,
            // Whose the files are has been settled when it was published.
            access: Access { group: None, block: wanted.block, ..access(source, can, pod, "") },
        };
        let words = "Expander.NodeExpand failed to expand the volume";
        driver.expand(call, can).await.map_err(|status| match status.code {
            // Upstream has no colon there.
            Some(code) if INFEASIBLE.contains(&code) => {
                failed(GrowthFailure::Infeasible, format!("{words} {}", status.why))
            }
            Some(Code::FailedPrecondition) => {
                failed(GrowthFailure::InUse, format!("{words} : {}", status.why))
            }
            _ => failed(GrowthFailure::Failed, format!("{words} : {}", status.why)),
        })
    }
}
