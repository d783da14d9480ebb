//! Our own runtime, beside CRI on the same socket: which containers ran out of memory. Started by [`super::RuntimeExtensions`].

#![expect(clippy::disallowed_methods, reason = "the listener ends with its last receiver")]

use gantry_proto::runtime_ext::WatchOutOfMemoryRequest;
use gantry_proto::runtime_ext::runtime_extensions_client::RuntimeExtensionsClient;
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::Channel;

use super::RuntimeExtensions;
use super::oom_counts::Ooms;
use super::renew::subscribe_forever;

/// One event is an ID and a number.
const MAX_MESSAGE: usize = 64 << 10;

/// Follows it for as long as this process lives.
pub(super) fn listen(channel: &Channel) -> RuntimeExtensions {
    let (told, ooms) = watch::channel(Ooms::default());
    let channel = channel.clone();
    tokio::spawn(async move { subscribe_forever(&told, || subscribe(&channel, &told)).await });
    RuntimeExtensions { pulls: None, ooms: Some(ooms) }
}

/// One subscription, to its end.
async fn subscribe(channel: &Channel, told: &watch::Sender<Ooms>) -> Result<(), Status> {
    let mut client = RuntimeExtensionsClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    let mut events = client.watch_out_of_memory(WatchOutOfMemoryRequest {}).await?.into_inner();
    while let Some(event) = events.message().await? {
        told.send_if_modified(|ooms| ooms.add(&event.container_id));
    }
    Ok(())
}
