//! Paths of an image, followed as in a root of its own: links and `..` stay within it. Owns the patience with the
//! kernel, which gives up where a rename or a mount anywhere on the node comes in between a `..` (EAGAIN, openat2(2)).
//! Called by `init` and `container`.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// As often as libpathrs tries.
const TRIES: u32 = 128;

/// Opens `path` below `root`; `more` restricts the way further.
///
/// # Errors
/// The system call's; `EAGAIN` where the node does nothing but rename and mount.
pub fn open<P: Arg + Copy>(
    root: impl AsFd,
    path: P,
    flags: OFlags,
    more: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = more | ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 1..TRIES {
        match rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => std::thread::yield_now(),
            opened => return opened,
        }
    }
    rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn renames_elsewhere_fail_no_way_through_a_parent() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("in")).unwrap();
        std::fs::create_dir(folder.path().join("one")).unwrap();
        let (over, at) = (AtomicBool::new(false), |name: &str| folder.path().join(name));
        let root = std::fs::File::open(at("in")).unwrap();
        let path = "../".repeat(64) + ".";
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let once = || {
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(&root, path.as_str(), flags, Mode::empty(), resolve)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::fs::rename(at("one"), at("other")).unwrap();
                    std::fs::rename(at("other"), at("one")).unwrap();
                }
            });
            // Until the kernel has given up a few times.
            let (mut given_up, mut failed) = (0, None);
            while given_up < 10 && failed.is_none() {
                given_up += u32::from(once().is_err_and(|errno| errno == Errno::AGAIN));
                failed = open(&root, path.as_str(), flags, ResolveFlags::empty()).err();
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(failed, None);
        });
    }
}
