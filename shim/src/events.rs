//! The event task: what monitors tell becomes the state of containers and sandboxes. Owns no state
//! of its own. Started by `runtime::Runtime::start`; `handle_monitor_loss` is also recovery's.

#![expect(
    clippy::disallowed_methods,
    reason = "a sandbox whose monitor is lost is ended once, and nobody waits for it"
)]

use std::sync::Arc;
use std::time::Duration;

use gantry_failpoint::failpoint;
use gantry_proto::monitor::Exited;
use tokio::sync::mpsc;

use crate::container::end;
use crate::monitor_client::Event;
use crate::node::Node;
use crate::reconnect;
use crate::sandbox::stop;
use crate::store::{Sandbox, SandboxState};
use gantry_monitor::exit::ExitRecord;

/// Between attempts to reach a monitor that does not answer; doubled each time.
const RECONNECT: Duration = Duration::from_secs(1);
const RECONNECT_AT_MOST: Duration = Duration::from_secs(30);

/// Runs as long as the runtime: `node` holds a sender itself.
pub(crate) async fn run(node: Arc<Node>, mut events: mpsc::UnboundedReceiver<Event>) {
    while let Some(event) = events.recv().await {
        failpoint!("task.events");
        match event {
            Event::Exited { sandbox, exited } => record_exit(&node, &sandbox, &exited),
            Event::Gone { sandbox } => {
                let Ok(sandbox) = node.store.sandbox(&sandbox) else { continue };
                // A stop lets go of its monitor first: that is no loss.
                if sandbox.monitor().is_some() {
                    tokio::spawn(handle_connection_loss(node.clone(), sandbox));
                }
            }
        }
    }
}

/// A connection can be lost while its monitor lives, which drops a runtime that does not read, and a
/// monitor that lives may not answer yet. Only one that is gone ends its pod.
pub(crate) async fn handle_connection_loss(node: Arc<Node>, sandbox: Arc<Sandbox>) {
    // News of connections that this makes in vain is not news of a loss.
    sandbox.set_monitor(None);
    let mut pause = RECONNECT;
    loop {
        failpoint!("task.reconnect");
        match reconnect::reconnect(&node, &sandbox).await {
            Ok(true) => {
                tracing::warn!(sandbox = sandbox.id, "connected to the monitor again");
                return;
            }
            Ok(false) => {
                tracing::warn!(sandbox = sandbox.id, "the monitor is gone, ending the pod");
                return handle_monitor_loss(node, sandbox).await;
            }
            Err(error) => {
                tracing::warn!(
                    sandbox = sandbox.id,
                    "connecting again: {}",
                    gantry_base::error::chain(&error)
                );
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_AT_MOST);
        if sandbox.state() == SandboxState::NotReady {
            // Stopped: there is no monitor to come back to.
            return;
        }
    }
}

fn record_exit(node: &Arc<Node>, sandbox: &str, exited: &Exited) {
    if exited.id == sandbox {
        if let Ok(sandbox) = node.store.sandbox(sandbox) {
            stop::mark_lost(node, &sandbox);
        }
        return;
    }
    let Ok(container) = node.store.container(&exited.id) else { return };
    let exit = ExitRecord::with_exit_code(exited.exit_code, exited.finished_at_unix_nanos, exited.oom_kills)
        .with_started_at(exited.started_at_unix_nanos);
    tracing::info!(container = container.id, code = exit.exit_code, "container ended");
    end::end(node, &container, &exit);
}

/// Without its monitor nobody writes a pod's logs or sees its exits: the pod is ended. Exit codes come
/// from the records, from the kernel where it keeps them (Linux 6.15), else 255.
pub(crate) async fn handle_monitor_loss(node: Arc<Node>, sandbox: Arc<Sandbox>) {
    sandbox.set_monitor(None);
    // First whoever it had running an OCI runtime: that one would go on, and make anew what is ended here.
    end::kill(&node, vec![node.monitor_cgroup(&sandbox.id), sandbox.record().pause_cgroup()]).await;
    failpoint!("lost.killed");
    end::end_rest(&node, &sandbox.id).await;
    failpoint!("lost.ended");
    stop::mark_lost(&node, &sandbox);
    // A start that the monitor had still answered moves its container on, and then looks at the sandbox:
    // it finds it lost, or is found here.
    end::end_rest(&node, &sandbox.id).await;
}
