//! A terminal with a program on it, as a person has one: keys, a window that changes its size, a
//! hang-up. Owns the master and the program; what it shows is [`Screen`]'s business. Never asserts.
//! Called by tests of commands that behave differently on a terminal.

mod screen;

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::poll::poll;
pub use screen::Screen;

const PATIENCE: Duration = Duration::from_secs(60);

/// A program on a terminal of its own, which is its controlling one; killed when dropped.
#[derive(Debug)]
pub struct Pty {
    master: Option<File>,
    /// Held open, so that the last process on it leaving is no hang-up for the reader.
    slave: Option<File>,
    child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    closing: Arc<AtomicBool>,
    size: (u16, u16),
}

impl Pty {
    /// Starts it on a window of so many columns and rows.
    ///
    /// # Errors
    /// When there is no terminal, or the program is not there.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = PathBuf::from(ptsname(&master, Vec::new())?.into_string()?);
        let open = || -> Result<File> {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            Ok(rustix::fs::open(&path, flags, Mode::empty())
                .with_context(|| path.display().to_string())?
                .into())
        };
        let slave = open()?;
        tcsetwinsize(&master, winsize(columns, rows))?;
        // util-linux: a session of its own, whose terminal is the one on stdin; then exec, no fork,
        // because a child of ours leads no process group.
        let mut setsid = Command::new("setsid");
        // Who starts the tests in the background ignores Ctrl-C, and so would they.
        setsid.args(["--ctty", "env", "--default-signal=INT,QUIT"]);
        setsid.arg(command.get_program()).args(command.get_args());
        setsid.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(folder) = command.get_current_dir() {
            setsid.current_dir(folder);
        }
        let child = setsid
            .stdin(Stdio::from(open()?))
            .stdout(Stdio::from(open()?))
            .stderr(Stdio::from(open()?))
            .spawn()
            .context("run setsid, of util-linux")?;
        let (shown, closing) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (from, sink, stop) = (File::from(master.try_clone()?), shown.clone(), closing.clone());
        let reader = std::thread::spawn(move || copy(from, &sink, &stop));
        Ok(Self {
            master: Some(master.into()),
            slave: Some(slave),
            child,
            shown,
            reader: Some(reader),
            closing,
            size: (columns, rows),
        })
    }

    /// Presses these keys.
    ///
    /// # Errors
    /// When the terminal was hung up.
    pub fn keys(&mut self, keys: &str) -> Result<()> {
        Ok(self.master.as_mut().context("hung up")?.write_all(keys.as_bytes())?)
    }

    /// Changes the window's size.
    ///
    /// # Errors
    /// When the terminal was hung up.
    pub fn resize(&mut self, columns: u16, rows: u16) -> Result<()> {
        self.size = (columns, rows);
        Ok(tcsetwinsize(self.master.as_ref().context("hung up")?, winsize(columns, rows))?)
    }

    /// Everything that was written to it so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// What a person sees now.
    #[must_use]
    pub fn screen(&self) -> Screen {
        let mut screen = Screen::new(self.size.0.into(), self.size.1.into());
        screen.write(&self.text());
        screen
    }

    /// Waits until this was written.
    ///
    /// # Errors
    /// When it is not in a minute; shows what was.
    pub fn await_text(&self, what: &str) -> Result<()> {
        poll(what, PATIENCE, || {
            let text = self.text();
            if text.contains(what) { Ok(()) } else { Err(text) }
        })
    }

    /// Whether keys are echoed and Ctrl-C is a signal, as for a shell's user.
    ///
    /// # Errors
    /// When the terminal was hung up.
    pub fn is_cooked(&self) -> Result<bool> {
        let modes = tcgetattr(self.slave.as_ref().context("hung up")?)?.local_modes;
        Ok(modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG))
    }

    /// Closes the window: the program gets SIGHUP.
    pub fn hang_up(&mut self) {
        self.slave = None;
        // The last one to close a master hangs up.
        self.closing.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            // It has panicked: then it has closed its own, too.
            let _ = reader.join();
        }
        self.master = None;
    }

    /// How it ended, if it has.
    pub fn try_exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it has not ended in a minute; shows what it wrote.
    pub fn await_end(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        let ended = poll("the program to end", PATIENCE, || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("still there".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        match ended {
            Ok(status) => Ok(status),
            Err(error) => bail!("{error:#}; it wrote: {}", self.text()),
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Until nobody has the terminal open any more, or this end is to be closed.
fn copy(mut from: File, shown: &Mutex<Vec<u8>>, closing: &AtomicBool) {
    let mut buffer = [0_u8; 4096];
    let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    while !closing.load(Ordering::Relaxed) {
        let mut look = [PollFd::new(&from, PollFlags::IN)];
        match rustix::event::poll(&mut look, Some(&moment)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        let Ok(count @ 1..) = from.read(&mut buffer) else { return };
        shown.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
    }
}

fn winsize(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
