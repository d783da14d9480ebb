//! What a place does when a program comes by. Owns the folder that a test names, and its files. Called by the macro
//! `failpoint!`.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FOLDER: &str = "GANTRY_FAILPOINTS";
const LOOK: Duration = Duration::from_millis(5);

/// A test wanted this step to fail.
#[derive(Debug, thiserror::Error)]
#[error("failpoint {0}")]
pub struct Injected(&'static str);

impl From<Injected> for String {
    fn from(injected: Injected) -> Self {
        injected.to_string()
    }
}

thread_local! {
    static OWN: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
}

/// This thread's places are asked in that folder, whatever the variable names: tests of one program have one each.
pub fn look_in(folder: PathBuf) {
    OWN.set(Some(folder));
}

fn folder() -> Option<PathBuf> {
    OWN.with_borrow(Clone::clone).or_else(|| std::env::var_os(FOLDER).map(PathBuf::from))
}

/// For a program that gets no other variables.
#[must_use]
pub fn variable() -> Option<(&'static str, OsString)> {
    std::env::var_os(FOLDER).map(|folder| (FOLDER, folder))
}

/// Does what the test asked for, if it asked.
///
/// # Errors
/// When it asked for that.
pub fn reach(name: &'static str) -> Result<(), Injected> {
    let Some(folder) = folder() else { return Ok(()) };
    let asked = folder.join(name);
    let reached = asked.with_file_name(format!("{name}.reached"));
    // Of several that come here at once, the one that renames it acts.
    if fs::rename(&asked, &reached).is_err() {
        return Ok(());
    }
    match fs::read_to_string(&reached).unwrap_or_default().trim() {
        "crash" => {
            // As kill -9 from outside: nothing is written, nothing is dropped.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            hold(&reached);
        }
        "panic" => end_by_panic(name),
        "fail" => return Err(Injected(name)),
        _ => hold(&reached),
    }
    Ok(())
}

#[expect(clippy::panic, reason = "a test asked for it")]
fn end_by_panic(name: &str) {
    panic!("failpoint {name}");
}

/// Until the test has taken the file away. Whatever else the program does goes on.
#[cfg(feature = "tokio")]
fn hold(reached: &Path) {
    use tokio::runtime::{Handle, RuntimeFlavor};
    let several = |handle: Handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread;
    if Handle::try_current().is_ok_and(several) {
        tokio::task::block_in_place(|| wait(reached));
    } else {
        wait(reached);
    }
}

#[cfg(not(feature = "tokio"))]
fn hold(reached: &Path) {
    wait(reached);
}

fn wait(reached: &Path) {
    while reached.exists() {
        std::thread::sleep(LOOK);
    }
}
