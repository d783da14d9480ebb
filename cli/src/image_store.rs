//! The images of this node: by the runtime that runs, or, where none does, by opening its store under the runtime's lock.
//! Owns the choice and its words; never a call. Called by pull, images, rmi and load.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use gantry_shim::config::RuntimeConfig;
use gantry_shim::runtime::Error;
use gantry_shim::runtime::images_alone::ImagesAlone;
use tonic::transport::Channel;

use crate::args::{DEFAULT_AGENT_SOCKET, DEFAULT_ROOT, RuntimeEndpoint, StoreFlags};
use crate::in_process::InProcess;
use crate::runtime_client::RuntimeSearch;
use crate::{client, detach, runtime, runtime_client};

/// A way to the images.
#[derive(Debug)]
pub(crate) struct ImageStore {
    channel: Channel,
    /// Where no runtime runs.
    alone: Option<InProcess>,
}

impl ImageStore {
    /// The runtime's, or those of this node alone; a node that has none gets a store.
    ///
    /// # Errors
    /// When a runtime runs and does not answer, and when this user may not reach it or the store.
    pub(crate) async fn find_or_make(endpoint: &RuntimeEndpoint, flags: StoreFlags) -> Result<Self> {
        let usual = detach::runtime_socket(&flags.state);
        match look(endpoint, &flags, &usual).await? {
            Some(channel) => Ok(Self { channel, alone: None }),
            None => Self::open(endpoint, flags, &usual).await,
        }
    }

    /// The same, for who only reads or removes: none where neither a runtime nor a store is, and nothing is made.
    ///
    /// # Errors
    /// As [`Self::find_or_make`].
    pub(crate) async fn find(endpoint: &RuntimeEndpoint, flags: StoreFlags) -> Result<Option<Self>> {
        let usual = detach::runtime_socket(&flags.state);
        match look(endpoint, &flags, &usual).await? {
            Some(channel) => Ok(Some(Self { channel, alone: None })),
            None if !ImagesAlone::is_there(&flags.root) => Ok(None),
            None => Self::open(endpoint, flags, &usual).await.map(Some),
        }
    }

    async fn open(endpoint: &RuntimeEndpoint, flags: StoreFlags, usual: &Path) -> Result<Self> {
        let root = flags.root.clone();
        let opened = ImagesAlone::open(config(flags)).await;
        let opened = opened.map_err(|error| refusal_error(error, &root, &endpoint.agent_socket, usual))?;
        let (alone, channel) = InProcess::images(opened).await?;
        Ok(Self { channel, alone: Some(alone) })
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Without a runtime: what came is on disk when this returns.
    ///
    /// # Errors
    /// When it is not.
    pub(crate) async fn close(self) -> Result<()> {
        match self.alone {
            Some(alone) => alone.stop().await.context("write the images to the disk"),
            None => Ok(()),
        }
    }
}

/// The runtime that runs; none where the images of this node may be opened in its place.
async fn look(endpoint: &RuntimeEndpoint, flags: &StoreFlags, usual: &Path) -> Result<Option<Channel>> {
    match runtime_client::find(endpoint, usual).await? {
        RuntimeSearch::Runtime(channel) => Ok(Some(channel)),
        RuntimeSearch::Nobody(_) if is_of_one_node(endpoint, flags) => Ok(None),
        RuntimeSearch::Nobody(error) => Err(error),
    }
}

/// Whether agent and root belong together as far as one can tell: the images of another node than that of the agent that
/// was named are not those that are meant.
fn is_of_one_node(endpoint: &RuntimeEndpoint, flags: &StoreFlags) -> bool {
    endpoint.agent_socket == Path::new(DEFAULT_AGENT_SOCKET) || flags.root != Path::new(DEFAULT_ROOT)
}

/// As `gantry run` would have them.
fn config(flags: StoreFlags) -> RuntimeConfig {
    let StoreFlags { root, state, registry_hosts_dir, registry_auth_file, programs_dir } = flags;
    RuntimeConfig {
        root,
        state,
        programs_dir,
        registry_hosts_dir: Some(registry_hosts_dir),
        registry_auth_file: registry_auth_file.or_else(runtime::own_auth_file),
        ..RuntimeConfig::default()
    }
}

fn refusal_error(error: Error, root: &Path, agent: &Path, runtime: &Path) -> anyhow::Error {
    let nobody =
        format!("neither an agent answers at {} nor a runtime at {}", agent.display(), runtime.display());
    match error {
        Error::InUse { path, holder } => anyhow!(
            "{nobody}, but {holder} holds {}: try again when it has ended; a runtime's socket is passed with \
             --container-runtime-endpoint, an agent's with --agent-socket",
            path.display()
        ),
        Error::NotRoot => anyhow!(
            "{nobody}, and only root may open the images in {}: run it as root, as in `{}`",
            root.display(),
            client::this_with_sudo()
        ),
        error => {
            anyhow::Error::from(error).context(format!("{nobody}; open the images in {}", root.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use gantry_proto::cri::ListImagesRequest;

    use super::*;

    fn endpoint(agent_socket: &Path) -> RuntimeEndpoint {
        RuntimeEndpoint { container_runtime_endpoint: None, agent_socket: agent_socket.to_owned() }
    }

    fn flags(folder: &Path) -> StoreFlags {
        let programs = folder.join("programs");
        std::fs::create_dir_all(&programs).unwrap();
        for name in ["gantry-monitor", "gantry-pause", "gantry-unpack"] {
            std::fs::write(programs.join(name), "a program").unwrap();
        }
        StoreFlags {
            root: folder.join("root"),
            state: folder.join("state"),
            registry_hosts_dir: folder.join("certs.d"),
            registry_auth_file: None,
            programs_dir: Some(programs),
        }
    }

    #[tokio::test]
    async fn without_a_runtime_the_store_is_opened_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&folder.path().join("agent.sock"));
        assert!(ImageStore::find(&endpoint, flags(folder.path())).await.unwrap().is_none());
        assert!(
            !folder.path().join("root").exists() && !folder.path().join("state").exists(),
            "only looked at"
        );
        for _ in 0..2 {
            let store = ImageStore::find_or_make(&endpoint, flags(folder.path())).await.unwrap();
            let mut images = runtime_client::images(store.channel());
            let list = images.list_images(ListImagesRequest::default()).await.unwrap().into_inner().images;
            assert!(list.is_empty());
            drop(images);
            store.close().await.unwrap();
        }
        let found = ImageStore::find(&endpoint, flags(folder.path())).await.unwrap();
        found.expect("there is a store now").close().await.unwrap();
    }

    #[tokio::test]
    async fn a_runtime_that_holds_the_lock_and_does_not_answer_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let agent = folder.path().join("agent.sock");
        let held = ImageStore::find_or_make(&endpoint(&agent), flags(folder.path())).await.unwrap();
        let error = ImageStore::find(&endpoint(&agent), flags(folder.path())).await.unwrap_err().to_string();
        let lock = folder.path().join("root/lock");
        let this = format!("but process {} (`", std::process::id());
        assert!(error.contains(&this), "{error}");
        assert!(
            error.contains(&format!("`) holds {}: try again when it has ended", lock.display())),
            "{error}"
        );
        held.close().await.unwrap();
    }

    #[tokio::test]
    async fn an_agent_that_was_named_and_is_not_there_is_no_reason_to_open_the_usual_store() {
        let folder = tempfile::tempdir().unwrap();
        let named = endpoint(&folder.path().join("agent.sock"));
        let usual = StoreFlags { root: DEFAULT_ROOT.into(), ..flags(folder.path()) };
        assert!(!is_of_one_node(&named, &usual));
        assert!(is_of_one_node(&endpoint(Path::new(DEFAULT_AGENT_SOCKET)), &usual));
        assert!(is_of_one_node(&named, &flags(folder.path())));
        let error = ImageStore::find(&named, usual).await.unwrap_err();
        assert!(error.to_string().starts_with("neither an agent answers at "), "{error:#}");
    }
}
