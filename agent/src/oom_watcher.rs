//! When the machine itself has run out of memory: the kernel's log says whom it killed, and the node's
//! owner hears of it as SystemOOM. Owns reading `/dev/kmsg`, on a thread of its own; never tells of a limit that a pod ran into,
//! which its containers show. Called by the kubelet.
//!
//! ```text
//! "… invoked oom-killer: …" ──▶ whose limit? ──▶ "Killed process 7 (name) …" ──▶ told, if nobody's
//! ```

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::events::sink::Recorder;
use crate::events::{Kind, NodeNote};

/// The kernel's log.
const LOG: &str = "/dev/kmsg";
/// The kernel's own bound for one record (CONSOLE_EXT_LOG_MAX).
const RECORD: usize = 8192;
/// The cgroup whose limit is the machine's.
const EVERYBODY: &str = "/";

/// What the kernel did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Kill {
    /// Whose limit was reached.
    group: String,
    process: String,
    pid: i32,
}

impl Kill {
    /// The event's message, when it was the machine that had too little; in upstream's words.
    fn told(&self) -> Option<String> {
        if self.group != EVERYBODY {
            return None;
        }
        Some(if self.process.is_empty() || self.pid == 0 {
            "System OOM encountered".to_owned()
        } else {
            format!("System OOM encountered, victim process: {}, pid: {}", self.process, self.pid)
        })
    }
}

/// Reads the kernel's messages one by one.
#[derive(Debug, Default)]
struct Reader {
    /// Between the first and the last line of a kill: the group whose limit it was.
    group: Option<String>,
}

impl Reader {
    /// A record, as dev-kmsg says: `PRIORITY,SEQUENCE,TIME,-;MESSAGE`.
    fn record(&mut self, record: &str) -> Option<Kill> {
        let (_, message) = record.split_once(';')?;
        let Some(group) = &mut self.group else {
            if message.contains("invoked oom-killer:") {
                self.group = Some(EVERYBODY.to_owned());
            }
            return None;
        };
        // Before Linux 5.0.
        if let Some((_, of)) = between(message, "Task in ", " killed as a result of limit of ") {
            of.trim_end().clone_into(group);
        }
        let kill = of_a_limit(message).or_else(|| {
            let (process, pid) = parse_kill_message(message)?;
            Some(Kill { group: group.clone(), process, pid })
        })?;
        self.group = None;
        Some(kill)
    }
}

/// What is between two words, and what comes behind them.
fn between<'a>(text: &'a str, first: &str, second: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(first)?.1.split_once(second)
}

/// Since Linux 5.0: `oom-kill:constraint=…,oom_memcg=/of/limit,task_memcg=…,task=name,pid=7,uid=0`. That
/// of the whole machine has `global_oom` in place of a group.
fn of_a_limit(message: &str) -> Option<Kill> {
    let (_, rest) = message.split_once("oom-kill:constraint=")?;
    let (group, rest) = between(rest, ",oom_memcg=", ",task_memcg=")?;
    let (_, rest) = rest.split_once(",task=")?;
    // A process may have any name.
    let (process, rest) = rest.rsplit_once(",pid=")?;
    let (pid, _) = rest.split_once(",uid=")?;
    Some(Kill { group: group.to_owned(), process: process.to_owned(), pid: pid.parse().ok()? })
}

/// `Out of memory: Killed process 7 (name) total-vm:…`.
fn parse_kill_message(message: &str) -> Option<(String, i32)> {
    let (_, rest) = message.split_once("Killed process ")?;
    let (pid, rest) = rest.split_once(" (")?;
    let (process, _) = rest.rsplit_once(')')?;
    Some((process.to_owned(), pid.parse().ok()?)).filter(|(process, _)| !process.is_empty())
}

/// Tells for as long as the process lives, from a thread of its own: reading the log waits, and nobody
/// waits for that. As upstream from the log's beginning: it may have been this very process that was
/// killed last.
pub(crate) fn watch(recorder: Recorder) {
    let begun = std::thread::Builder::new().name("oom".to_owned()).spawn(move || {
        let open = rustix::fs::open(LOG, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty());
        let followed = open.and_then(|log| follow(&log, &recorder));
        tracing::warn!(err = ?followed, path = LOG, "no more SystemOOM events: reading the kernel's log has ended");
    });
    if let Err(error) = begun {
        tracing::warn!(err = %error, path = LOG, "no SystemOOM events: no thread to read the kernel's log");
    }
}

/// Each read of `log` gives one record; to its end.
fn follow(log: &OwnedFd, recorder: &Recorder) -> Result<(), Errno> {
    let (mut reader, mut buffer) = (Reader::default(), vec![0; RECORD]);
    loop {
        let count = match rustix::io::read(log, &mut buffer[..]) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            // What was to be read next has been overwritten: the next one is what there is.
            Err(Errno::PIPE | Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        let record = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
        if let Some(message) = reader.record(&record).and_then(|kill| kill.told()) {
            tracing::info!(message, "Got sys oom event");
            recorder.node(NodeNote { kind: Kind::Warning, reason: "SystemOOM", message });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_kube_client::fake_apiserver::FakeApiServer;
    use gantry_model::clock::FakeClock;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use tokio::sync::watch;

    use super::*;
    use crate::events::sink;

    const OF_THE_MACHINE: [&str; 4] = [
        "4,800,9000,-;stress invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0",
        "4,801,9001,-;Mem-Info:",
        "6,802,9002,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=stress,pid=4711,uid=0",
        "3,803,9003,-;Out of memory: Killed process 4711 (stress (1)) total-vm:8388608kB, anon-rss:1kB, UID:0 oom_score_adj:0",
    ];

    const OF_A_POD: [&str; 3] = [
        "4,900,9100,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=1000",
        "6,901,9101,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/podx,task_memcg=/kubepods/podx/c,task=python,pid=99,uid=0",
        "3,902,9102,-;Memory cgroup out of memory: Killed process 99 (python) total-vm:1kB",
    ];

    fn kills(records: &[&str]) -> Vec<Kill> {
        let mut reader = Reader::default();
        records.iter().filter_map(|record| reader.record(record)).collect()
    }

    #[test]
    fn a_kill_for_the_machine_names_its_victim() {
        let [kill] = &kills(&OF_THE_MACHINE)[..] else { panic!() };
        assert_eq!(
            kill.told().as_deref(),
            Some("System OOM encountered, victim process: stress (1), pid: 4711")
        );
        let nameless = Kill { group: "/".into(), ..Kill::default() };
        assert_eq!(nameless.told().as_deref(), Some("System OOM encountered"));
    }

    #[test]
    fn a_kill_for_a_limit_is_its_cgroups_alone() {
        let [kill] = &kills(&OF_A_POD)[..] else { panic!() };
        let of = Kill { group: "/kubepods/podx".into(), process: "python".into(), pid: 99 };
        assert_eq!((kill, kill.told()), (&of, None));
        let old = [
            "4,1,1,-;a invoked oom-killer: x",
            "6,2,1,-;Task in /kubepods/podx/c killed as a result of limit of /kubepods/podx",
            "3,3,1,-;Killed process 7 (a) total-vm:1kB",
        ];
        assert_eq!(kills(&old)[0].told(), None);
        // Without its beginning a kill is nobody's: it is not known whose limit it was.
        assert_eq!(kills(&OF_THE_MACHINE[1..]), []);
        assert_eq!(kills(&["rubbish", "4,1,1,-"]), []);
    }

    #[tokio::test]
    async fn the_nodes_owner_hears_of_the_machines_own_alone() {
        let server = FakeApiServer::default();
        let (recorder, queue) = sink::queue(Arc::new(FakeClock::new(1_700_000_000)));
        let (_pods, pods) = watch::channel(Arc::from([]));
        drop(crate::pod_workers::events::run(Some(server.client()), "n1", queue, pods));
        // As the kernel's log: a record each read.
        let (kind, none) = (SocketType::SEQPACKET, SocketFlags::empty());
        let (into, log) = socketpair(AddressFamily::UNIX, kind, none, None).unwrap();
        for record in OF_A_POD.iter().chain(&OF_THE_MACHINE) {
            rustix::io::write(&into, record.as_bytes()).unwrap();
        }
        drop(into);
        follow(&log, &recorder).unwrap();
        let event = server.until("the event", |server| server.all("/api/v1/events").into_iter().next()).await;
        assert_eq!((&event["reason"], &event["type"]), (&"SystemOOM".into(), &"Warning".into()));
        assert_eq!(server.all("/api/v1/events").len(), 1);
    }
}
