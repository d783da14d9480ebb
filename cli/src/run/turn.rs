//! One agent after the other: whoever starts waits for one that is about to end, and says who is here
//! when it stays. Owns the waiting and the words; never ends anybody. Called by `gantry run`, in the
//! foreground and detached.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use gantry_agent::root::{self, Root};
use gantry_proto::operator::ListPodsRequest;
use tokio::net::UnixStream;

use crate::client;
use crate::detach::reach;

/// For an agent without pods: one in the foreground ends then.
const LEAVING: Duration = Duration::from_secs(2);
/// For one that is there and says nothing: one that was just killed may still be dialled, for a moment.
const SILENT: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);

/// Who serves at a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Nobody,
    /// It is here to stay.
    WithPods,
    /// It ends, or has nothing to do.
    WithoutPods,
    /// It does not answer.
    Silent,
}

/// Whose pods they become.
#[derive(Debug)]
pub(crate) enum PodOwner {
    /// The root folder is free, and nobody serves at the socket.
    Ours(Root),
    /// Another agent stays, and may take them.
    Theirs,
}

/// Waits for one that ends. When one stays, pods are added to it if they `may_join`.
///
/// # Errors
/// When another agent stays that cannot take them.
pub(crate) async fn wait(root_dir: &Path, socket: &Path, state: &Path, may_join: bool) -> Result<PodOwner> {
    let begun = Instant::now();
    loop {
        let other = look(socket).await;
        let root = Root::open(root_dir);
        let patience = match (other, &root) {
            (Other::Nobody, Ok(_)) => return Ok(PodOwner::Ours(root?)),
            (Other::WithPods, _) => Duration::ZERO,
            (Other::Silent, _) => SILENT,
            (Other::WithoutPods, _) | (Other::Nobody, Err(root::Error::Taken { .. })) => LEAVING,
            (Other::Nobody, Err(_)) => return Ok(PodOwner::Ours(root?)),
        };
        // Let go of at once: the other one may be about to look.
        let taken = root.err();
        if begun.elapsed() >= patience {
            if may_join && matches!(other, Other::WithPods | Other::WithoutPods) {
                return Ok(PodOwner::Theirs);
            }
            return refuse(other, taken, socket, state);
        }
        tokio::time::sleep(STEP).await;
    }
}

fn refuse(other: Other, taken: Option<root::Error>, socket: &Path, state: &Path) -> Result<PodOwner> {
    let own = "a second node on this machine needs --root, --state and --agent-socket of its own";
    if let (Other::Nobody, Some(error)) = (other, taken) {
        return Err(error).context(own);
    }
    let reach = reach(state, socket);
    bail!(
        "an agent serves at {} already: `gantry ps` shows its pods, `gantry run FILE` adds more, `gantry down{reach}` ends \
         it and them; {own}",
        socket.display()
    )
}

async fn look(socket: &Path) -> Other {
    if UnixStream::connect(socket).await.is_err() {
        return Other::Nobody;
    }
    let asked = async {
        let mut client = client::dial(socket).await?;
        client::answer(client.list_pods(ListPodsRequest::default()).await)
    };
    match tokio::time::timeout(SILENT, asked).await {
        Ok(Ok(list)) if list.pods.is_empty() => Other::WithoutPods,
        Ok(Ok(_)) => Other::WithPods,
        Ok(Err(_)) | Err(_) => Other::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("gantry-turn-{name}-{}", std::process::id()))
    }

    #[tokio::test]
    async fn one_that_ends_is_waited_for() {
        let folder = folder("ends");
        let (root, socket) = (folder.join("root"), folder.join("agent.sock"));
        let held = Root::open(&root).unwrap();
        let mut next = Box::pin(wait(&root, &socket, &folder, true));
        let waits =
            std::future::poll_fn(|context| std::task::Poll::Ready(next.as_mut().poll(context).is_pending()));
        assert!(waits.await, "it is held still");
        drop(held);
        next.await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn one_that_stays_is_named_with_the_way_round() {
        let folder = folder("stays");
        let root = folder.join("root");
        let held = Root::open(&root).unwrap();
        let error =
            format!("{:#}", wait(&root, &folder.join("agent.sock"), &folder, true).await.unwrap_err());
        assert!(error.contains("--root, --state and --agent-socket of its own"), "{error}");
        assert!(error.contains("another agent works in "), "{error}");
        drop(held);
        let usual = (Path::new("/run/gantry/agent.sock"), Path::new("/run/gantry"));
        let error = refuse(Other::WithPods, None, usual.0, usual.1).unwrap_err().to_string();
        let want = "an agent serves at /run/gantry/agent.sock already: `gantry ps` shows its pods, `gantry run FILE` adds more, `gantry down` ends it";
        assert!(error.starts_with(want), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
