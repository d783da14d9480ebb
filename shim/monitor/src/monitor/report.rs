//! What a cloned child tells of its set-up, over a pipe that ends at exec. Owns the format: steps that
//! may take long, with a user namespace the pid that goes on with it (`MOVED`), then `READY`, or `FAILED` with an errno and the step in words; an end without either
//! means that the child was killed. Written by the child, read by `monitor::event_loop` and
//! `monitor::exec`.

use std::convert::Infallible;
use std::os::fd::OwnedFd;

use gantry_proto::monitor::Failure;

use crate::init::{Progress, StepContext, StepError};
use gantry_sys::exec::exit_now;

const READY: u8 = 1;
const FAILED: u8 = 2;
const STEP: u8 = 3;
const MOVED: u8 = 4;

/// A step's text is cut here, so that each write is under PIPE_BUF and arrives whole.
const MAX_TEXT: usize = 3000;

/// More than any set-up writes: the child is the container's before exec, and could be made to lie.
const MAX_REPORT: usize = 1 << 20;

/// The end of a report as it is being read.
#[derive(Debug)]
pub(super) struct ChildReport {
    pub(super) pipe: OwnedFd,
    pub(super) token: u64,
    bytes: Vec<u8>,
}

impl ChildReport {
    pub(super) fn new(pipe: OwnedFd, token: u64) -> Self {
        Self { pipe, token, bytes: Vec::new() }
    }

    /// Reads what is there; false when the report has ended.
    pub(super) fn read(&mut self) -> bool {
        let mut chunk = [0u8; 4096];
        match rustix::io::read(&self.pipe, &mut chunk[..]) {
            Ok(0) => false,
            Ok(count) => {
                if self.bytes.len() < MAX_REPORT {
                    self.bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
                }
                true
            }
            Err(_) => true,
        }
    }

    /// What it says, once it has ended.
    pub(super) fn verdict(&self) -> Result<(), Failure> {
        parse(&self.bytes).outcome
    }

    /// Reads what is there without waiting for more.
    pub(super) fn read_pending(&mut self) {
        while matches!(rustix::io::ioctl_fionread(&self.pipe), Ok(count) if count > 0) && self.read() {}
    }

    /// The process that has taken the set-up over. Only the first is believed: it was written by one that
    /// was not in the container yet.
    pub(super) fn moved_to(&self) -> Option<i32> {
        parse(&self.bytes).moved
    }

    /// What a child that takes too long was last about to do.
    pub(super) fn hangs_at(&self) -> Failure {
        let step = match parse(&self.bytes).step {
            Some(step) => format!("{step}: this takes too long, its disk may hang"),
            None => "setting up takes too long".to_owned(),
        };
        Failure { step, errno: libc::ETIMEDOUT }
    }
}

/// What a report says.
struct ParsedReport {
    /// The last one.
    step: Option<String>,
    /// Who goes on.
    moved: Option<i32>,
    outcome: Result<(), Failure>,
}

fn parse(mut bytes: &[u8]) -> ParsedReport {
    let killed = Failure { errno: 0, step: "the process was killed before its program ran".into() };
    let mut parsed = ParsedReport { step: None, moved: None, outcome: Err(killed) };
    loop {
        bytes = match bytes {
            [READY, rest @ ..] => {
                parsed.outcome = Ok(());
                rest
            }
            [STEP, low, high, rest @ ..] => {
                let (text, rest) =
                    rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
                parsed.step = Some(String::from_utf8_lossy(text).into_owned());
                rest
            }
            [MOVED, a, b, c, d, rest @ ..] => {
                parsed.moved = parsed.moved.or(Some(i32::from_le_bytes([*a, *b, *c, *d])));
                rest
            }
            [FAILED, a, b, c, d, step @ ..] => {
                let errno = i32::from_le_bytes([*a, *b, *c, *d]);
                parsed.outcome = Err(Failure { errno, step: String::from_utf8_lossy(step).into_owned() });
                &[]
            }
            _ => return parsed,
        }
    }
}

/// The child's side: passes on how far it is.
pub(super) fn write_progress(report: &OwnedFd) -> impl FnMut(Progress<'_>) -> Result<(), StepError> {
    move |progress| {
        let bytes = match progress {
            Progress::Ready => vec![READY],
            Progress::Moved(pid) => [&[MOVED][..], &pid.to_le_bytes()].concat(),
            Progress::Step(text) => {
                let text = text.as_bytes().get(..MAX_TEXT).unwrap_or(text.as_bytes());
                let length = u16::try_from(text.len()).unwrap_or(0).to_le_bytes();
                [&[STEP][..], &length, text].concat()
            }
        };
        rustix::io::write(report, &bytes).map(drop).step(|| "report to the monitor".into())
    }
}

/// The child's last act when exec did not happen: say which step, then be gone.
pub(super) fn report_and_exit(report: &OwnedFd, setup: impl FnOnce() -> Result<Infallible, StepError>) -> ! {
    let Err(error) = setup();
    let errno = error.source.raw_os_error().unwrap_or(0);
    let mut bytes = vec![FAILED];
    bytes.extend(errno.to_le_bytes());
    bytes.extend(error.what.as_bytes());
    // Under PIPE_BUF, so it arrives whole or, with the monitor gone, not at all.
    bytes.truncate(4096);
    let _ = rustix::io::write(report, &bytes);
    exit_now(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(text: &str) -> Vec<u8> {
        [&[STEP][..], &u16::try_from(text.len()).unwrap().to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn a_report_tells_started_failed_and_killed_apart() {
        assert!(parse(&[step("mount"), vec![READY]].concat()).outcome.is_ok());
        let failed = [&[READY, FAILED][..], &2i32.to_le_bytes(), b"exec \"/x\""].concat();
        assert_eq!(parse(&failed).outcome.unwrap_err(), Failure { errno: 2, step: "exec \"/x\"".into() });
        assert_eq!(parse(&[]).outcome.unwrap_err().errno, 0);
        assert!(parse(&[STEP, 255, 255, b'x']).outcome.is_err());
    }

    #[test]
    fn the_last_step_is_what_a_child_hangs_at() {
        let bytes = [step("mount /a on /b"), step("mount /nfs on /data")].concat();
        assert_eq!(parse(&bytes).step.as_deref(), Some("mount /nfs on /data"));
    }
    #[test]
    fn who_goes_on_is_what_was_said_first() {
        let moved = |pid: i32| [&[MOVED][..], &pid.to_le_bytes()].concat();
        let bytes = [step("a"), moved(7), step("b"), moved(1), vec![READY]].concat();
        let parsed = parse(&bytes);
        assert_eq!((parsed.moved, parsed.outcome.is_ok()), (Some(7), true));
        assert_eq!(parse(&step("a")).moved, None);
    }
}
