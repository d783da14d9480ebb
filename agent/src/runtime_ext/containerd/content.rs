//! containerd's content store: which manifests of a registry are there, which layers, and what is on its
//! way in. Owns the calls and their bounds; never writes. Called by [`super::pulls`].

use std::collections::{BTreeMap, BTreeSet};

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::{Info, ListContentRequest, ListStatusesRequest, ReadContentRequest};
use prost::Message;
use prost_types::Timestamp;
use tonic::Status;
use tonic::transport::Channel;

use super::layers::{self, Ingest, Promise};
use super::{TIMEOUT, timed};

/// Of one message; a list comes in many.
const MAX_MESSAGE: usize = 16 << 20;
/// What containerd takes for a manifest at most.
const MAX_MANIFEST: usize = 8 << 20;
/// Of all messages of one list: tens of thousands of blobs.
const MAX_LIST: usize = 64 << 20;
/// Blobs asked for at once.
const MAX_DIGESTS: usize = 512;

/// Labels of a blob.
const SOURCE: &str = "containerd.io/distribution.source.";
const CONFIG: &str = "containerd.io/gc.ref.content.config";

/// The store behind a channel.
#[derive(Debug, Clone)]
pub(super) struct ContentStore {
    client: ContentClient<Channel>,
}

/// A manifest that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) digest: String,
    /// Hosts and repositories that it was pulled from.
    pub(super) sources: BTreeMap<String, BTreeSet<String>>,
    /// Unix nanoseconds; each pull touches it.
    pub(super) touched: i64,
}

impl ContentStore {
    pub(super) fn new(channel: Channel) -> Self {
        Self { client: ContentClient::new(channel).max_decoding_message_size(MAX_MESSAGE) }
    }

    /// The manifests of images that came from one of these hosts, which are names or addresses.
    pub(super) async fn manifests(&self, hosts: &BTreeSet<&str>) -> Result<Vec<Manifest>, Status> {
        let filters = hosts.iter().map(|host| format!("labels.\"{SOURCE}{host}\",labels.\"{CONFIG}\""));
        let infos = self.list(filters.collect()).await?;
        Ok(infos.into_iter().filter_map(manifest).collect())
    }

    /// Which of these blobs are there, and since when.
    pub(super) async fn here(&self, digests: &BTreeSet<&str>) -> Result<BTreeMap<String, i64>, Status> {
        let filters = digests.iter().take(MAX_DIGESTS).map(|digest| format!("digest=={digest}"));
        let infos = self.list(filters.collect()).await?;
        Ok(infos.into_iter().map(|info| (info.digest, nanos(info.created_at.as_ref()))).collect())
    }

    async fn list(&self, filters: Vec<String>) -> Result<Vec<Info>, Status> {
        // Without a filter everything would be listed.
        if filters.is_empty() {
            return Ok(Vec::new());
        }
        let mut client = self.client.clone();
        let mut parts = client.list(timed(ListContentRequest { filters })).await?.into_inner();
        let (mut infos, mut bytes) = (Vec::new(), 0_usize);
        while let Some(part) = parts.message().await? {
            bytes = bytes.saturating_add(part.encoded_len());
            if bytes > MAX_LIST {
                return Err(Status::resource_exhausted(format!("a list of more than {MAX_LIST} bytes")));
            }
            infos.extend(part.info);
        }
        Ok(infos)
    }

    /// What an image is made of; none when the blob is no manifest.
    pub(super) async fn promises(&self, digest: &str) -> Result<Option<Vec<Promise>>, Status> {
        let ask = ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 };
        let mut client = self.client.clone();
        let mut parts = client.read(timed(ask)).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = parts.message().await? {
            bytes.extend(part.data);
            if bytes.len() > MAX_MANIFEST {
                return Err(Status::resource_exhausted(format!(
                    "a manifest of more than {MAX_MANIFEST} bytes"
                )));
            }
        }
        Ok(layers::promises(&bytes))
    }

    /// What is on its way in.
    pub(super) async fn ingests(&self) -> Result<Vec<Ingest>, Status> {
        let mut client = self.client.clone();
        let answer = client.list_statuses(timed(ListStatusesRequest { filters: Vec::new() })).await?;
        let ingest = |status: containerd_client::services::v1::Status| Ingest {
            since: nanos(status.started_at.as_ref()),
            bytes: u64::try_from(status.offset).unwrap_or(0),
            name: status.r#ref,
        };
        Ok(answer.into_inner().statuses.into_iter().map(ingest).collect())
    }
}

/// The longest that a look may take: its calls one after the other.
pub(super) const PATIENCE: std::time::Duration = TIMEOUT;

fn manifest(info: Info) -> Option<Manifest> {
    let sources = info.labels.iter().filter_map(|(label, value)| {
        let host = label.strip_prefix(SOURCE)?;
        Some((host.to_owned(), value.split(',').map(str::to_owned).collect()))
    });
    let sources = sources.collect();
    let touched = nanos(info.updated_at.as_ref());
    layers::is_digest(&info.digest).then_some(Manifest { digest: info.digest, sources, touched })
}

/// Unix nanoseconds; one that is out of their range is as none.
fn nanos(time: Option<&Timestamp>) -> i64 {
    let time = time.and_then(|t| t.seconds.checked_mul(1_000_000_000)?.checked_add(i64::from(t.nanos)));
    time.unwrap_or(0)
}
