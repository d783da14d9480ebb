//! A program of a cluster as a child process: its log, its end, its next life. Owns the child; never looks for
//! processes by name. Called by what makes up a cluster.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::node::tail;
use crate::poll::poll;

/// How long a program has to end after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(20);

/// What to start, again and again.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    /// What it is called in logs and errors.
    pub name: &'static str,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub env: Vec<(String, OsString)>,
}

impl ProcessSpec {
    /// A program and its arguments.
    pub fn new<A: Into<OsString>>(
        name: &'static str,
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            name,
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
        }
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }
}

/// A program that runs, or has been stopped; killed on drop.
#[derive(Debug)]
pub struct NodeProcess {
    recipe: ProcessSpec,
    log: PathBuf,
    child: Option<Child>,
}

impl NodeProcess {
    /// Starts it; its output is added to `NAME.log` in `logs`.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(recipe: ProcessSpec, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{}.log", recipe.name));
        let mut process = Self { recipe, log, child: None };
        process.restart()?;
        Ok(process)
    }

    /// Starts it again after [`NodeProcess::stop`] or [`NodeProcess::kill`].
    ///
    /// # Errors
    /// As [`NodeProcess::start`], or when it runs.
    pub fn restart(&mut self) -> Result<()> {
        if self.child.is_some() {
            bail!("{} runs already", self.recipe.name);
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| self.log.display().to_string())?;
        let mut command = Command::new(&self.recipe.program);
        command
            .args(&self.recipe.args)
            .envs(self.recipe.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let started = command.spawn().with_context(|| format!("start {}", self.recipe.program.display()));
        self.child = Some(started?);
        Ok(())
    }

    /// From the next start on that program in its place, with that variable.
    pub fn instead(&mut self, program: PathBuf, (key, value): (&str, OsString)) {
        self.recipe.program = program;
        self.recipe.env.push((key.to_owned(), value));
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.recipe.name
    }

    /// Its pid.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<Pid> {
        let pid = self.child.as_ref().and_then(|child| i32::try_from(child.id()).ok());
        pid.and_then(Pid::from_raw).with_context(|| format!("{} does not run", self.recipe.name))
    }

    /// Fails when it has ended by itself, with the end of its log.
    ///
    /// # Errors
    /// Then.
    pub fn check(&mut self) -> Result<()> {
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait()?
        {
            self.child = None;
            bail!("{} ended with {status}\n{}", self.recipe.name, self.log_tail());
        }
        Ok(())
    }

    /// SIGTERM, then SIGKILL.
    ///
    /// # Errors
    /// When it cannot be waited for. That it had to be killed is none.
    pub fn stop(&mut self) -> Result<Option<ExitStatus>> {
        let Ok(pid) = self.pid() else { return Ok(None) };
        let Some(mut child) = self.child.take() else { return Ok(None) };
        // It may have ended this moment.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let ended = poll("it to end", PATIENCE, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("still there".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        if let Ok(status) = ended {
            return Ok(Some(status));
        }
        let at = || format!("kill {}", self.recipe.name);
        child.kill().with_context(at)?;
        Ok(Some(child.wait().with_context(at)?))
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            let at = || format!("kill {}", self.recipe.name);
            child.kill().with_context(at)?;
            child.wait().with_context(at)?;
        }
        Ok(())
    }

    /// The end of its log, for error messages.
    #[must_use]
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        // It has ended, or cannot be ended.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_starts_again_and_tells_of_an_early_end() {
        let logs = tempfile::tempdir().unwrap();
        let mut process =
            NodeProcess::start(ProcessSpec::new("sleep", "sleep", ["60"]), logs.path()).unwrap();
        let first = process.pid().unwrap();
        assert!(process.restart().is_err());
        assert!(!process.stop().unwrap().unwrap().success());
        process.restart().unwrap();
        assert_ne!(process.pid().unwrap(), first);
        process.kill().unwrap();
        let recipe = ProcessSpec::new("early", "sh", ["-c", "echo why; exit 3"]);
        let mut early = NodeProcess::start(recipe, logs.path()).unwrap();
        let error = poll("its end", PATIENCE, || early.check().err().ok_or_else(String::new)).unwrap();
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 3") && text.contains("why"), "{text}");
    }
}
