//! `gantry run`, `gantry agent` and the commands beside them, as a user types them, on roots of their
//! own. Owns the foreground process; never reads the agent's insides. Called by the tiers that run it, and by the
//! demo.

use std::fs::OpenOptions;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::node::{self, Roots};
use crate::place;
use crate::poll::poll;

/// The pods of a PodList, each with what tests look at in one level: `name`, `namespace`, `uid`, `phase`, `ip`,
/// `conditions`, and `containers` and `initContainers` with `name`, `id`, `state`, `reason`, `lastReason`, `ready`,
/// `restartCount`, `exitCode`.
///
/// # Errors
/// When it is no such list.
pub fn flat(list: &str) -> Result<Vec<Value>> {
    let list: Value = serde_json::from_str(list).with_context(|| format!("a list of pods: {list}"))?;
    ensure!(list["kind"] == "PodList" && list["apiVersion"] == "v1", "no PodList: {list}");
    let pod = |pod: &Value| {
        let containers = |key: &str| {
            let list = pod["status"][key].as_array().into_iter().flatten();
            list.map(flat_container).collect::<Vec<Value>>()
        };
        json!({
            "name": pod["metadata"]["name"],
            "namespace": pod["metadata"]["namespace"],
            "uid": pod["metadata"]["uid"],
            "phase": pod["status"]["phase"],
            "ip": pod["status"]["podIP"],
            "conditions": pod["status"]["conditions"],
            "containers": containers("containerStatuses"),
            "initContainers": containers("initContainerStatuses"),
        })
    };
    Ok(list["items"].as_array().into_iter().flatten().map(pod).collect())
}

fn flat_container(status: &Value) -> Value {
    let id = status["containerID"].as_str().unwrap_or_default();
    let state = |when: &str| status[when].as_object().and_then(|state| state.iter().next());
    let reason = |when| state(when).map(|(_, state)| &state["reason"]);
    json!({
        "name": status["name"],
        "id": id.rsplit('/').next(),
        "state": state("state").map(|(name, _)| name),
        "reason": reason("state"),
        "lastReason": reason("lastState"),
        "ready": status["ready"],
        "restartCount": status["restartCount"],
        "exitCode": status["state"]["terminated"]["exitCode"],
    })
}

/// A `gantry run` or `gantry agent` in the background; killed when dropped.
#[derive(Debug)]
pub struct Foreground {
    child: Child,
    words: Vec<String>,
    folder: PathBuf,
}

/// A `gantry run` on roots of its own, its runtime in the same process.
#[derive(Debug)]
pub struct Standalone {
    run: Foreground,
    // Last: its drop sweeps what the process leaves.
    roots: Roots,
}

/// A command line of `gantry run FILE` on these roots.
///
/// # Errors
/// When the programs are not built.
pub fn run_command(roots: &Roots, file: &Path) -> Result<Command> {
    let mut words = vec!["run".to_owned(), file.display().to_string()];
    words.extend(roots.flags()?);
    let folder = roots.path("");
    words.extend([agent_socket(&folder), logs_flag(&folder)]);
    command(&words)
}

fn agent_socket(folder: &Path) -> String {
    format!("--agent-socket={}", folder.join("agent.sock").display())
}

fn logs_flag(folder: &Path) -> String {
    format!("--pod-logs-dir={}", folder.join("logs").display())
}

fn command(words: &[String]) -> Result<Command> {
    let mut command = Command::new(place::bin_dir()?.join("gantry"));
    command.args(words).stdin(Stdio::null());
    Ok(command)
}

impl Standalone {
    /// Starts `gantry run` on a manifest.
    ///
    /// # Errors
    /// When the programs are not built.
    pub fn start(roots: Roots, manifest: &str) -> Result<Self> {
        let file = roots.path("pod.yaml");
        std::fs::write(&file, manifest)?;
        Self::start_files(roots, &[file], &[])
    }

    /// Starts it with more flags, and with a manifest or without.
    ///
    /// # Errors
    /// As [`Standalone::start`].
    pub fn start_with(roots: Roots, manifest: Option<&str>, flags: &[String]) -> Result<Self> {
        let file = roots.path("pod.yaml");
        if let Some(manifest) = manifest {
            std::fs::write(&file, manifest)?;
        }
        let files: Vec<PathBuf> = manifest.map(|_| file).into_iter().collect();
        Self::start_files(roots, &files, flags)
    }

    /// Starts `gantry run` on files, with more flags.
    ///
    /// # Errors
    /// When the programs are not built.
    pub fn start_files(roots: Roots, files: &[PathBuf], flags: &[String]) -> Result<Self> {
        let mut words = roots.flags()?;
        words.extend_from_slice(flags);
        let run = Foreground::start(&roots.path(""), files, &words)?;
        Ok(Standalone { run, roots })
    }

    /// Its folders.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Ends it, and gives its folders back for the next one.
    #[must_use]
    pub fn into_roots(self) -> Roots {
        let Standalone { run, roots } = self;
        drop(run);
        roots
    }
}

impl Deref for Standalone {
    type Target = Foreground;

    fn deref(&self) -> &Foreground {
        &self.run
    }
}

impl DerefMut for Standalone {
    fn deref_mut(&mut self) -> &mut Foreground {
        &mut self.run
    }
}

impl Foreground {
    /// Starts `gantry run` on files; its socket, logs and output are in `folder`.
    ///
    /// # Errors
    /// When the programs are not built.
    pub fn start(folder: &Path, files: &[PathBuf], flags: &[String]) -> Result<Self> {
        let mut words = vec!["run".to_owned()];
        words.extend(files.iter().map(|file| file.display().to_string()));
        words.extend_from_slice(flags);
        words.push(logs_flag(folder));
        Self::with_words(folder, words)
    }

    /// Starts `gantry WORDS…`; its socket and output are in `folder`.
    ///
    /// # Errors
    /// When the programs are not built.
    pub fn with_words(folder: &Path, mut words: Vec<String>) -> Result<Self> {
        words.push(agent_socket(folder));
        let child = spawn(folder, &words)?;
        Ok(Foreground { child, words, folder: folder.to_owned() })
    }

    /// kill -9; what runs goes on, unless the runtime is in the same process and was needed.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill gantry run")?;
        self.child.wait().context("wait for gantry run").map(drop)
    }

    /// Starts the same command line again, after [`Foreground::kill`].
    ///
    /// # Errors
    /// When the programs are gone.
    pub fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.folder, &self.words)?;
        Ok(())
    }

    /// A command line `gantry WORDS…` with this agent's socket, not started.
    ///
    /// # Errors
    /// When the programs are not built.
    pub fn command(&self, words: &[&str]) -> Result<Command> {
        let socket = agent_socket(&self.folder);
        let mut command = Command::new(place::bin_dir()?.join("gantry"));
        // Before a `--`.
        let (name, rest) = words.split_first().context("no command")?;
        command.arg(name).arg(socket).args(rest).stdin(Stdio::null());
        Ok(command)
    }

    /// `gantry COMMAND ARGS… --agent-socket …`, to its end.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn gantry(&self, command: &str, args: &[&str]) -> Result<Output> {
        Command::new(place::bin_dir()?.join("gantry"))
            .arg(command)
            .args(args)
            .arg(agent_socket(&self.folder))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("run gantry {command}"))
    }

    /// As [`Foreground::gantry`], its output as text.
    ///
    /// # Errors
    /// When it fails; shows what it said.
    pub fn gantry_ok(&self, command: &str, args: &[&str]) -> Result<String> {
        let output = self.gantry(command, args)?;
        ensure!(
            output.status.success(),
            "gantry {command} ended with {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            self.said()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The pods that `gantry ps --output=json` lists, [`flat`].
    ///
    /// # Errors
    /// As [`Foreground::gantry_ok`], or when it is no list.
    pub fn pods(&self) -> Result<Vec<Value>> {
        flat(&self.gantry_ok("ps", &["--output=json"])?)
    }

    /// Waits until the list of pods pleases; it tells what it lacks.
    ///
    /// # Errors
    /// When it does not in time, or `gantry run` has ended: shows the list and what it said.
    pub fn await_pods<T>(
        &mut self,
        what: &str,
        seconds: u64,
        mut look: impl FnMut(&[Value]) -> Option<T>,
    ) -> Result<T> {
        let seen = poll(what, Duration::from_secs(seconds), || {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Ok(Err(anyhow!("gantry {} ended with {status}", self.words[0])));
            }
            let pods = self.pods().map_err(|error| format!("{error:#}"))?;
            look(&pods).map(Ok).ok_or_else(|| Value::from(pods).to_string())
        });
        seen.flatten().with_context(|| self.said())
    }

    /// Asks it to end, as Ctrl-C does.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn interrupt(&self) -> Result<()> {
        self.signal(Signal::INT)
    }

    /// Tells it that its terminal is gone, as kernel and shell do.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn hang_up(&self) -> Result<()> {
        self.signal(Signal::HUP)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no pid")?;
        rustix::process::kill_process(pid, signal).with_context(|| format!("send {signal:?} to gantry run"))
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// When it has not after a minute.
    pub fn await_end(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        let ended = poll("gantry run to end", Duration::from_secs(60), || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("still there".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        ended.with_context(|| self.said())
    }

    /// What it has printed on stdout.
    #[must_use]
    pub fn stdout(&self) -> String {
        read(&self.folder.join("run.out"))
    }

    /// What it has printed on stderr.
    #[must_use]
    pub fn stderr(&self) -> String {
        read(&self.folder.join("run.err"))
    }

    fn said(&self) -> String {
        node::tail(&self.folder.join("run.err"))
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Its output goes on where that of an earlier one ended.
fn spawn(folder: &Path, words: &[String]) -> Result<Child> {
    let open = |name: &str| OpenOptions::new().create(true).append(true).open(folder.join(name));
    command(words)?.stdout(open("run.out")?).stderr(open("run.err")?).spawn().context("start gantry run")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
