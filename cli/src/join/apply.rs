//! Carries out the steps of a join. Owns the changes of this machine and their entries in the record, which come first;
//! decides nothing. Called by [`super`].

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use gantry_base::files;
use serde_json::{Value, json};

use super::discovery::Token;
use super::record::{self, JoinRecord};
use super::step::{JoinChange, JoinStep, sysctl_path};
use super::{admin, kubeadm};

/// Who does them.
pub(super) struct Doer<'a> {
    pub(super) kubeadm: PathBuf,
    pub(super) cri_socket: String,
    pub(super) record: JoinRecord,
    /// The administrator, where the token is to be made.
    pub(super) admin: Option<&'a kube::Client>,
    /// The one that was made.
    token: Option<Token>,
}

impl<'a> Doer<'a> {
    pub(super) fn new(
        kubeadm: PathBuf,
        cri_socket: String,
        record: JoinRecord,
        admin: Option<&'a kube::Client>,
    ) -> Self {
        Self { kubeadm, cri_socket, record, admin, token: None }
    }

    /// Does one step. What could not be done and need not be is a text.
    ///
    /// # Errors
    /// When it could not be done.
    pub(super) async fn step(&mut self, step: &JoinStep) -> Result<Option<String>> {
        match step {
            JoinStep::Reset { cri_socket } => kubeadm::reset(&self.kubeadm, cri_socket).await?,
            JoinStep::Folder(path) => {
                self.note(JoinChange::Folder(path.clone()))?;
                folder(path)?;
            }
            JoinStep::File { path, content } => {
                self.note(JoinChange::File(path.clone()))?;
                write(path, content, 0o644)?;
            }
            JoinStep::Module { name, fails } => match (load(name), fails) {
                (Err(error), Some(what)) => return Ok(Some(format!("{error:#}; {what}"))),
                (done, _) => done?,
            },
            JoinStep::Sysctl { name, now, wanted } => {
                self.note(JoinChange::Sysctl { name: (*name).to_owned(), before: now.clone() })?;
                set(name, wanted)?;
            }
            JoinStep::HostsLine(line) => {
                self.note(JoinChange::HostsLine(line.clone()))?;
                append(Path::new("/etc/hosts"), line)?;
            }
            JoinStep::Token => {
                let admin = self.admin.context("no administrator's kubeconfig")?;
                self.token = Some(admin::make_token(admin, &self.record.node).await?);
            }
            JoinStep::Join { config, content } => self.join(config, content).await?,
        }
        Ok(None)
    }

    /// The configuration has a token in it: it is there for the time of the call.
    async fn join(&mut self, config: &Path, content: &str) -> Result<()> {
        let mut document: Value = serde_json::from_str(content).context("kubeadm's configuration")?;
        if let Some(token) = &self.token {
            document["discovery"]["bootstrapToken"]["token"] = json!(token.to_string());
        }
        let noted = self.note(JoinChange::Join { cri_socket: self.cri_socket.clone() });
        // Whatever fails from here on, the token is deleted.
        let joined = match noted.and_then(|()| write(config, &document.to_string(), 0o600)) {
            Ok(()) => kubeadm::join(&self.kubeadm, config).await,
            failed => failed,
        };
        let removed = match fs::remove_file(config) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.with_context(|| format!("remove {}", config.display())),
        };
        let forgotten = match (&self.token, self.admin) {
            (Some(token), Some(admin)) => admin::delete_token(admin, token).await,
            _ => Ok(()),
        };
        joined?;
        self.record.joined = true;
        self.record.write(Path::new(record::PATH))?;
        removed.and(forgotten)
    }

    fn note(&mut self, made: JoinChange) -> Result<()> {
        self.record.note(made);
        self.record.write(Path::new(record::PATH))
    }
}

fn folder(path: &Path) -> Result<()> {
    DirBuilder::new().mode(0o755).create(path).or_else(|error| match error.kind() {
        ErrorKind::AlreadyExists if path.is_dir() => Ok(()),
        _ => Err(error).with_context(|| format!("make {}", path.display())),
    })
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    files::replace(path, text.as_bytes(), mode).with_context(|| format!("write {}", path.display()))
}

/// Writes a sysctl of this network namespace or of the machine.
pub(crate) fn set(name: &str, value: &str) -> Result<()> {
    let path = sysctl_path(name);
    fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
}

fn append(path: &Path, line: &str) -> Result<()> {
    let at = || format!("add a line to {}", path.display());
    let before = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text.with_context(at)?,
    };
    let start = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    let mut file = OpenOptions::new().create(true).append(true).open(path).with_context(at)?;
    file.write_all(format!("{start}{line}\n").as_bytes()).with_context(at)
}

/// Has the kernel run its own modprobe: for a file system by its name, for another module by that of a network device
/// that is asked for (netdevice(7); `dev_load` of the kernel). Nothing else is done with either.
fn load(name: &str) -> Result<()> {
    let there = || match name {
        "overlay" => fs::read_to_string("/proc/filesystems").is_ok_and(|text| text.contains("\toverlay\n")),
        _ => Path::new("/sys/module").join(name).exists(),
    };
    if there() {
        return Ok(());
    }
    match name {
        "overlay" => {
            rustix::mount::fsopen("overlay", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC)
                .with_context(|| format!("the kernel cannot load {name}: modprobe {name} says why"))?;
        }
        _ => {
            let socket =
                rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
            let socket = socket.context("a socket to ask for a module with")?;
            match rustix::net::netdevice::name_to_index(&socket, name) {
                Ok(_) | Err(rustix::io::Errno::NODEV) => {}
                Err(error) => bail!("ask the kernel for the module {name}: {error}"),
            }
        }
    }
    ensure!(there(), "the kernel did not load the module {name}: `modprobe {name}` says why");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_line_whatever_stands_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        append(&path, "10.0.0.1 a").unwrap();
        fs::write(&path, "127.0.0.1 localhost").unwrap();
        append(&path, "10.0.0.1 a").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1 localhost\n10.0.0.1 a\n");
    }

    #[test]
    fn a_module_that_is_not_there_is_told_with_the_remedy() {
        let error = format!("{:#}", load("gantry_none").unwrap_err());
        assert!(error.contains("`modprobe gantry_none`") || error.contains("ask the kernel"), "{error}");
    }

    #[test]
    fn a_folder_that_is_there_is_fine() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        folder(&path).unwrap();
        folder(&path).unwrap();
        assert!(folder(&root.path().join("b/c")).is_err());
    }
}
