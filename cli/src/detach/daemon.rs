//! A process in the background. Owns both ends: starting one with its log, and what it does first to
//! be on its own; never what it is for. Called by [`super::detach`], runtime and agent.

#![expect(clippy::disallowed_methods, reason = "runs itself as a daemon; the file is the kernel's")]

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

/// Of a log, to be shown.
const LAST_WORDS: u64 = 4096;

/// One that was just started.
#[derive(Debug)]
pub(super) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    /// Where in the log it began.
    begin: u64,
}

impl Daemon {
    /// This program with other words. It goes on when this process ends.
    pub(super) fn start(words: &[OsString], log: &Path) -> Result<Self> {
        let name = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let open = || OpenOptions::new().create(true).append(true).mode(0o600).open(log);
        let out = open().with_context(|| format!("open the log {}", log.display()))?;
        let begin = out.metadata().with_context(|| format!("look at {}", log.display()))?.len();
        let err = out.try_clone().context("share the log")?;
        let child = Command::new(std::env::current_exe().context("find this program")?)
            .args(words)
            // The words say it all: what the file adds to lists would come twice.
            .env(crate::config::FILE, "")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .with_context(|| format!("start gantry {name}"))?;
        Ok(Self { name, child, log: log.to_owned(), begin })
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// How it ended, and what it said.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.child.try_wait().with_context(|| format!("ask for gantry {}", self.name))? {
            None => Ok(()),
            Some(status) => bail!("gantry {} has ended with {status}\n{}", self.name, self.last_words()),
        }
    }

    /// The end of what it has said.
    pub(super) fn last_words(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.log)?;
            let end = file.metadata()?.len();
            file.seek(SeekFrom::Start(self.begin.max(end.saturating_sub(LAST_WORDS))))?;
            let mut bytes = Vec::new();
            file.take(LAST_WORDS).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
        };
        let shown = self.log.display();
        match read() {
            Ok(text) if text.is_empty() => format!("(nothing in {shown})"),
            Ok(text) => format!("{text}\n(more in {shown})"),
            Err(error) => format!("(its log {shown} cannot be read: {error})"),
        }
    }

    /// Asks it to end, and waits.
    pub(super) fn end(mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Not reaped yet, so the pid is still its own; one that has ended needs no signal.
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid) {
            let ended = rustix::process::kill_process(pid, Signal::TERM).map_err(std::io::Error::from);
            if let Err(error) = ended.and_then(|()| self.child.wait().map(drop)) {
                tracing::warn!(name = self.name, %error, "cannot end a background process: it is left running");
            }
        }
    }
}

/// The first act of a daemon: neither the terminal nor the end of a login takes it along.
///
/// # Errors
/// When it is not a process of its own yet.
pub(crate) fn begin() -> Result<()> {
    rustix::process::setsid().context("begin a session: --daemon is for `gantry run --detach`")?;
    let path = "/proc/self/cgroup";
    let groups = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    for root in login_hierarchies(&groups) {
        let file = root.join("cgroup.procs");
        if let Err(error) = std::fs::write(&file, "0") {
            tracing::warn!(path = %file.display(), %error, "cannot leave the login session's cgroup: this process may end with the session");
        }
    }
    Ok(())
}

/// The roots of those hierarchies in which this process is in a login's cgroup: systemd may end what
/// is there with the login (logind.conf's KillUserProcesses).
fn login_hierarchies(groups: &str) -> Vec<PathBuf> {
    let root = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        path.starts_with("/user.slice/").then(|| {
            let base = Path::new("/sys/fs/cgroup");
            match controllers.strip_prefix("name=").unwrap_or(controllers) {
                // Where both versions are there, this is the second one's place.
                "" if base.join("unified").exists() => base.join("unified"),
                "" => base.to_owned(),
                name => base.join(name),
            }
        })
    };
    groups.lines().filter_map(root).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_logins_cgroups_are_left() {
        let text = "4:memory:/user.slice/user-0.slice/session-1.scope\n3:cpu,cpuacct:/\n\
                    1:name=systemd:/user.slice/user-0.slice/session-1.scope\n2:pids:/system.slice/ssh.service\n";
        let found = login_hierarchies(text);
        assert_eq!(found, [Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup/systemd")]);
        assert_eq!(login_hierarchies("0::/system.slice/x.service\n"), Vec::<PathBuf>::new());
        assert_eq!(login_hierarchies("0::/user.slice/user-0.slice/session-1.scope\n").len(), 1);
    }
}
