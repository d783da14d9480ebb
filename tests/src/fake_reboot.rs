//! A fake reboot: everything of one node killed, what a tmpfs would lose emptied, another boot id.
//! Owns what power off takes away; never touches another node's things. Called by the tests of what
//! a node does after a reboot.

use std::time::Duration;

use anyhow::Result;

use crate::leakcheck;
use crate::node::Roots;
use crate::poll::poll;
use crate::proc;

/// What power off and on again do to a node whose runtime and agent have been killed. Returns the
/// flag that tells the next runtime of its new boot.
///
/// # Errors
/// When something could not be ended or emptied.
pub fn cycle(roots: &Roots, boot_id: &str) -> Result<String> {
    let groups = leakcheck::tagged_cgroups(roots.tag())?;
    // Monitors first: of what dies under their eyes they would write a record.
    let monitors = format!("{}-monitors", roots.tag());
    let (first, then): (Vec<_>, Vec<_>) =
        groups.iter().rev().partition(|folder| folder.to_string_lossy().contains(&monitors));
    for folder in first.into_iter().chain(then) {
        let members = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines().filter_map(|line| line.parse().ok()) {
            proc::kill(pid)?;
        }
    }
    poll("the cgroups to go", Duration::from_secs(20), || {
        let left = leakcheck::tagged_cgroups(roots.tag()).map_err(|error| format!("{error:#}"))?;
        for folder in left.iter().rev() {
            // Busy while the dead are not gone; tried again.
            let _ = std::fs::remove_dir(folder);
        }
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })?;
    for entry in std::fs::read_dir(roots.path("netns"))? {
        let path = entry?.path();
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH)?;
        std::fs::remove_file(&path)?;
    }
    for folder in ["state", "checkpoints"] {
        match std::fs::remove_dir_all(roots.path(folder)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let file = roots.path("boot-id");
    std::fs::write(&file, boot_id)?;
    Ok(format!("--boot-id-file={}", file.display()))
}

/// The addresses that host-local has leased in the tests' network.
///
/// # Errors
/// When there never was one.
pub fn leases(roots: &Roots) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(roots.path("leases").join("test"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("10.") {
            names.push(name);
        }
    }
    Ok(names)
}
