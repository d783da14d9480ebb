//! A folder for what a target reads as files. Owns its name, and outside a fuzzer its end. Called by the bodies of the
//! targets. The parsers of `cni` have the same in their own crate, which depends on nothing of the runtime.

use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A file system in memory is best (TMPDIR). A fuzzer's stays for its next input, which comes within a millisecond;
/// a test's has a name of its own and goes.
#[derive(Debug)]
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// Nothing is made yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let own = format!("gantry-fuzz-{name}-{}{}", std::process::id(), tail());
        Self(std::env::temp_dir().join(own))
    }
}

#[cfg(fuzzing)]
fn tail() -> String {
    String::new()
}

#[cfg(not(fuzzing))]
fn tail() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Deref for ScratchFolder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

#[cfg(not(fuzzing))]
impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // One that was never made is as good.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tests_folder_goes_with_it() {
        let place = ScratchFolder::new("gone");
        let path = place.to_path_buf();
        assert_ne!(path, ScratchFolder::new("gone").to_path_buf());
        std::fs::create_dir_all(place.join("deep")).unwrap();
        drop(place);
        assert!(!path.exists());
    }
}
