//! Asking for a user name and a password. Owns the prompts, and the terminal's echo while a password is typed; sends
//! and keeps nothing. Called by `login`.

use std::io::{self, BufRead, IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result, bail};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;

use crate::args::Secret;
use crate::output;

/// No registry has a longer one; more than that is another file by mistake.
const MOST: u64 = 64 << 10;

/// Where the password comes from.
pub(super) enum Password {
    Given(Secret),
    Stdin,
    Terminal,
}

/// What was given, read and typed.
pub(super) struct LoginCredentials {
    pub(super) username: String,
    pub(super) password: Secret,
}

/// A terminal that does not show what is typed, as long as this lives.
struct Hidden<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

/// Both, none of them empty; None when the user gave up by a signal.
///
/// # Errors
/// When there is nobody to ask, or no answer.
pub(super) async fn credentials(
    username: Option<String>,
    password: Password,
) -> Result<Option<LoginCredentials>> {
    let asks = username.is_none() || matches!(password, Password::Terminal);
    if asks && !io::stdin().is_terminal() {
        bail!(
            "cannot perform an interactive login from a non TTY device: give -u USER and --password-stdin, as in \
             `gantry login -u USER --password-stdin REGISTRY < FILE`"
        );
    }
    let username = match username {
        Some(username) => Some(username),
        None => read_line("Username: ", false).await?,
    };
    let Some(username) = username else { return Ok(None) };
    if username.is_empty() {
        bail!("the user name is empty");
    }
    let password = match password {
        Password::Given(password) => Some(password),
        Password::Stdin => Some(spawn_blocking(|| whole(io::stdin().lock())).await??),
        Password::Terminal => read_line("Password: ", true).await?.map(Secret),
    };
    match password {
        Some(Secret(password)) if password.is_empty() => bail!("the password is empty"),
        password => Ok(password.map(|password| LoginCredentials { username, password })),
    }
}

/// All of it, but for the line's end.
fn whole(from: impl Read) -> Result<Secret> {
    let mut text = String::new();
    from.take(MOST + 1).read_to_string(&mut text).context("read the password from standard input")?;
    if text.len() as u64 > MOST {
        bail!("standard input has more than {MOST} bytes: it is no password");
    }
    Ok(Secret(without_end(&text).to_owned()))
}

/// A line from the terminal; None for SIGINT and SIGTERM, after which the terminal is as it was before.
async fn read_line(prompt: &str, hides: bool) -> Result<Option<String>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let stdin = io::stdin();
    let hidden = hides.then(|| Hidden::hide(stdin.as_fd())).transpose()?;
    output::say_part(prompt);
    let line = spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line).map(|count| (count > 0).then_some(line))
    });
    // Cancel-safe: a line that nobody waits for is not wanted, since the command ends.
    let line = tokio::select! {
        line = line => line?.context("read from the terminal")?,
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    drop(hidden);
    if line.is_none() {
        output::say("");
    }
    Ok(line.map(|line| without_end(&line).to_owned()))
}

fn without_end(line: &str) -> &str {
    let line = line.strip_suffix('\n').unwrap_or(line);
    line.strip_suffix('\r').unwrap_or(line)
}

impl<'a> Hidden<'a> {
    fn hide(terminal: BorrowedFd<'a>) -> Result<Self> {
        let before = tcgetattr(terminal).context("read the terminal's mode")?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // The end of the line is shown all the same.
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(terminal, OptionalActions::Flush, &hidden).context("hide what is typed")?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        // A terminal that is gone has no mode.
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    #[test]
    fn a_password_is_typed_unseen_and_the_terminal_shows_again_afterwards() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let shows = || tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO);
        assert!(shows());
        let hidden = Hidden::hide(terminal.as_fd()).unwrap();
        assert!(!shows());
        drop(hidden);
        assert!(shows());
    }

    #[test]
    fn a_password_from_standard_input_loses_the_end_of_its_line_alone() {
        for (text, password) in [("a b\n", "a b"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a", " a"), ("", "")] {
            assert_eq!(whole(text.as_bytes()).unwrap().0, password, "{text:?}");
        }
        assert!(whole(vec![b'a'; 65 << 10].as_slice()).is_err());
        assert_eq!(format!("{:?}", Secret("hunter2".to_owned())), "Secret");
    }

    #[tokio::test]
    async fn what_is_empty_is_refused() {
        let given = |text: &str| Password::Given(Secret(text.to_owned()));
        for (user, password) in [("", "p"), ("u", "")] {
            assert!(credentials(Some(user.to_owned()), given(password)).await.is_err(), "{user:?}");
        }
        let asked = credentials(Some("u".to_owned()), given("p")).await.unwrap().unwrap();
        assert_eq!((asked.username, asked.password.0), ("u".to_owned(), "p".to_owned()));
    }
}
