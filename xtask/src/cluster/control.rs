//! A cluster's control socket: a line asks, a line answers. Owns both ends of the wire; decides nothing. Called by
//! `cluster` from outside of the cluster's place and by `keep` from inside.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gantry_tests::proc;

const OK: &str = "ok";

fn socket(folder: &Path) -> PathBuf {
    folder.join("control")
}

/// Whether one listens.
pub(super) fn runs(folder: &Path) -> bool {
    UnixStream::connect(socket(folder)).is_ok()
}

/// The pid of the cluster's keeper, which must still be the same process.
pub(super) fn keeper(folder: &Path) -> Result<i32> {
    let path = folder.join("keeper");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("no cluster in {}: cargo xtask cluster up", folder.display()))?;
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(start))) = (words.next(), words.next()) else {
        bail!("{} holds no pid and start time", path.display());
    };
    let pid = i32::try_from(pid).context("a pid")?;
    match proc::one(pid) {
        Some(process) if process.start_time == start => Ok(pid),
        _ => bail!("the cluster in {} has ended", folder.display()),
    }
}

/// Writes down who keeps the cluster.
pub(super) fn write_keeper(folder: &Path) -> Result<()> {
    let pid = i32::try_from(std::process::id()).context("a pid")?;
    let own = proc::one(pid).context("no /proc/self")?;
    Ok(std::fs::write(folder.join("keeper"), format!("{pid} {}\n", own.start_time))?)
}

/// Says one thing and waits for its answer.
pub(super) fn ask(folder: &Path, what: &str) -> Result<()> {
    let path = socket(folder);
    let mut stream = UnixStream::connect(&path)
        .with_context(|| format!("no cluster listens on {}: cargo xtask cluster up", path.display()))?;
    writeln!(stream, "{what}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    if answer.trim_end() != OK {
        bail!("{what}: {}", answer.trim_end());
    }
    Ok(())
}

/// Answers until `act` says that it is over. An error is answered, in one line, and is not the end.
pub(super) fn listen(folder: &Path, act: &mut dyn FnMut(&str) -> Result<bool>) -> Result<()> {
    let path = socket(folder);
    let listener = UnixListener::bind(&path).with_context(|| format!("listen on {}", path.display()))?;
    for stream in listener.incoming() {
        let stream = stream.with_context(|| path.display().to_string())?;
        let mut asked = String::new();
        // A client that says nothing, as one that only looks whether somebody listens, gets nothing.
        if BufReader::new(&stream).read_line(&mut asked).is_err() || asked.is_empty() {
            continue;
        }
        let outcome = act(asked.trim_end());
        let answer = match &outcome {
            Ok(_) => OK.to_owned(),
            Err(error) => format!("{error:#}").replace('\n', " | "),
        };
        // The client may have gone meanwhile; what it asked for is done.
        let _ = writeln!(&stream, "{answer}");
        if matches!(outcome, Ok(true)) {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_answered_and_is_not_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().to_owned();
        let listening = std::thread::spawn(move || {
            listen(&own, &mut |asked| match asked {
                "down" => Ok(true),
                "well" => Ok(false),
                other => bail!("not\nknown: {other}"),
            })
        });
        let there = || if runs(folder.path()) { Ok(()) } else { Err("nobody listens".to_owned()) };
        gantry_tests::poll::poll("the listener", std::time::Duration::from_secs(10), there).unwrap();
        ask(folder.path(), "well").unwrap();
        let error = ask(folder.path(), "badly").unwrap_err();
        assert_eq!(error.to_string(), "badly: not | known: badly");
        ask(folder.path(), "down").unwrap();
        listening.join().unwrap().unwrap();
    }

    #[test]
    fn a_keeper_whose_pid_is_anothers_now_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        write_keeper(folder.path()).unwrap();
        assert_eq!(keeper(folder.path()).unwrap(), i32::try_from(std::process::id()).unwrap());
        std::fs::write(folder.path().join("keeper"), format!("{} 1\n", std::process::id())).unwrap();
        assert!(keeper(folder.path()).is_err());
    }
}
