//! What the node says of swap at its start.

use gantry_kube_client::fake_apiserver::FakeApiServer;

use super::{begin, machine, reasons, settings, well};
use crate::registration::machine::MachineInfo;

#[tokio::test(start_paused = true)]
async fn that_secrets_may_come_to_the_disk_is_told() {
    let told = |server: &FakeApiServer| {
        let list = server.all("/api/v1/events");
        list.into_iter().find(|event| event["reason"] == "PossibleMemoryBackedVolumesOnDisk")
    };
    for swaps_tmpfs in [true, false] {
        let server = FakeApiServer::default();
        let bed = begin(&server, settings(), MachineInfo { swaps_tmpfs, ..machine() }, Some(well()));
        bed.server.until("events", |server| (reasons(server).len() >= 4).then_some(())).await;
        let Some(event) = told(&server) else {
            assert!(!swaps_tmpfs);
            continue;
        };
        assert!(swaps_tmpfs);
        assert_eq!(event["type"], "Warning");
        assert_eq!(
            event["message"],
            "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be \
             swapped to disk and should no longer be considered secure."
        );
    }
}
