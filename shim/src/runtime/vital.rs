//! A task that the runtime is nothing without. Owns how others learn that it has ended; does not know what it does.
//! Called by `runtime`.

#![expect(
    clippy::disallowed_methods,
    reason = "this is where tasks without which the runtime is none are watched"
)]

use std::future::Future;

use tokio::sync::watch;

/// It should run as long as the runtime; held by whoever serves on the strength of it.
#[derive(Debug)]
pub(super) struct RequiredTask {
    /// Nothing is ever sent: the other half goes with the task, however that ends.
    alive: watch::Receiver<()>,
}

impl RequiredTask {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        let (goes, alive) = watch::channel(());
        tokio::spawn(async move {
            let _goes = goes;
            task.await;
        });
        Self { alive }
    }

    /// What comes of `work`; None when the task ends before, and the work is dropped.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut alive = self.alive.clone();
        let over = async { while alive.changed().await.is_ok() {} };
        tokio::select! {
            // Both are polled to their end or dropped with this call: nothing is lost between turns.
            done = work => Some(done),
            () = over => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_with_the_task_that_it_needs_however_that_ends() {
        assert_eq!(RequiredTask::spawn(std::future::pending()).during(async { 1 }).await, Some(1));
        let returns = RequiredTask::spawn(async {});
        assert_eq!(returns.during(std::future::pending::<()>()).await, None);
        let panics = RequiredTask::spawn(async { panic!("a task dies") });
        assert_eq!(panics.during(std::future::pending::<()>()).await, None);
    }
}
