//! Dead links in `/var/log/containers` ([`crate::logs::links`]). Owns their sweep; never touches a log. Started by the
//! kubelet.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_trace::current;
use gantry_trace::span::Tracer;
use tokio::fs;

use super::Keeper;
use crate::logs::links::{SUFFIX, id_of};
use gantry_model::drain::DrainWatcher;

/// As upstream collects what containers leave.
const EVERY: Duration = Duration::from_secs(60);

/// Removes the links that lead nowhere, again and again, until the drain.
pub(crate) async fn sweep_for_ever(
    folder: PathBuf,
    keeper: Arc<dyn Keeper>,
    tracer: Option<Tracer>,
    mut drain: DrainWatcher,
) {
    loop {
        tokio::select! {
            () = drain.wait_started() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
        // Upstream's collector of dead containers does it last.
        let swept = sweep(&folder, keeper.as_ref());
        if let Err(error) = current::root(tracer.as_ref(), "Containers/GarbageCollect", swept).await {
            tracing::warn!(folder = %folder.display(), error, "dead links of container logs stay");
        }
    }
}

/// One look. The link of a container that runs stays: its log is missing for a moment when it is
/// rotated.
async fn sweep(folder: &Path, keeper: &dyn Keeper) -> Result<(), String> {
    let mut dead = Vec::new();
    let mut entries = match fs::read_dir(folder).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| error.to_string())?,
    };
    while let Some(entry) = entries.next_entry().await.map_err(|error| error.to_string())? {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let is_link = entry.file_type().await.is_ok_and(|kind| kind.is_symlink());
        let leads_nowhere = matches!(
            fs::metadata(&path).await,
            Err(error) if error.kind() == ErrorKind::NotFound
        );
        if name.ends_with(SUFFIX) && is_link && leads_nowhere {
            dead.push((path, name));
        }
    }
    if dead.is_empty() {
        return Ok(());
    }
    // Asked after the look: what started since has no dead link.
    let running = keeper.running().await.map_err(|failure| failure.message)?;
    for (path, name) in dead {
        let runs = id_of(&name).is_some_and(|id| running.iter().any(|full| full.starts_with(id)));
        if runs {
            continue;
        }
        match fs::remove_file(&path).await {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "Failed to remove container log dead symlink");
            }
            _ => tracing::debug!(path = %path.display(), "Removed symlink"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::gc::fake::FakeKeeper;

    #[tokio::test]
    async fn dead_links_go_but_those_of_running_containers_stay() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        std::fs::write(at("log"), "").unwrap();
        symlink(at("log"), at("a_b_c-aaaaaa.log")).unwrap();
        symlink(at("none"), at("a_b_c-bbbbbb.log")).unwrap();
        symlink(at("none"), at("a_b_c-cccccccc.log")).unwrap();
        symlink(at("none"), at("other")).unwrap();
        std::fs::write(at("file.log"), "").unwrap();
        // The name was cut: the ID goes on.
        let keeper = FakeKeeper::running(&["cccccccccccccccc"]);
        sweep(root.path(), &keeper).await.unwrap();
        let mut left: Vec<String> = std::fs::read_dir(root.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["a_b_c-aaaaaa.log", "a_b_c-cccccccc.log", "file.log", "log", "other"]);
        sweep(&at("nowhere"), &keeper).await.unwrap();
    }
}
