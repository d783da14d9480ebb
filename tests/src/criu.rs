//! A criu for tests: one that only plays it, for hosts whose kernel the packaged one does not know, and the real one of
//! the small VM. Owns the script. Called by the kernel tier and by failpoints.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Where the small VM has a real one.
pub const REAL: &str = "/gantry/criu";

/// What the script does once it has written images and log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Play {
    Succeed,
    Fail,
    /// With the container frozen.
    Hang,
}

/// A folder with a program `criu`.
#[derive(Debug)]
pub struct FakeCriu {
    folder: TempDir,
}

impl FakeCriu {
    /// One that says that it is 3.17.1.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn new(play: Play) -> Result<Self> {
        let fake = FakeCriu { folder: tempfile::Builder::new().prefix("gantry-criu-").tempdir()? };
        fake.set("3.17.1", play)?;
        Ok(fake)
    }

    /// Another from now on.
    ///
    /// # Errors
    /// As [`FakeCriu::new`].
    pub fn set(&self, version: &str, play: Play) -> Result<()> {
        let last = match play {
            Play::Succeed => "exit 0",
            Play::Fail => "echo 'criu: not today' >&2; exit 1",
            Play::Hang => {
                "if [ -e \"$freezer/cgroup.freeze\" ]; then echo 1 >\"$freezer/cgroup.freeze\"\n\
                 else echo FROZEN >\"$freezer/freezer.state\"; fi\n\
                 echo >\"$here/hangs\"; exec sleep 1000"
            }
        };
        let here = self.folder.path().display();
        let script = format!(
            "#!/bin/sh\nhere={here}\n\
             if [ \"$1\" = --version ]; then echo 'Version: {version}'; exit 0; fi\n\
             printf '%s\\n' \"$@\" >\"$here/arguments\"\n\
             while [ $# -gt 0 ]; do case \"$1\" in\n\
             --images-dir) images=$2;; --work-dir) work=$2;; --freeze-cgroup) freezer=$2;; esac; shift; done\n\
             echo images >\"$images/inventory.img\"\n\
             echo '(00.1) Error (criu/fake.c:1): the fake says no' >\"$work/dump.log\"\n{last}\n"
        );
        let (fresh, path) = (self.folder.path().join("fresh"), self.folder.path().join("criu"));
        std::fs::write(&fresh, script)?;
        std::fs::set_permissions(&fresh, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Ok(std::fs::rename(fresh, path)?)
    }

    /// The variable of a runtime that finds it.
    #[must_use]
    pub fn variable(&self) -> (String, PathBuf) {
        first_in_path(self.folder.path())
    }

    /// What it was last asked, word by word.
    ///
    /// # Errors
    /// When it was not asked.
    pub fn read_requests(&self) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.folder.path().join("arguments")).context("it was not run")?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Whether it hangs by now.
    #[must_use]
    pub fn hangs(&self) -> bool {
        self.folder.path().join("hangs").exists()
    }
}

/// The variable of a runtime that finds the real one, in the small VM.
#[must_use]
pub fn real() -> (String, PathBuf) {
    first_in_path(Path::new(REAL))
}

/// The variable of a runtime that finds none.
#[must_use]
pub fn none() -> (String, PathBuf) {
    ("PATH".to_owned(), "/nonexistent".into())
}

fn first_in_path(folder: &Path) -> (String, PathBuf) {
    let rest = "/usr/sbin:/usr/bin:/sbin:/bin";
    ("PATH".to_owned(), format!("{}:{rest}", folder.display()).into())
}
