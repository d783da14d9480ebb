//! Images that the node's owner wants here before any pod asks for them. Owns the order and the pauses between
//! tries; a pull is [`Images::pull`]'s, and what a kubelet's garbage collection takes later is not brought again
//! (`pinned_images` keeps it). Started by the runtime, and ends with it.

use std::time::Duration;

use gantry_base::error::chain;
use gantry_failpoint::failpoint;

use super::{Images, Reference};
use gantry_base::timeline::Recorder;

/// A registry that is just coming up, maybe on this very node.
pub const FIRST: Duration = Duration::from_secs(5);
/// What is not there now may be pushed later.
const LONGEST: Duration = Duration::from_secs(300);

/// Brings those that are not here, one after the other so that a pod's own pull has the line almost for itself;
/// then again those that failed, `pause` later and ever more seldom, until all are here.
pub async fn run(images: Images, mut wanted: Vec<Reference>, mut pause: Duration) {
    loop {
        failpoint!("task.prepull");
        let mut missing = Vec::new();
        for reference in wanted {
            let name = reference.to_string();
            if images.find(&name).is_some() {
                continue;
            }
            match images.pull(&reference, None, &Recorder::default()).await {
                Ok(image) => tracing::info!(image = name, id = image.id, "pulled ahead of any pod"),
                Err(error) => {
                    tracing::warn!(
                        image = name,
                        again_in = pause.as_secs(),
                        "not pulled ahead: {}",
                        chain(&error)
                    );
                    missing.push(reference);
                }
            }
        }
        if missing.is_empty() {
            return;
        }
        wanted = missing;
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}
