//! The last part of a set-up, which a container's first process and an exec share: streams, reset of
//! what the monitor's life left, identity, working folder, exec. Each step uses a privilege that a
//! later one gives up. Called by `init::container` and `init::exec`, inside the container's namespaces.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::OwnedFd;

use gantry_proto::monitor::StartContainer;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::{Progress, StepContext, StepError, console, hooks, identity, lsm, refuse, reset};
use gantry_sys as sys;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the program's descriptors 0, 1 and 2 come from.
#[derive(Debug)]
pub enum Streams<'a> {
    /// Ends of pipes, or the null device.
    Pipes {
        /// Descriptor 0.
        stdin: &'a OwnedFd,
        /// Descriptor 1.
        stdout: &'a OwnedFd,
        /// Descriptor 2.
        stderr: &'a OwnedFd,
    },
    /// A terminal of the container's own devpts.
    Terminal(console::Terminal<'a>),
}

impl<'a> Streams<'a> {
    /// What must stay open while everything else is closed.
    pub fn descriptors(&self) -> Vec<&'a OwnedFd> {
        match self {
            Self::Pipes { stdin, stdout, stderr } => vec![stdin, stdout, stderr],
            Self::Terminal(terminal) => vec![terminal.socket],
        }
    }
}

/// Becomes the program of `start`; `note` hears of it right before exec. Returns only on failure.
pub(super) fn become_program(
    start: &StartContainer,
    streams: &Streams<'_>,
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<Infallible, StepError> {
    match streams {
        Streams::Pipes { stdin, stdout, stderr } => connect([*stdin, *stdout, *stderr], start.uid)?,
        Streams::Terminal(terminal) => {
            let slave = console::open(terminal)?;
            connect([&slave, &slave, &slave], start.uid)?;
            rustix::process::ioctl_tiocsctty(&slave).step(|| "take the terminal".into())?;
        }
    }
    // While nothing of the identity is given up.
    let labels = lsm::prepare(start)?;
    reset::keyring(&start.id)?;
    reset::all()?;
    reset::open_files()?;
    identity::limits(&start.rlimits)?;
    if !start.no_new_privs {
        identity::filter(&start.seccomp_filter, start.seccomp_flags)?;
    }
    // With all privileges first, as runc: the folder may be one that the user may not search.
    let tried = change_to(&start.cwd);
    identity::assume(start)?;
    enter_cwd(&start.cwd, tried)?;
    // Last, because a change of user clears it; a hint only (runtime-traps 2.3).
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .step(|| "set the death signal".into())?;
    labels.apply()?;
    if start.no_new_privs {
        identity::filter(&start.seccomp_filter, start.seccomp_flags)?;
    }
    hooks::before_program(start)?;
    note(Progress::Ready)?;
    exec(start)
}

fn connect([stdin, stdout, stderr]: [&OwnedFd; 3], uid: u32) -> Result<(), StepError> {
    // A program may reopen /dev/stdin and /dev/stdout as the container's user: pipes and terminal must be that user's.
    // The null device of a stream that nobody wants is the node's.
    for (stream, name) in [(stdin, "input"), (stdout, "output"), (stderr, "output")] {
        let found = rustix::fs::fstat(stream).step(|| format!("look at the {name}"))?;
        let own = FileType::from_raw_mode(found.st_mode) == FileType::Fifo || rustix::termios::isatty(stream);
        if own {
            rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), None)
                .step(|| format!("give the {name} to user {uid}"))?;
        }
    }
    rustix::stdio::dup2_stdin(stdin).step(|| "connect stdin".into())?;
    rustix::stdio::dup2_stdout(stdout).step(|| "connect stdout".into())?;
    rustix::stdio::dup2_stderr(stderr).step(|| "connect stderr".into())
}

/// Makes the working folder, as a container's start does and an exec does not.
pub(super) fn make_cwd(cwd: &str) -> Result<(), StepError> {
    make_folders(cwd).step(|| format!("make the working folder {cwd}"))
}

/// Folder by folder, by no link of /proc: of a process of the node it would lead to the node's own folders.
fn make_folders(cwd: &str) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |folder: &OwnedFd, part: &str| {
        rustix::fs::openat2(folder, part, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
    };
    let mut folder = rustix::fs::open("/", flags, Mode::empty())?;
    for part in cwd.split('/').filter(|part| !part.is_empty()) {
        let mut opened = open(&folder, part);
        if matches!(opened, Err(Errno::NOENT)) {
            // Nobody else's to write into, whatever the mask of the moment; it may be on a volume (runc: 0755).
            match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
                Ok(()) => opened = open(&folder, part),
                Err(Errno::ROFS | Errno::EXIST) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        match opened {
            Ok(next) => folder = next,
            // Whoever enters it says why that can't be.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// By no link of /proc: it may lead to a folder that is still open from the set-up.
fn change_to(cwd: &str) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder =
        rustix::fs::openat2(rustix::fs::CWD, cwd, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    rustix::process::fchdir(folder)
}

/// Enters the working folder where that was refused to root, whose rights end at some network file systems, and
/// checks that the kernel, too, sees it inside the root: a descriptor of the host's that slipped through would
/// show as "(unreachable)" (CVE-2024-21626).
fn enter_cwd(cwd: &str, tried: rustix::io::Result<()>) -> Result<(), StepError> {
    let entered = match tried {
        Err(Errno::PERM | Errno::ACCESS) => change_to(cwd),
        result => result,
    };
    entered.step(|| format!("enter the working folder {cwd}"))?;
    let seen = rustix::process::getcwd(Vec::new()).step(|| format!("read back the working folder {cwd}"))?;
    if seen.as_bytes().first() == Some(&b'/') {
        Ok(())
    } else {
        refuse(libc::EPERM, format!("the working folder {cwd} is outside the container"))
    }
}

fn exec(start: &StartContainer) -> Result<Infallible, StepError> {
    let string = |bytes: &[u8]| {
        CString::new(bytes).step(|| format!("{:?} holds a NUL", String::from_utf8_lossy(bytes)))
    };
    let args: Vec<CString> = start.args.iter().map(|arg| string(arg.as_bytes())).collect::<Result<_, _>>()?;
    let env: Vec<CString> = start.env.iter().map(|pair| string(pair)).collect::<Result<_, _>>()?;
    let Some(program) = start.args.first() else {
        return refuse(libc::EINVAL, "no command: neither the request nor the image names one");
    };
    let attempt = |path: &str| -> Result<Infallible, std::io::Error> {
        sys::exec::exec_path(&CString::new(path)?, &args, &env)
    };
    if program.contains('/') {
        return attempt(program).step(|| format!("exec {program:?}"));
    }
    let path = start.env.iter().rev().find_map(|pair| pair.strip_prefix(b"PATH="));
    let path = path.and_then(|path| std::str::from_utf8(path).ok()).unwrap_or(DEFAULT_PATH);
    let mut last = Errno::NOENT.into();
    for folder in path.split(':') {
        let Err(error) = attempt(&format!("{}/{program}", if folder.is_empty() { "." } else { folder }));
        // Only what says "not this one" goes on to the next folder, as execvp(3) does.
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => last = error,
            _ => return Err(error).step(|| format!("exec {program:?}")),
        }
    }
    Err(last).step(|| format!("exec {program:?}: executable file not found in $PATH"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_working_folder_is_made_by_links_of_the_image_and_by_none_of_proc() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| format!("{}/{path}", root.path().display());
        fs::create_dir(at("real")).unwrap();
        std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
        fs::write(at("file"), "").unwrap();
        for path in ["a/b/c", "a/b/c", "link/below"] {
            assert!(make_cwd(&at(path)).is_ok(), "{path}");
            assert!(fs::metadata(at(path)).unwrap().is_dir(), "{path}");
        }
        assert!(fs::metadata(at("real/below")).unwrap().is_dir());
        let through = format!("/proc/self/root{}", at("planted"));
        let made = make_cwd(&through);
        assert!(!Path::new(&at("planted")).exists(), "{made:?}");
        // Entering says what is wrong with what is there and is no folder.
        assert!(make_cwd(&at("file")).is_ok());
        assert_eq!(change_to(&at("file")), Err(Errno::NOTDIR));
        assert_eq!(change_to(&through), Err(Errno::LOOP));
    }
}
