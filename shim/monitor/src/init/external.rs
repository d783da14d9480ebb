//! A container made, or an exec begun, by an OCI runtime of the node such as runc or crun. Owns the steps
//! of its command line, and what it finds ready: the root file system, and the sources of mounts, in a
//! mount namespace of the program's own, so that nothing stays in the host's table. Never reads what the
//! program is told; that is the runtime's to write (`handler::document`). Called in a cloned child by
//! `monitor::external`: the child waits for each step, and what the program leaves running becomes the
//! monitor's, which is a subreaper (runtime-traps 2.7).

#![expect(clippy::disallowed_methods, reason = "a document for one run of an OCI runtime, not kept")]

use std::convert::Infallible;
use std::ffi::CString;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use gantry_failpoint::failpoint;
use gantry_proto::monitor::{External, StartContainer, UserMapping};
use rustix::fs::FileType;
use rustix::mount::MountAttrFlags;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};

use super::container::{JoinedNamespaces, shared_memory};
use super::program::Streams;
use super::{Progress, StepContext, StepError, images, mounts, pid, refuse, reset, rootfs, users};
use crate::descriptors;
use gantry_sys as sys;
use gantry_sys::clone::{CloneArgs, Cloned};

const CLONE_NEWNS: u64 = 0x0002_0000;

/// Of the program: it is the node's, and takes nothing from the monitor's variables.
const PATH: &std::ffi::CStr = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Below the bundle: what mounts are made of. `handler::document` names them.
pub const MOUNTS: &str = "mounts";

/// In it: the pod's shared memory.
pub const SHM: &str = "shm";

/// More of a log is not read.
const MAX_LOG: u64 = 64 << 10;

/// What a program is run with.
struct RuntimeCall<'a> {
    external: &'a External,
    /// Names the files of this run, below the bundle.
    name: &'a str,
    streams: &'a Streams<'a>,
    null: &'a OwnedFd,
}

/// Has the program make the container, and start it. `pod` is the pod's user namespace. Ends the process
/// once the container's program runs; returns only on failure.
///
/// # Errors
/// The step that failed, in the program's words; the caller reports it and ends the process.
pub fn container(
    start: &StartContainer,
    joined: &JoinedNamespaces<'_>,
    pod: Option<(&UserMapping, &OwnedFd)>,
    (streams, null): (&Streams<'_>, &OwnedFd),
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<Infallible, StepError> {
    let Some(external) = &start.external else {
        return refuse(libc::EINVAL, "the request names no OCI runtime");
    };
    let run = RuntimeCall { external, name: "config", streams, null };
    run.prepare_process()?;
    if let Some((mapping, _)) = pod {
        // The pod's root can't take them over.
        users::give_to_user(streams, mapping, start.uid, start.gid)?;
    }
    note(Progress::Step(&format!("have {} make the container", run.program())))?;
    let words = ["create", "--bundle", ".", "--pid-file", "config.pid"];
    run.run_create(
        &words,
        &start.id,
        CLONE_NEWNS,
        |note| prepare_mounts(start, external, joined, pod, note),
        note,
    )?;
    note(Progress::Step(&format!("have {} start the container", run.program())))?;
    run.run_step(&["start"], &start.id, [null, null, null], 0, |_| Ok(()), note)?;
    note(Progress::Ready)?;
    sys::exec::exit_now(0)
}

/// Has the program begin an exec in the container `id`, as `container`.
///
/// # Errors
/// The step that failed, in the program's words.
pub fn exec(
    process: &StartContainer,
    (name, id): (&str, &str),
    (streams, null): (&Streams<'_>, &OwnedFd),
    note: &mut dyn FnMut(Progress<'_>) -> Result<(), StepError>,
) -> Result<Infallible, StepError> {
    let Some(external) = &process.external else {
        return refuse(libc::EINVAL, "the request names no OCI runtime");
    };
    let run = RuntimeCall { external, name, streams, null };
    run.prepare_process()?;
    if let Some(mapping) = &process.users {
        users::give_to_user(streams, mapping, process.uid, process.gid)?;
    }
    let (document, pid_file) = (run.file("json"), run.file("pid"));
    note(Progress::Step(&format!("have {} begin the exec", run.program())))?;
    let words = ["exec", "--process", &document, "--pid-file", &pid_file, "--detach"];
    let made = run.run_create(&words, id, 0, |_| Ok(()), note);
    for kind in ["json", "pid", "log"] {
        // What is not there is as good.
        let _ = fs::remove_file(run.file(kind));
    }
    made?;
    note(Progress::Ready)?;
    sys::exec::exit_now(0)
}

impl RuntimeCall<'_> {
    fn program(&self) -> &str {
        self.external.program.rsplit('/').next().unwrap_or_default()
    }

    /// Relative to the bundle, which is where everybody stands: names of sockets must be short.
    fn file(&self, kind: &str) -> String {
        format!("{}.{kind}", self.name)
    }

    /// A group of its own, to be ended as one, and the document where the program looks for it.
    fn prepare_process(&self) -> Result<(), StepError> {
        rustix::process::setsid().step(|| "start a session".into())?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let bundle = &self.external.bundle;
        fs::create_dir_all(bundle).step(|| format!("make {bundle}"))?;
        rustix::process::chdir(bundle.as_str()).step(|| format!("enter {bundle}"))?;
        let document = self.file("json");
        fs::write(&document, &self.external.document).step(|| format!("write {bundle}/{document}"))
    }

    /// Runs a step that leaves a process behind: tells who that is, and passes on its terminal.
    fn run_create(
        &self,
        words: &[&str],
        id: &str,
        namespaces: u64,
        prepare: impl FnOnce(&mut ProgressFn<'_>) -> Result<(), StepError>,
        note: &mut ProgressFn<'_>,
    ) -> Result<(), StepError> {
        let socket = self.file("sock");
        let (listener, stdio) = match self.streams {
            Streams::Pipes { stdin, stdout, stderr } => (None, [*stdin, *stdout, *stderr]),
            Streams::Terminal(_) => {
                let listener =
                    UnixListener::bind(&socket).step(|| "bind a socket for the terminal".into())?;
                listener.set_nonblocking(true).step(|| "make a socket non-blocking".into())?;
                (Some(listener), [self.null, self.null, self.null])
            }
        };
        let terminal = if listener.is_some() { &["--console-socket", socket.as_str()][..] } else { &[] };
        let made = self.run_step(&[words, terminal].concat(), id, stdio, namespaces, prepare, note);
        if listener.is_some() {
            // Connected to by now, or never.
            let _ = fs::remove_file(&socket);
        }
        made?;
        let pid = self.read_pid()?;
        failpoint!("child.program-moves");
        note(Progress::Moved(pid))?;
        let (Some(listener), Streams::Terminal(terminal)) = (listener, self.streams) else { return Ok(()) };
        let (sent, _) = listener.accept().step(|| format!("{} sent no terminal", self.program()))?;
        let master = descriptors::receive_one(&sent.into())
            .step(|| format!("receive the terminal of {}", self.program()))?;
        descriptors::send(terminal.socket.as_fd(), master.as_fd())
            .step(|| "send the terminal's master".into())
    }

    fn read_pid(&self) -> Result<i32, StepError> {
        let file = self.file("pid");
        let text = fs::read_to_string(&file).step(|| format!("read {}/{file}", self.external.bundle))?;
        match text.trim().parse() {
            Ok(pid) if pid > 1 => Ok(pid),
            _ => refuse(libc::EINVAL, format!("{} says that the process is {text:?}", self.program())),
        }
    }

    /// Runs the program to its end.
    fn run_step(
        &self,
        words: &[&str],
        id: &str,
        stdio: [&OwnedFd; 3],
        namespaces: u64,
        prepare: impl FnOnce(&mut ProgressFn<'_>) -> Result<(), StepError>,
        note: &mut ProgressFn<'_>,
    ) -> Result<(), StepError> {
        let log = self.file("log");
        // Of the step before.
        let _ = fs::remove_file(&log);
        let flags = ["--root", &self.external.root, "--log", &log, "--log-format", "json"];
        let line: Vec<&str> =
            [self.external.program.as_str()].iter().chain(&flags).chain(words).copied().collect();
        let (told, tells) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step(|| "make a pipe".into())?;
        let own = rustix::process::getpid();
        match pid::clone(
            &CloneArgs { namespaces, cgroup: None, sibling: false },
            "a process for the OCI runtime",
        )? {
            Cloned::Parent { pid, .. } => {
                drop(tells);
                self.report_outcome(words.first().unwrap_or(&""), pid, told, &log)
            }
            Cloned::Child => {
                let Err(error) =
                    prepare(note).and_then(|()| self.exec(&[&line[..], &[id]].concat(), stdio, own));
                let errno = error.source.raw_os_error().unwrap_or(0);
                // With the reader gone there is nobody to tell.
                let _ =
                    rustix::io::write(&tells, &[&errno.to_le_bytes()[..], error.what.as_bytes()].concat());
                sys::exec::exit_now(127)
            }
        }
    }

    fn report_outcome(&self, verb: &str, pid: i32, told: OwnedFd, log: &str) -> Result<(), StepError> {
        let mut text = Vec::new();
        // Ends when the program begins.
        fs::File::from(told).read_to_end(&mut text).step(|| "hear of the OCI runtime".into())?;
        let ended = rustix::process::waitpid(Pid::from_raw(pid), WaitOptions::empty())
            .step(|| format!("wait for {}", self.program()))?;
        if let [a, b, c, d, what @ ..] = text.as_slice() {
            return refuse(i32::from_le_bytes([*a, *b, *c, *d]), String::from_utf8_lossy(what));
        }
        let status = match ended {
            Some((_, status)) if status.exit_status() == Some(0) => return Ok(()),
            Some((_, status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("it ended with {code}"),
                (None, signal) => format!("it was ended by signal {}", signal.unwrap_or_default()),
            },
            None => "it is gone".to_owned(),
        };
        let words = last_log_error(Path::new(log)).unwrap_or(status);
        refuse(0, format!("{} {verb} failed: {words}", self.program()))
    }

    /// Becomes the program; `parent` is who waits for it.
    fn exec(
        &self,
        line: &[&str],
        [stdin, stdout, stderr]: [&OwnedFd; 3],
        parent: Pid,
    ) -> Result<Infallible, StepError> {
        let program = &self.external.program;
        rustix::process::chdir(self.external.bundle.as_str())
            .step(|| format!("enter {}", self.external.bundle))?;
        rustix::stdio::dup2_stdin(stdin).step(|| "connect stdin".into())?;
        rustix::stdio::dup2_stdout(stdout).step(|| "connect stdout".into())?;
        rustix::stdio::dup2_stderr(stderr).step(|| "connect stderr".into())?;
        reset::all()?;
        // Given up with the one that waits for it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .step(|| "set the death signal".into())?;
        if rustix::process::getppid() != Some(parent) {
            return refuse(libc::ESRCH, "the start was called off");
        }
        let string = |word: &&str| CString::new(*word).step(|| format!("{word:?} holds a NUL"));
        let line = line.iter().map(string).collect::<Result<Vec<_>, _>>()?;
        let path = CString::new(program.as_str()).step(|| format!("{program:?} holds a NUL"))?;
        sys::exec::exec_path(&path, &line, &[PATH.to_owned()]).step(|| format!("exec {program}"))
    }
}

type ProgressFn<'a> = dyn FnMut(Progress<'_>) -> Result<(), StepError> + 'a;

/// The last error that the program wrote into its log, which is JSON by lines.
fn last_log_error(log: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(log).ok()?.take(MAX_LOG).read_to_string(&mut text).ok()?;
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok();
    let of = |value: serde_json::Value| {
        let is_error = matches!(value.get("level")?.as_str()?, "error" | "fatal");
        is_error.then(|| value.get("msg")?.as_str().map(|text| text.trim().to_owned())).flatten()
    };
    text.lines().rev().filter_map(line).find_map(of)
}

/// In the program's own mount namespace: the root file system at its place, and below the bundle the sources
/// of mounts as the document names them.
fn prepare_mounts(
    start: &StartContainer,
    external: &External,
    joined: &JoinedNamespaces<'_>,
    pod: Option<(&UserMapping, &OwnedFd)>,
    note: &mut ProgressFn<'_>,
) -> Result<(), StepError> {
    let Some(root) = &start.rootfs else {
        return refuse(libc::EINVAL, "the request has no root file system");
    };
    let mut sources = mounts::sources(&start.mounts, pod)?;
    rootfs::detach_from_host()?;
    if let Some((_, users)) = pod {
        rootfs::map_layers(&root.layers_dir, users)?;
    }
    images::fill(&mut sources, &start.mounts, root, note)?;
    let shm = shared_memory(start, joined)?;
    note(Progress::Step("mount the root file system"))?;
    rootfs::mount(root, &start.mount_label)?;
    let place = format!("{}/{MOUNTS}", external.bundle);
    fs::create_dir_all(&place).step(|| format!("make {place}"))?;
    let tmpfs = mounts::new_filesystem("tmpfs", &[("mode", "700")], MountAttrFlags::empty())?;
    mounts::attach(tmpfs.as_fd(), open(&place)?.as_fd(), &place)?;
    attach_tree(&shm, &format!("{place}/{SHM}"))?;
    for (index, (mount, source)) in start.mounts.iter().zip(&sources).enumerate() {
        let Some(source) = source else { continue };
        note(Progress::Step(&format!("mount {} on {}", mount.source, mount.destination)))?;
        attach_tree(source, &format!("{place}/{index}"))?;
        if mount.recursive_readonly {
            // All below it here; the mount itself is for the program.
            sys::mount::make_tree_read_only(source.as_fd())
                .step(|| format!("make {} and all below it read-only", mount.destination))?;
        }
    }
    Ok(())
}

fn attach_tree(tree: &OwnedFd, path: &str) -> Result<(), StepError> {
    let kind = rustix::fs::fstat(tree).step(|| format!("look at the mount source for {path}"))?;
    let made = if FileType::from_raw_mode(kind.st_mode).is_dir() {
        fs::create_dir(path)
    } else {
        fs::File::create_new(path).map(drop)
    };
    made.step(|| format!("make {path}"))?;
    mounts::attach(tree.as_fd(), open(path)?.as_fd(), path)
}

fn open(path: &str) -> Result<OwnedFd, StepError> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).step(|| format!("open {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_a_log_is_what_the_program_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = |text: &str| {
            fs::write(file.path(), text).unwrap();
            last_log_error(file.path())
        };
        let lines = "{\"level\":\"warning\",\"msg\":\"w\"}\n{\"level\":\"error\",\"msg\":\"no such file \"}\n\
                     {\"level\":\"debug\",\"msg\":\"d\"}\nnot json\n";
        assert_eq!(of(lines).as_deref(), Some("no such file"));
        assert_eq!(of("{\"level\":\"error\"}\n"), None);
        assert_eq!(of(""), None);
        assert_eq!(last_log_error(Path::new("/nonexistent")), None);
    }
}
