//! Tells on the terminal how a pod goes: what `status_printer` says on stderr, what its containers
//! write on stdout with a prefix. Owns the telling; never gives an order. One task for
//! each pod, started by run, ends when the pod is over and its output is shown.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use gantry_agent::logs::follow::LogReader;
use gantry_agent::pod::status::{ContainerState, ContainerStatus, PodStatus};
use gantry_agent::pod::worker::PodHandle;
use gantry_base::error::chain;
use gantry_model::log_line::{Line, Stream};
use gantry_model::pod::PodUid;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::status_printer::StatusPrinter;
use crate::output;

const POLL: Duration = Duration::from_millis(50);
/// An ended container's log is complete when nothing came for this many looks.
const QUIET_LOOKS: u32 = 3;

/// Everybody who tells of a pod.
#[derive(Debug)]
pub(super) struct Narrators {
    tasks: JoinSet<()>,
    met: BTreeSet<PodUid>,
    form: Form,
}

/// How much is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// Prefixes name the pod as well.
    pub(super) several: bool,
    /// Stages are told, too.
    pub(super) stages: bool,
}

impl Narrators {
    pub(super) fn new(form: Form) -> Self {
        Self { tasks: JoinSet::new(), met: BTreeSet::new(), form }
    }

    /// Begins to tell of those that are new.
    pub(super) fn meet(&mut self, pods: &[PodHandle]) {
        // Reaps those whose pods are over.
        while self.tasks.try_join_next().is_some() {}
        // One that leaves may come back.
        let leaving = |uid: &PodUid| pods.iter().all(|h| h.pod.uid != *uid || h.is_leaving());
        self.met.retain(|uid| !leaving(uid));
        for handle in pods.iter().filter(|handle| !handle.is_leaving()) {
            if self.met.insert(handle.pod.uid.clone()) {
                self.tasks.spawn(narrate(handle.clone(), self.form));
            }
        }
        // A manifest that comes again is told of again.
        self.met.retain(|uid| pods.iter().any(|handle| handle.pod.uid == *uid));
    }

    /// Until everything was told.
    pub(super) async fn finish(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Follows the pod to its end.
async fn narrate(handle: PodHandle, form: Form) {
    let mut status = handle.status.clone();
    let (mut followers, mut followed) = (JoinSet::new(), BTreeSet::new());
    let mut printer = StatusPrinter::new(handle.pod.full_name(), form.stages);
    loop {
        let now = status.borrow_and_update().clone();
        printer.lines(&now).iter().for_each(|line| output::say(line));
        for container in with_log(&now) {
            if followed.insert(container.log_path.clone()) {
                let prefix = if form.several {
                    format!("[{}/{}] ", handle.pod.name, container.name)
                } else {
                    format!("[{}] ", container.name)
                };
                let path = PathBuf::from(&container.log_path);
                followers.spawn(follow(path, prefix, container.id.clone(), handle.status.clone()));
            }
        }
        if now.is_over() || status.changed().await.is_err() {
            break;
        }
    }
    while followers.join_next().await.is_some() {}
}

/// Init containers and sidecars write, too.
fn with_log(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.all_containers().filter(|container| !container.log_path.is_empty())
}

/// Prints a container's log as it grows, until the container has ended and its log is
/// still.
async fn follow(path: PathBuf, prefix: String, id: String, status: watch::Receiver<PodStatus>) {
    let mut reader = LogReader::new(&path);
    let mut writer = Prefixed { prefix, pending: Vec::new() };
    let mut quiet = 0;
    while quiet < QUIET_LOOKS {
        match reader.next().await {
            Ok(lines) if lines.is_empty() => {
                quiet = if runs(&status.borrow(), &id) { 0 } else { quiet + 1 };
                tokio::time::sleep(POLL).await;
            }
            Ok(lines) => {
                quiet = 0;
                // Nobody reads stdout any more: the pod goes on all the same.
                if output::print(&writer.render(&lines)).is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot show what the container writes");
                return;
            }
        }
    }
}

fn runs(status: &PodStatus, id: &str) -> bool {
    !status.is_over()
        && status.all_containers().any(|c| c.id == id && matches!(c.state, ContainerState::Running { .. }))
}

/// Puts the prefix before whole lines; the parts of a long one are joined for each stream.
struct Prefixed {
    prefix: String,
    pending: Vec<(Stream, Vec<u8>)>,
}

impl Prefixed {
    fn render(&mut self, lines: &[Line]) -> Vec<u8> {
        let mut out = Vec::new();
        for line in lines {
            let at = self.pending.iter().position(|(stream, _)| *stream == line.stream);
            let mut text = at.map(|at| self.pending.swap_remove(at).1).unwrap_or_default();
            text.extend_from_slice(&line.text);
            if line.partial {
                self.pending.push((line.stream, text));
                continue;
            }
            out.extend_from_slice(self.prefix.as_bytes());
            out.extend_from_slice(&text);
            out.push(b'\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_containers_and_sidecars_are_heard() {
        let container = |name: &str, log: &str, runs| ContainerStatus {
            name: name.into(),
            id: format!("id-{name}"),
            log_path: log.into(),
            state: if runs { ContainerState::Running { started_at: 1 } } else { ContainerState::default() },
            ..ContainerStatus::default()
        };
        let status = PodStatus {
            init_containers: vec![
                container("prep", "/prep/0.log", false),
                container("side", "/side/0.log", true),
            ],
            containers: vec![container("web", "", false)],
            ..PodStatus::default()
        };
        let names: Vec<&str> = with_log(&status).map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["prep", "side"]);
        assert!(runs(&status, "id-side") && !runs(&status, "id-prep"));
    }

    #[test]
    fn parts_are_joined_for_each_stream() {
        let line =
            |stream, partial, text: &str| Line { time: String::new(), stream, partial, text: text.into() };
        let mut writer = Prefixed { prefix: "[web] ".into(), pending: Vec::new() };
        let out = writer.render(&[
            line(Stream::Stdout, true, "a"),
            line(Stream::Stderr, false, "x"),
            line(Stream::Stdout, false, "b"),
        ]);
        assert_eq!(String::from_utf8(out).unwrap(), "[web] x\n[web] ab\n");
    }
}
