//! The kubelet's side of registration: a gRPC server on `ROOT/device-plugins/kubelet.sock`. Owns the socket, the folder it
//! is in and what is checked of a request; never keeps a plugin. Called by [`super::DeviceManager::serve`].

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Component, Path, PathBuf};

use gantry_proto::deviceplugin as wire;
use gantry_proto::deviceplugin::registration_server::{Registration, RegistrationServer};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::DeviceManager;
use crate::admission::is_extended_resource;

/// The version of the API.
pub(super) const VERSION: &str = "v1beta1";
/// The socket's name. Plugins wait for it to be made anew, and register again.
pub(super) const SOCKET: &str = "kubelet.sock";

/// Makes the folder and takes away the sockets in it, as upstream: a plugin that sees its own go registers again.
///
/// # Errors
/// When the folder cannot be made or read.
pub(super) fn clear(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_socket()
            && let Err(error) = std::fs::remove_file(entry.path())
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(path = %entry.path().display(), %error, "a plugin's socket stays");
        }
    }
    Ok(())
}

/// Listens on the socket, in place of an earlier one.
///
/// # Errors
/// When it cannot be made.
pub(super) fn listen(folder: &Path) -> io::Result<UnixListener> {
    let path = folder.join(SOCKET);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(&path),
    }
}

/// Serves until the listener fails.
///
/// # Errors
/// Why it does no longer.
pub(super) async fn serve(listener: UnixListener, folder: &Path, manager: DeviceManager) -> io::Result<()> {
    let service = RegistrationServer::new(Service { folder: folder.to_owned(), manager });
    let server = Server::builder().add_service(service);
    server.serve_with_incoming(UnixListenerStream::new(listener)).await.map_err(io::Error::other)
}

#[derive(Debug)]
struct Service {
    folder: PathBuf,
    manager: DeviceManager,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        let wire::RegisterRequest { version, endpoint, resource_name, options: _ } = request.into_inner();
        self.manager.count_registration(&resource_name);
        let socket = check(&self.folder, &version, &endpoint, &resource_name);
        let registered = match socket {
            Ok(socket) => self.manager.connect(&resource_name, &socket).await,
            Err(why) => Err(why),
        };
        match registered {
            Ok(()) => Ok(Response::new(wire::Empty {})),
            Err(why) => {
                tracing::warn!(resource = resource_name, endpoint, why, "a device plugin is not registered");
                Err(Status::unknown(why))
            }
        }
    }
}

/// Whether a plugin of the folder plugins_registry, which is named after its resource, can be used.
///
/// # Errors
/// Why not, in upstream's words.
pub(super) fn validate(resource: &str, versions: &[String]) -> Result<(), String> {
    if !versions.iter().any(|version| version == VERSION) {
        let versions = versions.join(" ");
        return Err(format!(
            "manager version, {VERSION}, is not among plugin supported versions [{versions}]"
        ));
    }
    if !is_extended_resource(resource) {
        return Err(format!(
            "invalid name of device plugin socket: the ResourceName {resource:?} is invalid"
        ));
    }
    Ok(())
}

/// The plugin's socket.
fn check(folder: &Path, version: &str, endpoint: &str, resource: &str) -> Result<PathBuf, String> {
    if version != VERSION {
        return Err(format!(
            "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
        ));
    }
    if !is_extended_resource(resource) {
        return Err(format!("the ResourceName {resource:?} is invalid"));
    }
    let endpoint = Path::new(endpoint);
    let within = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if endpoint.as_os_str().is_empty() || !endpoint.components().all(within) {
        return Err(format!(
            "the endpoint {:?} is no socket in {}: name one in that folder",
            endpoint.display().to_string(),
            folder.display()
        ));
    }
    Ok(folder.join(endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(version: &str, endpoint: &str, resource: &str) -> String {
        check(Path::new("/plugins"), version, endpoint, resource).unwrap_err()
    }

    #[test]
    fn a_request_names_the_version_a_resource_of_a_domain_and_a_socket_of_the_folder() {
        let socket = check(Path::new("/plugins"), "v1beta1", "gpu.sock", "vendor.com/gpu").unwrap();
        assert_eq!(socket, Path::new("/plugins/gpu.sock"));
        assert_eq!(
            refused("v1alpha1", "gpu.sock", "vendor.com/gpu"),
            "requested API version \"v1alpha1\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
        );
        for name in [
            "cpu",
            "kubernetes.io/gpu",
            "vendor.com/",
            "/gpu",
            "a/b/c",
            "requests.vendor.com/gpu",
            "Vendor!/x",
        ] {
            assert_eq!(refused("v1beta1", "gpu.sock", name), format!("the ResourceName {name:?} is invalid"));
        }
        for endpoint in ["", "../x.sock", "/run/x.sock", "a/../../x"] {
            assert!(
                refused("v1beta1", endpoint, "vendor.com/gpu").contains("no socket in /plugins"),
                "{endpoint}"
            );
        }
    }

    #[test]
    fn old_sockets_go_and_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let plugins = folder.path().join("device-plugins");
        clear(&plugins).unwrap();
        drop(std::os::unix::net::UnixListener::bind(plugins.join("gpu.sock")).unwrap());
        std::fs::write(plugins.join("kubelet_internal_checkpoint"), "x").unwrap();
        std::fs::create_dir(plugins.join("of-a-plugin")).unwrap();
        clear(&plugins).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&plugins).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["kubelet_internal_checkpoint", "of-a-plugin"]);
    }
}
