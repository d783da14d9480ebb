//! The labels that a program gets from its exec on: AppArmor's profile and SELinux' context. Owns the way to
//! the kernel's files: found through a /proc that is checked to be one, with nothing mounted on the way, or a
//! container could have the label written into a file of its own (CVE-2025-52881, CVE-2019-16884). Called by
//! `init::program` and `init::pause`, for the calling thread alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_proto::monitor::StartContainer;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{StepContext, StepError, refuse};

/// Of the root folder of every procfs (PROC_ROOT_INO).
const PROC_ROOT: u64 = 1;

/// What will be written, and where.
#[derive(Debug, Default)]
pub struct Labels {
    all: Vec<Label>,
}

#[derive(Debug)]
struct Label {
    file: OwnedFd,
    text: String,
    what: String,
}

/// Opens the files: later, a program without privileges could not.
pub(super) fn prepare(start: &StartContainer) -> Result<Labels, StepError> {
    if start.apparmor_profile.is_empty() && start.process_label.is_empty() {
        return Ok(Labels::default());
    }
    labels(proc()?.as_fd(), &start.apparmor_profile, &start.process_label)
}

/// As `prepare`, of pause, which has no profile of AppArmor's.
pub(super) fn prepare_label(process_label: &str) -> Result<Labels, StepError> {
    let process_label = process_label.to_owned();
    prepare(&StartContainer { process_label, ..StartContainer::default() })
}

/// The option of a file system whose files all have this label.
pub(super) fn context(mount_label: &str) -> Vec<(&str, &str)> {
    if mount_label.is_empty() { Vec::new() } else { vec![("context", mount_label)] }
}

/// A procfs, or nothing: an image or a mount may have put anything there.
fn proc() -> Result<OwnedFd, StepError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let proc = rustix::fs::openat2(CWD, "/proc", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .step(|| "open /proc".into())?;
    let kind = rustix::fs::fstatfs(&proc).step(|| "look at /proc".into())?.f_type;
    let inode = rustix::fs::fstat(&proc).step(|| "look at /proc".into())?.st_ino;
    if kind != rustix::fs::PROC_SUPER_MAGIC || inode != PROC_ROOT {
        return refuse(libc::EPERM, "set the security label: /proc of the container is not the kernel's");
    }
    Ok(proc)
}

fn labels(proc: BorrowedFd<'_>, profile: &str, context: &str) -> Result<Labels, StepError> {
    let mut all = Vec::new();
    if !profile.is_empty() {
        // In Linux 5.8 AppArmor got a folder of its own; the old file is the first module's.
        let file = match open(proc, "thread-self/attr/apparmor/exec") {
            Err(Errno::NOENT) => open(proc, "thread-self/attr/exec"),
            result => result,
        };
        let what = format!("apply the AppArmor profile {profile}");
        let file = file.step(|| what.clone())?;
        all.push(Label { file, text: format!("exec {profile}"), what });
    }
    if !context.is_empty() {
        let what = format!("set the SELinux label {context}");
        // The session keyring that is made next is the container's, too (runc: SetKeyLabel).
        match open(proc, "thread-self/attr/keycreate") {
            Err(Errno::NOENT) => {}
            file => rustix::io::write(&file.step(|| what.clone())?, context.as_bytes())
                .map(drop)
                .step(|| what.clone())?,
        }
        let file = open(proc, "thread-self/attr/exec").step(|| what.clone())?;
        all.push(Label { file, text: context.to_owned(), what });
    }
    Ok(Labels { all })
}

fn open(proc: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    // thread-self is a plain link; another file system on the way is somebody's trick.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(proc, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty(), resolve)
}

impl Labels {
    /// Writes them. The kernel takes each whole or not at all.
    pub(super) fn apply(&self) -> Result<(), StepError> {
        for label in &self.all {
            rustix::io::write(&label.file, label.text.as_bytes()).step(|| label.what.clone())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A folder with the files of a kernel whose modules have these.
    fn kernel(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("7/task/7/attr/apparmor")).unwrap();
        std::os::unix::fs::symlink("7/task/7", folder.path().join("thread-self")).unwrap();
        for file in files {
            fs::write(folder.path().join("7/task/7/attr").join(file), "").unwrap();
        }
        folder
    }

    fn write(folder: &Path, profile: &str, context: &str) -> Result<(), String> {
        let proc = rustix::fs::open(folder, OFlags::PATH, Mode::empty()).unwrap();
        let labels = labels(proc.as_fd(), profile, context).map_err(|error| error.to_string())?;
        labels.apply().map_err(|error| error.to_string())
    }

    fn text(folder: &Path, file: &str) -> String {
        fs::read_to_string(folder.join("7/task/7/attr").join(file)).unwrap()
    }

    #[test]
    fn the_profile_goes_to_apparmors_own_file_or_to_the_old_one() {
        let new = kernel(&["apparmor/exec", "exec"]);
        write(new.path(), "mine", "").unwrap();
        assert_eq!(
            (text(new.path(), "apparmor/exec").as_str(), text(new.path(), "exec").as_str()),
            ("exec mine", "")
        );
        let old = kernel(&["exec"]);
        write(old.path(), "mine", "").unwrap();
        assert_eq!(text(old.path(), "exec"), "exec mine");
        assert_eq!(write(kernel(&[]).path(), "mine", ""), Err("apply the AppArmor profile mine".into()));
    }

    #[test]
    fn both_modules_get_theirs() {
        let both = kernel(&["apparmor/exec", "exec", "keycreate"]);
        write(both.path(), "mine", "u:r:t:s0:c1,c2").unwrap();
        assert_eq!(text(both.path(), "apparmor/exec"), "exec mine");
        assert_eq!(text(both.path(), "exec"), "u:r:t:s0:c1,c2");
        assert_eq!(text(both.path(), "keycreate"), "u:r:t:s0:c1,c2");
    }

    #[test]
    fn cve_2025_52881_a_link_out_of_proc_leads_nowhere() {
        let trick = kernel(&[]);
        let outside = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(outside.path(), trick.path().join("7/task/7/attr/exec")).unwrap();
        assert!(write(trick.path(), "", "u:r:t").is_err());
        assert_eq!(fs::read_to_string(outside.path()).unwrap(), "");
    }

    #[test]
    fn cve_2025_52881_only_the_kernels_proc_is_taken_and_nothing_mounted_on_it() {
        let proc = proc().unwrap();
        // A mount that every procfs of a node with sysctls or binfmt has, and that any process may look at.
        let file = open(proc.as_fd(), "thread-self/comm").unwrap();
        assert_eq!(rustix::fs::fstatfs(&file).unwrap().f_type, rustix::fs::PROC_SUPER_MAGIC);
        assert_eq!(open(proc.as_fd(), "thread-self/cwd/nothing").unwrap_err(), Errno::LOOP);
    }
}
