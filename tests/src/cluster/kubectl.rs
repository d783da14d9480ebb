//! kubectl as a user types it. Owns the command line; never looks into what is answered. Called by `cluster` and the
//! tests of the tier cluster.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::programs;
use crate::poll::poll_every;

/// Between two calls of one wait: a call is a process of its own.
pub(super) const RHYTHM: Duration = Duration::from_millis(250);

/// kubectl with a user's kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// With that kubeconfig.
    ///
    /// # Errors
    /// When kubectl was not built.
    pub fn new(kubeconfig: PathBuf) -> Result<Self> {
        Ok(Self { program: programs::path("kubectl")?, kubeconfig })
    }

    /// A call of it, not started yet.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // No cache in a home folder, which would be the host's.
        let cache = self.kubeconfig.with_extension("cache");
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(cache).args(args);
        command.stdin(Stdio::null());
        command
    }

    /// Its output as text.
    ///
    /// # Errors
    /// When it fails: with what it said.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        let output = self.command(args).output().context("start kubectl")?;
        text(args, &output)
    }

    /// Its output as JSON, by `-o json`.
    ///
    /// # Errors
    /// As [`Kubectl::run`].
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.run(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl's JSON")
    }

    /// One value, by a JSONPath as `{.status.phase}`; empty when it is not there.
    ///
    /// # Errors
    /// As [`Kubectl::run`].
    pub fn value(&self, args: &[&str], path: &str) -> Result<String> {
        self.run(&[args, &["-o", &format!("jsonpath={path}")]].concat())
    }

    /// `apply -f -` of objects.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub fn apply(&self, objects: &Value) -> Result<String> {
        self.feed(&["apply", "-f", "-"], objects)
    }

    /// Its output when an object is its input.
    ///
    /// # Errors
    /// As [`Kubectl::run`].
    pub fn feed(&self, args: &[&str], object: &Value) -> Result<String> {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("start kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl's stdin")?;
        stdin.write_all(&serde_json::to_vec(object)?).context("write to kubectl")?;
        drop(stdin);
        text(args, &child.wait_with_output().context("wait for kubectl")?)
    }

    /// Asks again and again until `wanted` says yes to a value.
    ///
    /// # Errors
    /// When the deadline passes: with the last value.
    pub fn await_value(
        &self,
        args: &[&str],
        path: &str,
        deadline: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let what = format!("{path} of kubectl {}", args.join(" "));
        poll_every(RHYTHM, &what, deadline, || match self.value(args, path) {
            Ok(value) if wanted(&value) => Ok(value),
            Ok(value) => Err(format!("{value:?}")),
            Err(error) => Err(format!("{error:#}")),
        })
    }
}

fn text(args: &[&str], output: &Output) -> Result<String> {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("kubectl {}: {}: {}{}", args.join(" "), output.status, out, said.trim());
    }
    Ok(out)
}
