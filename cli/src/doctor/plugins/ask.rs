//! The questions to plugins, each of which changes nothing: who one is (GetInfo), and whether what serves at its endpoint
//! answers. All are asked at once, with a time limit for each question and a limit of each answer's bytes. Owns the
//! asking; never judges. Called by [`super`].

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use gantry_grpc::{dial, status_in_go};
use gantry_proto::csi::GetPluginInfoRequest;
use gantry_proto::csi::identity_client::IdentityClient;
use gantry_proto::deviceplugin as devices;
use gantry_proto::deviceplugin::device_plugin_client::DevicePluginClient;
use gantry_proto::pluginregistration as wire;
use gantry_proto::pluginregistration::registration_client::RegistrationClient;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;

use super::{AskedSocket, PluginAnswer, PluginFolder, PluginInfo, PluginSocket};

/// Bytes of an answer: a name, a path and some versions.
const ANSWER: usize = 64 << 10;

/// In the order of their paths, whoever answers first.
pub(super) async fn all(sockets: Vec<PluginSocket>, root: &Path, patience: Duration) -> Vec<AskedSocket> {
    let mut asking = JoinSet::new();
    for socket in sockets {
        let root = root.to_owned();
        asking.spawn(async move {
            let answer = ask(&socket, &root, patience).await;
            AskedSocket { socket, answer }
        });
    }
    let mut asked = asking.join_all().await;
    asked.sort_by(|a, b| a.socket.path.cmp(&b.socket.path));
    asked
}

async fn ask(socket: &PluginSocket, root: &Path, patience: Duration) -> Result<PluginAnswer, String> {
    if socket.within == PluginFolder::Devices {
        within(patience, options(&socket.path, patience)).await?;
        return Ok(PluginAnswer::Serves);
    }
    let wire::PluginInfo { r#type: kind, name, endpoint, supported_versions: versions } =
        within(patience, info(&socket.path, patience)).await?;
    let endpoint = if endpoint.is_empty() { socket.path.clone() } else { PathBuf::from(endpoint) };
    let service = match kind.as_str() {
        "CSIPlugin" => Some(within(patience, identity(&endpoint, &name, patience)).await),
        "DevicePlugin" => Some(within(patience, options(&endpoint, patience)).await),
        // What a DRA driver could be asked prepares something: that it listens has to do.
        "DRAPlugin" => Some(within(patience, async { dial(&endpoint, patience).await.map(drop) }).await),
        _ => None,
    };
    let folder = folder(root, &name);
    Ok(PluginAnswer::Info(PluginInfo { kind, name, versions, endpoint, service, folder }))
}

async fn within<T>(patience: Duration, answer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(patience, answer)
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", patience.as_secs_f32())))
}

async fn info(socket: &Path, patience: Duration) -> Result<wire::PluginInfo, String> {
    let mut client = RegistrationClient::new(dial(socket, patience).await?).max_decoding_message_size(ANSWER);
    let answer = client.get_info(wire::InfoRequest {}).await;
    answer.map(tonic::Response::into_inner).map_err(|status| status_in_go(&status))
}

/// The kubelet refuses a driver that calls itself otherwise than it is registered, and takes one that does not say.
async fn identity(endpoint: &Path, name: &str, patience: Duration) -> Result<(), String> {
    let mut client = IdentityClient::new(dial(endpoint, patience).await?).max_decoding_message_size(ANSWER);
    match client.get_plugin_info(GetPluginInfoRequest {}).await.map(|told| told.into_inner().name) {
        Ok(told) if told.is_empty() || told == name => Ok(()),
        Ok(told) => Err(format!("the driver there calls itself {told}")),
        Err(status) if status.code() == Code::Unimplemented => Ok(()),
        Err(status) => Err(status_in_go(&status)),
    }
}

async fn options(endpoint: &Path, patience: Duration) -> Result<(), String> {
    let mut client =
        DevicePluginClient::new(dial(endpoint, patience).await?).max_decoding_message_size(ANSWER);
    let answer = client.get_device_plugin_options(devices::Empty {}).await;
    answer.map(drop).map_err(|status| status_in_go(&status))
}

/// Of a name that leads nowhere else.
fn folder(root: &Path, name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let single = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    single && root.join("plugins").join(name).is_dir()
}
