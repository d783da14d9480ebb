//! How far the images of pods have come, while they are pulled: bars below everything else on a
//! terminal, a line now and then elsewhere. Owns the choice of images; the asking and the drawing are
//! [`crate::pull`]'s. One task, started by run.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use gantry_agent::pod::worker::PodHandle;
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::{output, pull, runtime_client};

/// Between looks.
const LIVE: Duration = Duration::from_millis(200);
const PLAIN: Duration = Duration::from_secs(5);

/// For ever.
pub(super) async fn show(pods: watch::Receiver<Arc<[PodHandle]>>, runtime: Channel) {
    let live = std::io::stderr().is_terminal();
    let client = runtime_client::images(runtime);
    loop {
        tokio::time::sleep(if live { LIVE } else { PLAIN }).await;
        let handles = pods.borrow().clone();
        let images: BTreeSet<String> = handles.iter().flat_map(under_way).collect();
        let mut lines = Vec::new();
        for image in images {
            let Some(progress) = pull::look(client.clone(), pull::spec(&image)).await else { continue };
            if live {
                lines.extend(pull::draw(&progress, &image));
            } else {
                output::say(&pull::line(&progress, &image));
            }
        }
        output::footer(output::fit(lines));
    }
}

/// The images that are being pulled for it.
fn under_way(handle: &PodHandle) -> Vec<String> {
    let status = handle.status.borrow();
    let open = status.spans.iter().filter(|span| span.name == "image" && span.end == 0);
    open.filter_map(|span| handle.pod.all_containers().find(|container| container.name == span.container))
        .map(|container| container.image.clone())
        .collect()
}
