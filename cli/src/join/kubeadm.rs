//! The program kubeadm: how it is called. Owns its command lines and exit codes; never what it is told. Called by
//! [`super`] and [`crate::leave`]. It is the one program that a join runs (ARCHITECTURE.md, invariant 11).

#![expect(clippy::disallowed_methods, reason = "runs kubeadm, by which join and leave do what they are for")]

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// `v1.36.3`.
///
/// # Errors
/// When it cannot be started, or fails.
pub(crate) fn version(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .args(["version", "--output", "short"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", program.display()))?;
    ensure!(output.status.success(), "{} version: {}", program.display(), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `kubeadm join`, its output on this terminal.
///
/// # Errors
/// When it fails: it has said why.
pub(crate) async fn join(program: &Path, config: &Path) -> Result<()> {
    run(program, &["join".as_ref(), "--config".as_ref(), config.as_os_str()]).await
}

/// `kubeadm reset`, without a question.
///
/// # Errors
/// When it fails: it has said why.
pub(crate) async fn reset(program: &Path, cri_socket: &str) -> Result<()> {
    run(program, &["reset", "--force", "--cri-socket", cri_socket].map(AsRef::as_ref)).await
}

async fn run(program: &Path, args: &[&std::ffi::OsStr]) -> Result<()> {
    let what = || format!("{} {}", program.display(), args.first().unwrap_or(&"".as_ref()).display());
    let status = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .status()
        .await
        .with_context(|| format!("start {}", program.display()))?;
    ensure!(status.success(), "{} failed ({status}): what it said is above", what());
    Ok(())
}
