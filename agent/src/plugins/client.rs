//! One conversation with a plugin that wants to be used: who it is, whether it can be, and what came of it (plugin
//! registration API v1). Called by [`super`], for one socket at a time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_proto::pluginregistration as wire;
use gantry_proto::pluginregistration::registration_client::RegistrationClient;
use tokio::time::timeout;
use tonic::transport::Channel;

use super::{Handlers, Plugin, Used};
use gantry_grpc::dial;

/// As upstream's.
const DIAL: Duration = Duration::from_secs(10);
const INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);

/// Asks the plugin, has its handler use it, and tells it what came of that.
///
/// # Errors
/// Why it is not used, or was not told that it is.
pub(super) async fn register(socket: &Path, handlers: &Handlers) -> Result<Used, String> {
    let at = socket.display();
    let channel = dial(socket, DIAL).await.map_err(|why| format!("failed to dial socket {why}"))?;
    let mut client = RegistrationClient::new(channel);
    let info = match timeout(INFO, client.get_info(wire::InfoRequest {})).await {
        Ok(Ok(info)) => info.into_inner(),
        Ok(Err(status)) => {
            return Err(format!("failed to get plugin info using RPC GetInfo at socket {at}: {status}"));
        }
        Err(_) => {
            return Err(format!(
                "failed to get plugin info using RPC GetInfo at socket {at}: no answer in time"
            ));
        }
    };
    let wire::PluginInfo { r#type: kind, name, endpoint, supported_versions } = info;
    let endpoint = if endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(endpoint) };
    let plugin = Plugin { name, endpoint, versions: supported_versions };
    let Some(handler) = handlers.get(kind.as_str()).cloned() else {
        let why =
            format!("RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {at}");
        return Err(refuse(&mut client, why).await);
    };
    if let Err(why) = handler.validate(&plugin) {
        let why = format!("RegisterPlugin error -- plugin validation failed with err: {why}");
        return Err(refuse(&mut client, why).await);
    }
    if let Err(why) = handler.register(&plugin).await {
        let why = format!("RegisterPlugin error -- plugin registration failed with err: {why}");
        return Err(refuse(&mut client, why).await);
    }
    // One that does not know would register again, or wait for ever.
    if let Err(why) = notify(&mut client, true, String::new()).await {
        handler.deregister(&plugin).await;
        return Err(format!(
            "RegisterPlugin error -- failed to send registration status at socket {at}, err: {why}"
        ));
    }
    Ok((plugin, handler))
}

/// Tells the plugin why, and returns that.
async fn refuse(client: &mut RegistrationClient<Channel>, why: String) -> String {
    match notify(client, false, why.clone()).await {
        Ok(()) => why,
        Err(untold) => format!("{why}; it was not told: {untold}"),
    }
}

async fn notify(
    client: &mut RegistrationClient<Channel>,
    registered: bool,
    error: String,
) -> Result<(), String> {
    let status = wire::RegistrationStatus { plugin_registered: registered, error };
    match timeout(NOTIFY, client.notify_registration_status(status)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(status.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}
