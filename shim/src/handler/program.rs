//! An OCI runtime's program as the runtime itself runs it: looked at before anything is made for it, and told to
//! forget a container. Owns how long it may take. Called by `sandbox::run` and the container operations; what makes
//! containers is the monitor's child (`init::external`).

#![expect(clippy::disallowed_methods, reason = "runs the OCI runtimes that a handler names")]

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use gantry_proto::monitor::External;
use tokio::process::Command;

use crate::error::Error;

/// How long it may take to end what is left of a container, and to forget it.
const DELETE: Duration = Duration::from_secs(60);

/// Whether the program of a handler is there, before anything is made for it. Blocks.
///
/// # Errors
/// When it can't be run, by handler and path.
pub(crate) fn check(handler: &str, path: &Path) -> Result<(), Error> {
    let wrap = |source| Error::Handler { name: handler.to_owned(), path: path.to_owned(), source };
    let found = std::fs::metadata(path).map_err(wrap)?;
    if found.is_file() && found.permissions().mode() & 0o111 != 0 {
        Ok(())
    } else {
        Err(wrap(std::io::Error::from_raw_os_error(libc::EACCES)))
    }
}

/// Has the program end and forget a container that it has made, or begun to make.
///
/// # Errors
/// What it says, or that it does not end; what it knows of the container is gone all the same.
pub(crate) async fn delete(external: &External, id: &str) -> Result<(), String> {
    let known = Path::new(&external.root).join(id);
    // A reboot, or a start that came to nothing.
    if !tokio::fs::try_exists(&known).await.unwrap_or(true) {
        return Ok(());
    }
    let mut command = Command::new(&external.program);
    command.args(["--root", &external.root, "delete", "--force", id]);
    let deleted = match run(&mut command, DELETE).await {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => Err(output_tail(&output)),
        Err(error) => Err(error),
    };
    // The program may be broken, or gone.
    match tokio::fs::remove_dir_all(&known).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.to_string()),
        _ => deleted,
    }
}

/// Has the program write a checkpoint of a container, which goes on running: its arguments, with containerd's flags.
pub(crate) fn checkpoint(external: &External, id: &str, images: &Path, work: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> =
        ["--root", &external.root, "checkpoint", "--image-path"].map(Into::into).into();
    words.extend([images.into(), "--work-path".into(), work.into(), "--leave-running".into(), id.into()]);
    words
}

async fn run(command: &mut Command, time: Duration) -> Result<Output, String> {
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    match tokio::time::timeout(time, command.output()).await {
        Ok(output) => output.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it does not end within {} s", time.as_secs())),
    }
}

fn output_tail(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim().lines().last() {
        Some(line) => line.chars().take(1024).collect(),
        None => output.status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let path = Path::new("/nonexistent/runc");
        let error = gantry_base::error::chain(&check("x", path).unwrap_err());
        assert!(error.contains("\"x\"") && error.contains("/nonexistent/runc"), "{error}");
        // Made for its owner to read.
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(check("x", file.path()).is_err());
    }
}
