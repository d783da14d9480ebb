//! What a container looks like from within, as `key value` lines that tests can read. Owns the
//! report; never changes anything but the path it is told to try. Called by `main`.

use std::fs;

use rustix::mount::MountFlags;

use crate::ExitResult;

/// Lines of /proc/self/status worth telling. Not `SigIgn`: Rust's own start ignores SIGPIPE, so
/// that a test of it asks busybox.
const STATUS: [&str; 12] = [
    "Uid",
    "Gid",
    "Groups",
    "Umask",
    "NoNewPrivs",
    "Seccomp",
    "SigBlk",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
];

/// Identity, namespaces, descriptors, limits. Nothing has been set up before: no handler, no file.
pub(crate) fn id() -> ExitResult {
    println!("pid {}", std::process::id());
    let status = fs::read_to_string("/proc/self/status")?;
    for line in status.lines() {
        if let Some((key, value)) = line.split_once(':')
            && STATUS.contains(&key)
        {
            println!("{key} {}", value.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    for name in ["mnt", "net", "pid", "uts", "ipc", "cgroup", "user"] {
        println!("ns.{name} {}", fs::read_link(format!("/proc/self/ns/{name}"))?.display());
    }
    println!("cwd {}", std::env::current_dir()?.display());
    println!("hostname {}", fs::read_to_string("/proc/sys/kernel/hostname")?.trim());
    println!("comm1 {}", fs::read_to_string("/proc/1/comm")?.trim());
    println!("oom_score_adj {}", fs::read_to_string("/proc/self/oom_score_adj")?.trim());
    println!("fds {}", descriptors()?.join(" "));
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    println!("session {}", fields.get(3).copied().unwrap_or("?"));
    for line in fs::read_to_string("/proc/self/limits")?.lines().skip(1) {
        println!("limit {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    Ok(0)
}

/// The descriptor that reads the folder is in the list while it is read; it is gone after.
fn descriptors() -> std::io::Result<Vec<String>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        numbers.push(entry?.file_name().to_string_lossy().into_owned());
    }
    numbers.retain(|number| fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok());
    numbers.sort();
    Ok(numbers)
}

/// The environment, one `NAME=value` a line.
pub(crate) fn env() -> ExitResult {
    for (name, value) in std::env::vars() {
        println!("{name}={value}");
    }
    Ok(0)
}

/// Every process that can be seen.
pub(crate) fn processes() -> ExitResult {
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            println!("{name} {}", fs::read_to_string(format!("/proc/{name}/comm"))?.trim());
        }
    }
    Ok(0)
}

/// Writes to a path and says how that went; what went wrong is no failure of this program.
pub(crate) fn try_write(path: &str) -> ExitResult {
    match fs::write(path, "1") {
        Ok(()) => println!("wrote {path}"),
        Err(error) => println!("refused {path}: {error}"),
    }
    Ok(0)
}

/// Mounts a tmpfs and says how that went.
pub(crate) fn try_mount() -> ExitResult {
    match rustix::mount::mount("none", "/tmp", "tmpfs", MountFlags::empty(), None) {
        Ok(()) => println!("mounted"),
        Err(error) => println!("refused: {error}"),
    }
    Ok(0)
}
