//! Clones the children that have an OCI runtime make a container, or begin an exec. Owns what each keeps open;
//! the steps are `init::external`'s. Such a child is followed like one that goes on as another process: it
//! tells who the program's is, and the monitor, as subreaper, is that one's parent by then. Called by
//! `monitor::spawn`.

use std::os::fd::OwnedFd;

use gantry_proto::monitor::{Exec, StartContainer};

use super::report::{report_and_exit, write_progress};
use super::spawn::{
    ChildStreams, ParentStreams, PodNamespaces, SpawnedChild, keep_only, pipe, start_time_ticks, streams_of,
};
use crate::init::container::JoinedNamespaces;
use crate::init::program::Streams;
use crate::init::{self, StepError, pid};
use gantry_sys::clone::{CloneArgs, Cloned};

/// In the monitor's own namespaces and cgroup.
const HERE: CloneArgs<'static> = CloneArgs { namespaces: 0, cgroup: None, sibling: false };

/// Clones the child that has the program make the container.
pub(super) fn container(
    start: &StartContainer,
    held: &PodNamespaces,
    null: &OwnedFd,
) -> Result<SpawnedChild, StepError> {
    let (ends, theirs) = streams_of(start)?;
    let (report, child_end) = pipe()?;
    match pid::clone(&HERE, "a process for the OCI runtime")? {
        Cloned::Parent { pid, pidfd } => {
            drop((child_end, theirs));
            Ok(SpawnedChild { pid, pidfd, start_time_ticks: start_time_ticks(pid)?, report, ends })
        }
        Cloned::Child => report_and_exit(&child_end, || {
            let streams = theirs.streams(null);
            let mut kept = streams.descriptors();
            kept.extend([&child_end, null, &held.mnt]);
            kept.extend(held.users.as_ref());
            keep_only(&kept)?;
            // The program joins the rest by their paths.
            let joined = JoinedNamespaces { net: None, ipc: None, uts: None, mnt: &held.mnt, hooks: None };
            let users = start.users.as_ref().zip(held.users.as_ref());
            init::external::container(
                start,
                &joined,
                users,
                (&streams, null),
                &mut write_progress(&child_end),
            )
        }),
    }
}

/// Of an exec's files in the bundle, without what kind each is.
pub(super) fn file_name(request: &Exec) -> String {
    format!("exec-{}", request.id.get(..16).unwrap_or(&request.id))
}

/// Clones the child that has the program begin an exec.
pub(super) fn exec(
    request: &Exec,
    process: &StartContainer,
    theirs: &ChildStreams,
    null: &OwnedFd,
) -> Result<SpawnedChild, StepError> {
    let (report, child_end) = pipe()?;
    match pid::clone(&HERE, "a process for the OCI runtime")? {
        Cloned::Parent { pid, pidfd } => {
            drop(child_end);
            let start_time_ticks = start_time_ticks(pid)?;
            Ok(SpawnedChild { pid, pidfd, start_time_ticks, report, ends: ParentStreams::None })
        }
        Cloned::Child => report_and_exit(&child_end, || {
            let streams: Streams<'_> = theirs.streams(null);
            let mut kept = streams.descriptors();
            kept.extend([&child_end, null]);
            keep_only(&kept)?;
            let name = file_name(request);
            let who = (name.as_str(), request.container_id.as_str());
            init::external::exec(process, who, (&streams, null), &mut write_progress(&child_end))
        }),
    }
}
