//! Carries out the steps of a leave. Owns the changes of this machine; each is idempotent: what is gone already is fine.
//! Decides nothing. Called by [`super`].

#![expect(clippy::disallowed_methods, reason = "a file that is mounted can't be replaced")]

use std::fs;
use std::io::{ErrorKind, Result as IoResult};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gantry_base::files;
use gantry_cni::leftovers;
use gantry_proto::cri::ListPodSandboxRequest;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;

use super::cgroups;
use super::plan::Undo;
use crate::join::step::JoinChange;
use crate::join::{kubeadm, set};
use crate::{client, runtime_client};

/// Who does them.
pub(super) struct Undoer {
    pub(super) kubeadm: Option<PathBuf>,
    pub(super) admin: Option<kube::Client>,
}

impl Undoer {
    /// Does one step.
    ///
    /// # Errors
    /// When it could not be done.
    pub(super) async fn step(&self, step: &Undo) -> Result<()> {
        match step {
            Undo::JoinChange(JoinChange::Join { cri_socket }) => self.reset(cri_socket).await,
            Undo::JoinChange(JoinChange::File(path)) | Undo::Network(path) => forget(path),
            Undo::JoinChange(JoinChange::Folder(path)) | Undo::Folder(path) => empty(path),
            Undo::Logs(path) => logs(path),
            Undo::JoinChange(JoinChange::Sysctl { name, before }) => set(name, before),
            Undo::Sysctl { name, before } => set(name, before),
            Undo::JoinChange(JoinChange::HostsLine(line)) => without(Path::new("/etc/hosts"), line),
            Undo::Node(name) => self.node(name).await,
            Undo::Cgroups => cgroups::remove(),
            Undo::Rules { before } => Ok(leftovers::remove_rules(before).map(drop)?),
            Undo::Routes(within) => Ok(leftovers::remove_routes(within).map(drop)?),
        }
    }

    /// The runtime has to be there: kubeadm passes over pods that it cannot reach.
    async fn reset(&self, cri_socket: &str) -> Result<()> {
        let program = self.kubeadm.as_ref().context("no kubeadm in PATH: install the package kubeadm")?;
        let channel = client::connect(cri_socket).await.with_context(|| {
            format!("no runtime answers at {cri_socket}, and it has the node's pods: `systemctl start gantry` starts it")
        })?;
        kubeadm::reset(program, cri_socket).await?;
        let mut runtime = runtime_client::runtime(channel);
        let left =
            runtime_client::answer(runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await)?.items;
        ensure!(
            left.is_empty(),
            "{} pods are still there: `crictl --runtime-endpoint {cri_socket} rmp --all --force` removes them",
            left.len()
        );
        Ok(())
    }

    async fn node(&self, name: &str) -> Result<()> {
        let admin = self.admin.as_ref().context("no administrator's kubeconfig")?;
        let nodes: Api<Node> = Api::all(admin.clone());
        match nodes.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            done => done.map(drop).with_context(|| format!("delete the Node {name}")),
        }
    }
}

fn ignore_not_found(done: IoResult<()>) -> IoResult<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes a file.
///
/// # Errors
/// When it stays.
pub(super) fn forget(path: &Path) -> Result<()> {
    ignore_not_found(fs::remove_file(path)).with_context(|| format!("remove {}", path.display()))
}

/// All of it was made after the join. A link is removed, and never followed.
fn logs(path: &Path) -> Result<()> {
    match ignore_not_found(fs::remove_dir_all(path)) {
        // A mount of somebody's: it is empty now.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(()),
        done => done.with_context(|| format!("remove {}", path.display())),
    }
}

/// What others have put there is theirs.
fn empty(path: &Path) -> Result<()> {
    match ignore_not_found(fs::remove_dir(path)) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
        // A mount of somebody's.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(()),
        done => done.with_context(|| format!("remove {}", path.display())),
    }
}

/// The file without the line; all else stays as it is.
fn without(path: &Path, line: &str) -> Result<()> {
    let at = || format!("remove a line from {}", path.display());
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.with_context(at)?,
    };
    let kept: String =
        text.split_inclusive('\n').filter(|found| found.trim_end_matches('\n') != line).collect();
    if kept == text {
        return Ok(());
    }
    let mode = fs::metadata(path).with_context(at)?.permissions().mode() & 0o7777;
    match files::replace(path, kept.as_bytes(), mode) {
        // In a container it is a mount, which has no other in its place.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => fs::write(path, kept).with_context(at),
        done => done.with_context(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_goes_and_the_rest_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        fs::write(&path, "127.0.0.1 localhost\n10.0.0.1 a # gantry join\n\n10.0.0.1 a").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        without(&path, "10.0.0.1 a # gantry join").unwrap();
        without(&path, "10.0.0.1 a # gantry join").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1 localhost\n\n10.0.0.1 a");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        without(&folder.path().join("none"), "x").unwrap();
    }

    #[test]
    fn logs_go_with_their_folder_and_nothing_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (pods, elsewhere) = (folder.path().join("pods"), folder.path().join("elsewhere"));
        fs::create_dir_all(pods.join("default_web_1/web")).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(pods.join("default_web_1/web/0.log"), "serving").unwrap();
        fs::write(elsewhere.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&elsewhere, pods.join("link")).unwrap();
        logs(&pods).unwrap();
        logs(&pods).unwrap();
        assert!(!pods.exists() && elsewhere.join("kept").exists());
    }

    #[test]
    fn only_what_is_empty_or_gone_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::create_dir_all(path.join("b")).unwrap();
        empty(&path).unwrap();
        assert!(path.is_dir());
        empty(&path.join("b")).unwrap();
        empty(&path).unwrap();
        empty(&path).unwrap();
        assert!(!path.exists());
        forget(&path).unwrap();
    }
}
