//! What a kubelet asks of its machine and sets for itself. Owns the files of /proc and the folders of
//! its root; never a pod's. Called by [`super`] and [`super::run`].

#![expect(clippy::disallowed_methods, reason = "a file of the kernel's")]

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::wiring;
use crate::config::{KubeletConfiguration, KubeletFlags};
use crate::registration::{fits, machine};

/// What of the machine a kubelet does not start on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("empty hostname is invalid")]
    NoName,
    #[error("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false")]
    Swap,
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Of protectKernelDefaults, in upstream's words.
    #[error("{0}")]
    Kernel(String),
    #[error(transparent)]
    Setting(#[from] wiring::Error),
    #[error(transparent)]
    Machine(#[from] machine::Error),
    /// More is reserved than there is.
    #[error("{0}")]
    Reserved(String),
    #[error("make {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// As `--hostname-override` or the kernel says, in lower case.
pub(super) fn name(given: &str) -> Result<String, Error> {
    let name = if given.trim().is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        given.to_owned()
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        return Err(Error::NoName);
    }
    Ok(name)
}

/// What of the machine a kubelet is told not to start on; looked at before anything is made on it.
pub(super) fn judge(flags: &KubeletFlags, config: &KubeletConfiguration) -> Result<(), Error> {
    refuse_swap(config, Path::new("/proc/swaps"))?;
    if config.protect_kernel_defaults {
        check_kernel(Path::new("/proc/sys"))?;
    }
    let machine = machine::read(Path::new(&flags.root_dir))?;
    // The name is of no account here.
    fits::check(&wiring::registration(flags, config, "")?, &machine).map_err(Error::Reserved)
}

/// Swap is no memory that anybody asked for, unless failSwapOn says so.
fn refuse_swap(config: &KubeletConfiguration, swaps: &Path) -> Result<(), Error> {
    if config.fail_swap_on == Some(false) {
        return Ok(());
    }
    match fs::read_to_string(swaps) {
        Ok(text) if has_swap(&text) => Err(Error::Swap),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::Read { path: swaps.to_owned(), source }),
    }
}

/// What protectKernelDefaults wants to find; nothing is set.
const KERNEL: [(&str, i64); 6] = [
    ("kernel/keys/root_maxbytes", 25_000_000),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
];

fn check_kernel(folder: &Path) -> Result<(), Error> {
    let mut wrong = Vec::new();
    for (flag, expected) in KERNEL {
        let path = folder.join(flag);
        match fs::read_to_string(&path) {
            Ok(text) if text.trim() == expected.to_string() => {}
            Ok(text) => wrong.push(format!(
                "invalid kernel flag: {flag}, expected value: {expected}, actual value: {}",
                text.trim()
            )),
            Err(error) => wrong.push(format!("open {}: {error}", path.display())),
        }
    }
    match &wrong[..] {
        [] => Ok(()),
        [one] => Err(Error::Kernel(one.clone())),
        many => Err(Error::Kernel(format!("[{}]", many.join(", ")))),
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
pub(super) fn lay_out(root: &Path, pod_logs: &Path) -> Result<(), Error> {
    let made = |path: &Path, mode| {
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(path)
            .map_err(|source| Error::Make { path: path.to_owned(), source })
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
        let swap = format!("{heading}/dev/sda2 partition 1 0 -2\n");
        assert!(has_swap(&swap));
        let file = std::env::temp_dir().join(format!("gantry-swaps-{}", std::process::id()));
        let of = |fail| {
            let config = KubeletConfiguration { fail_swap_on: Some(fail), ..Default::default() };
            refuse_swap(&config, &file)
        };
        of(true).unwrap();
        fs::write(&file, heading).unwrap();
        of(true).unwrap();
        fs::write(&file, swap).unwrap();
        let told = of(true).unwrap_err().to_string();
        assert!(told.starts_with("running with swap on is not supported"), "{told}");
        of(false).unwrap();
        fs::remove_file(file).unwrap();
    }

    #[test]
    fn a_kernel_that_is_not_set_as_wanted_is_told_in_upstreams_words() {
        let folder = std::env::temp_dir().join(format!("gantry-sysctls-{}", std::process::id()));
        fs::create_dir_all(folder.join("kernel/keys")).unwrap();
        fs::create_dir_all(folder.join("vm")).unwrap();
        for (flag, expected) in KERNEL {
            fs::write(folder.join(flag), format!("{expected}\n")).unwrap();
        }
        check_kernel(&folder).unwrap();
        fs::write(folder.join("vm/overcommit_memory"), "0\n").unwrap();
        let one = "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0";
        assert_eq!(check_kernel(&folder).unwrap_err().to_string(), one);
        fs::write(folder.join("kernel/panic"), "0\n").unwrap();
        let two = "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0";
        assert_eq!(check_kernel(&folder).unwrap_err().to_string(), format!("[{two}, {one}]"));
        fs::remove_dir_all(folder).unwrap();
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
