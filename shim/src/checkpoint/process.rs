//! What /proc says of a container's first process: its mounts, its namespaces, and where its streams lead. Owns the
//! reading; `plan` decides. Blocks.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gantry_base::mountinfo;
use serde_json::Value;

use super::plan::ProcessInfo;
use crate::error::checkpoint::{Error, file};

/// Looks.
///
/// # Errors
/// When the process is gone.
pub(super) fn look(pid: i32) -> Result<ProcessInfo, Error> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let read = |path: &Path| fs::read(path).map_err(file("read", path));
    let node = read(Path::new("/proc/self/mountinfo"))?;
    let mounts = mountinfo::parse(&read(&folder.join("mountinfo"))?);
    let own = inode(Path::new("/proc/self/ns/net"))?;
    let network = inode(&folder.join("ns/net"))?;
    let mut files = Vec::new();
    for stream in 0..3 {
        files.extend(stream_file(&folder, stream)?);
    }
    Ok(ProcessInfo {
        pid,
        mounts,
        node_devices: mountinfo::parse(&node).into_iter().map(|mount| mount.device).collect(),
        network: (network != own).then_some(network),
        pids: inode(&folder.join("ns/pid"))?,
        files,
    })
}

fn inode(path: &Path) -> Result<u64, Error> {
    Ok(fs::metadata(path).map_err(file("look at", path))?.ino())
}

/// Of a stream that leads to a file; a pipe has no path, and a stream may be closed.
fn stream_file(folder: &Path, stream: u32) -> Result<Option<(u64, u64)>, Error> {
    let path = folder.join("fd").join(stream.to_string());
    let Some(link) = ignore_not_found(fs::read_link(&path)).map_err(file("read", &path))? else {
        return Ok(None);
    };
    if !link.is_absolute() {
        return Ok(None);
    }
    let info = folder.join("fdinfo").join(stream.to_string());
    let (Some(found), Some(info)) = (
        ignore_not_found(fs::metadata(&path)).map_err(file("look at", &path))?,
        ignore_not_found(fs::read_to_string(&info)).map_err(file("read", &info))?,
    ) else {
        return Ok(None);
    };
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    Ok(mount.map(|mount| (mount, found.ino())))
}

/// Where the three streams lead, as runc keeps it beside the images for a restore.
///
/// # Errors
/// When the process is gone.
pub(super) fn streams(pid: i32) -> Result<Value, Error> {
    let mut all = Vec::new();
    for stream in 0..3 {
        let path = PathBuf::from(format!("/proc/{pid}/fd/{stream}"));
        let link = ignore_not_found(fs::read_link(&path)).map_err(file("read", &path))?.unwrap_or_default();
        all.push(Value::String(link.to_string_lossy().into_owned()));
    }
    Ok(Value::Array(all))
}

fn ignore_not_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
