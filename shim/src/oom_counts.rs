//! Containers that run out of memory while they go on: watches the kernel's counter of each. Owns the watching; how a
//! container ended is its exit's to say. Started where a container is found to run, tells the clients of
//! WatchOutOfMemory.

#![expect(
    clippy::disallowed_methods,
    reason = "the watch ends with the container's cgroup; the file is the kernel's"
)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gantry_failpoint::failpoint;
use gantry_proto::monitor::CgroupTarget;
use gantry_proto::runtime_ext::OutOfMemory;
use rustix::event::EventfdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::cgroup::Cgroup;
use crate::cgroup::stats::field;
use crate::node::Node;
use crate::store::Container;
use crate::sys;

/// v1 notifies before it kills, and a container may run out of memory hundreds of times a second.
const SETTLE: Duration = Duration::from_millis(100);
/// On v1, of them, before what was notified of is taken for one that nobody died of.
const LOOKS: u32 = 20;

/// Tells of each rise of the counter above `seen`, which has been told or is an earlier runtime's matter, until the
/// container has ended. None: whatever it is now.
pub(crate) fn watch_container(node: &Arc<Node>, container: &Arc<Container>, seen: Option<u64>) {
    let (node, container) = (Arc::clone(node), Arc::clone(container));
    tokio::spawn(async move {
        let path = container.record().cgroup.clone();
        let watched = Cgroup::new(&node.layout, &path).map_err(io::Error::other);
        match watched.and_then(|cgroup| OomCounter::watch(&cgroup.target())) {
            Ok(counter) => {
                tokio::select! {
                    () = report_rises(&node, &container.id, &counter, seen) => {}
                    () = container.wait_for_end() => {}
                }
            }
            // Its metrics tell all the same.
            Err(error) => tracing::debug!(container = container.id, %error, "nobody watches its memory"),
        }
    });
}

async fn report_rises(node: &Node, id: &str, counter: &OomCounter, seen: Option<u64>) {
    let mut seen = seen.unwrap_or_else(|| counter.value());
    loop {
        failpoint!("task.ooms");
        let now = counter.value();
        if now > seen {
            tracing::info!(container = id, kills = now, "out of memory: processes were killed");
            node.oom_events.send(OutOfMemory { container_id: id.to_owned(), kills: now });
            seen = now;
        }
        if let Err(error) = counter.wait_for_change().await {
            // The cgroup has gone, and the container is about to be said to have ended.
            tracing::debug!(container = id, %error, "its memory is watched no more");
            return;
        }
        let looks = if counter.interest.is_readable() { LOOKS } else { 1 };
        for _ in 0..looks {
            tokio::time::sleep(SETTLE).await;
            if counter.value() > seen {
                break;
            }
        }
    }
}

/// The counter of one cgroup, and what the kernel notifies of it by: on v2 the file itself (`EPOLLPRI`; inotify has
/// 128 instances for the whole node), on v1 an eventfd.
#[derive(Debug)]
struct OomCounter {
    file: std::path::PathBuf,
    notifier: AsyncFd<OwnedFd>,
    interest: Interest,
}

impl OomCounter {
    fn watch(cgroup: &CgroupTarget) -> io::Result<Self> {
        let path = Path::new(&cgroup.oom_counter);
        let file = File::open(path)?;
        let (notifier, interest) = if cgroup.unified {
            (sys::watch_exceptions(file.into())?, Interest::PRIORITY)
        } else {
            let told = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let control = path.with_file_name("cgroup.event_control");
            fs::write(control, format!("{} {}", told.as_raw_fd(), file.as_raw_fd()))?;
            (sys::watch(told)?, Interest::READABLE)
        };
        Ok(Self { file: path.to_owned(), notifier, interest })
    }

    /// 0 where it can't be read: the cgroup has gone.
    fn value(&self) -> u64 {
        fs::read_to_string(&self.file).map_or(0, |text| field(&text, "oom_kill"))
    }

    async fn wait_for_change(&self) -> io::Result<()> {
        let mut ready = self.notifier.ready(self.interest).await?;
        if self.interest.is_readable() {
            // The number of times, which says less than the counter does.
            match rustix::io::read(self.notifier.get_ref(), &mut [0_u8; 8]) {
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        ready.clear_ready();
        Ok(())
    }
}
