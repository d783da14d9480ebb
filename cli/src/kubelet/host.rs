//! What a kubelet asks of its machine and sets for itself. Owns the files of /proc and the folders of
//! its root; never a pod's. Called by [`super`].

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use gantry_agent::config::KubeletConfiguration;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Cgroup v2 alone.
pub(super) fn is_unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// As `--hostname-override` or the kernel says, in lower case.
pub(super) fn name(given: &str) -> Result<String> {
    let name = if given.trim().is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        given.to_owned()
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        bail!("empty hostname is invalid");
    }
    Ok(name)
}

/// Swap is no memory that anybody asked for.
pub(super) fn refuse_swap() -> Result<()> {
    match fs::read_to_string("/proc/swaps") {
        Ok(text) if has_swap(&text) => bail!(
            "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"
        ),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).context("read /proc/swaps"),
    }
}

/// The first line is the heading.
fn has_swap(text: &str) -> bool {
    text.lines().skip(1).any(|line| !line.trim().is_empty())
}

/// What the kernel lets this process do, and when it ends it for memory.
pub(super) fn settle(config: &KubeletConfiguration) {
    let score = config.oom_score_adj.unwrap_or_default().to_string();
    if let Err(error) = fs::write("/proc/self/oom_score_adj", score) {
        tracing::warn!(err = %error, "Failed to ApplyOOMScoreAdj");
    }
    let files = u64::try_from(config.max_open_files).ok();
    let limit = Rlimit { current: files, maximum: files };
    if setrlimit(Resource::Nofile, limit).is_err() {
        // As far as it goes.
        let most = getrlimit(Resource::Nofile).maximum;
        if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }) {
            tracing::warn!(err = %error, "Failed to set rlimit on max file handles");
        }
    }
}

/// Folders that others look for below a kubelet's root.
pub(super) fn lay_out(root: &Path, pod_logs: &Path) -> Result<()> {
    let made = |path: &Path, mode| {
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(path)
            .with_context(|| format!("make {}", path.display()))
    };
    made(root, 0o750)?;
    for name in ["pods", "plugins", "plugins_registry", "pod-resources", "device-plugins"] {
        made(&root.join(name), 0o750)?;
    }
    made(&root.join("checkpoints"), 0o700)?;
    made(pod_logs, 0o750)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_what_stands_below_the_heading() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!has_swap(heading));
        assert!(has_swap(&format!("{heading}/dev/sda2 partition 1 0 -2\n")));
    }

    #[test]
    fn a_name_is_lower_case_and_never_empty() {
        assert_eq!(name(" Node-1 ").unwrap(), "node-1");
        assert!(!name("").unwrap().is_empty());
    }

    #[test]
    fn the_root_is_laid_out_as_upstreams() {
        let folder = std::env::temp_dir().join(format!("gantry-layout-{}", std::process::id()));
        lay_out(&folder.join("kubelet"), &folder.join("logs")).unwrap();
        lay_out(&folder.join("kubelet"), &folder.join("logs")).unwrap();
        assert!(folder.join("kubelet/plugins_registry").is_dir());
        fs::remove_dir_all(folder).unwrap();
    }
}
