//! Work on the files of a server, which may never answer: each piece in a thread of its own, so that those who share
//! threads do not wait for it. Owns the threads; what the work is says who hands it in. Called by [`super::host`].

use std::path::Path;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::turns::Turns;

/// Where work on a folder hangs, no second thread begins.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnThreads(Turns);

impl OwnThreads {
    /// Does the work, which blocks, when no other for that folder is under way.
    ///
    /// # Errors
    /// What failed; and when it was not done within `patience`, in which case it goes on.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        folder: &Path,
        patience: Duration,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let turn = self.0.of(folder);
        let done = async move {
            let turn = turn.lock_owned().await;
            let (tell, told) = oneshot::channel();
            let thread = std::thread::Builder::new().name("server-files".to_owned());
            let began = thread.spawn(move || {
                let result = work();
                // Before anybody hears of it: who comes next must not wait for nothing.
                drop(turn);
                // Nobody may wait for it any more.
                drop(tell.send(result));
            });
            began.map_err(|error| format!("start a thread: {error}"))?;
            told.await.map_err(|_| "the work on a volume died".to_owned())?
        };
        let late = || {
            format!(
                "{} does not answer for {} s: see whether its server does",
                folder.display(),
                patience.as_secs()
            )
        };
        timeout(patience, done).await.unwrap_or_else(|_| Err(late()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_has_one_thread_and_holds_up_no_other_folder() {
        let threads = OwnThreads::default();
        let (answer, server) = mpsc::channel::<()>();
        let hangs = move || server.recv().map_err(|error| error.to_string());
        let (dead, fine) = (Path::new("/k/dead"), Path::new("/k/fine"));
        let told = threads.run(dead, Duration::from_secs(30), hangs).await.unwrap_err();
        assert_eq!(told, "/k/dead does not answer for 30 s: see whether its server does");
        // Its turn has not come: it never began.
        let second =
            threads.run(dead, Duration::from_secs(30), || -> Result<(), String> { panic!("it began") });
        assert!(second.await.is_err());
        answer.send(()).unwrap();
        tokio::time::resume();
        assert_eq!(threads.run(fine, LONG, || Ok(1)).await, Ok(1));
        assert_eq!(threads.run(dead, LONG, || Ok(2)).await, Ok(2));
        assert_eq!(threads.run(dead, LONG, || Err::<(), _>("no".to_owned())).await, Err("no".to_owned()));
    }
}
