//! What `gantry doctor --deep` asks of the image store: the runtime that runs, or the store itself where none does, which is
//! opened as at a runtime's start. Owns asking; never judges. Called by [`super`].

use std::path::{Path, PathBuf};

use anyhow::Result;
use gantry_proto::runtime_ext::runtime_extensions_client::RuntimeExtensionsClient;
use gantry_proto::runtime_ext::{CheckStoreRequest, CheckStoreResponse, StoreFault};
use tonic::transport::Channel;

use crate::args::{DoctorFlags, RuntimeEndpoint, StoreFlags};
use crate::image_store::ImageStore;
use crate::runtime_client;

/// Of the images and layers of this node.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StoreFacts {
    /// There never was an image below this folder.
    None(PathBuf),
    /// Nobody could look, and why.
    Unknown(String),
    Looked {
        images: u64,
        layers: u64,
        bytes: u64,
        faults: Vec<StoreFault>,
    },
}

/// Takes as long as it takes to look at each file of each layer.
pub(super) async fn look(flags: DoctorFlags) -> StoreFacts {
    let root = flags.root.clone();
    match ask(flags).await {
        Ok(None) => StoreFacts::None(root),
        Ok(Some(CheckStoreResponse { images, layers, bytes, faults })) => {
            StoreFacts::Looked { images, layers, bytes, faults }
        }
        Err(error) => StoreFacts::Unknown(format!("{error:#}")),
    }
}

/// None where there is no store: it is not made for a look.
async fn ask(flags: DoctorFlags) -> Result<Option<CheckStoreResponse>> {
    let DoctorFlags { root, state, programs_dir, .. } = flags;
    // Those of this node, and no other's.
    let endpoint =
        RuntimeEndpoint { container_runtime_endpoint: None, agent_socket: state.join("agent.sock") };
    let store = StoreFlags {
        root,
        state,
        registry_hosts_dir: Path::new("/etc/containerd/certs.d").to_owned(),
        registry_auth_file: None,
        programs_dir,
    };
    let Some(store) = ImageStore::find(&endpoint, store).await? else { return Ok(None) };
    let answer = check(store.channel()).await;
    store.close().await?;
    answer.map(Some)
}

async fn check(channel: Channel) -> Result<CheckStoreResponse> {
    let mut client = RuntimeExtensionsClient::new(channel);
    runtime_client::answer(client.check_store(CheckStoreRequest {}).await)
}
