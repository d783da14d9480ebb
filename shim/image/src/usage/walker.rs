//! The one thread that counts what folders hold. Owns the queue to it and how old a figure may be; knows
//! neither containers nor layers. Asked by `stats` and by ImageFsInfo, which wait for a moment and then
//! answer with the last figure: counting takes as long as whoever fills a folder likes, and a query that
//! counts itself would hold up the figures of the whole node, and a thread each time it is made.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use gantry_failpoint::failpoint;

use super::{FolderCount, Usage, of_folder};
use gantry_base::mutex::lock;
use gantry_base::timeline::unix_nanos;

/// containerd's `stats_collect_period`.
const MAX_AGE: Duration = Duration::from_secs(10);

/// How long a query waits for figures that are due. What is of usual size has been counted by then.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// What is known of one folder.
#[derive(Debug, Default)]
pub struct Figure(Mutex<UsageState>);

/// ```text
/// due ──ask──▶ waiting ──counted──▶ known, for as long as it is fresh ──▶ due
///  ▲              └──failed──▶ due, the last figure stays
///  └── at first
/// ```
#[derive(Debug, Default)]
struct UsageState {
    last_count: Option<LastCount>,
    waiting: bool,
}

/// A figure.
#[derive(Debug, Clone, Copy)]
pub struct LastCount {
    pub usage: Usage,
    /// Unix nanoseconds of the count's end.
    pub unix: i64,
    ended: Instant,
    took: Duration,
    /// Nothing can change it any more.
    last: bool,
}

impl LastCount {
    /// By its end, or a count that takes longer than a figure lives is due before it is done; and for as
    /// long as it took, or a large folder has the thread for itself.
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.ended) < MAX_AGE.max(self.took)
    }
}

impl Figure {
    /// The last count's; None before the first one.
    pub fn last_count(&self) -> Option<LastCount> {
        lock(&self.0).last_count
    }

    /// Makes it wait for a count if one is due.
    fn ask(&self, last: bool) -> CountRequest {
        let mut state = lock(&self.0);
        match (state.waiting, state.last_count) {
            (true, _) => CountRequest::Waits,
            (false, Some(known)) if known.last || (!last && known.is_fresh(Instant::now())) => {
                CountRequest::Fresh
            }
            (false, _) => {
                state.waiting = true;
                CountRequest::Queue
            }
        }
    }

    fn is_waiting(&self) -> bool {
        lock(&self.0).waiting
    }

    /// Of a folder that is too large to be counted to its end the larger figure stands: nobody is to hide
    /// what he wrote behind many small files.
    fn record(&self, counted: FolderCount, took: Duration, last: bool) {
        let mut state = lock(&self.0);
        let before = state.last_count.filter(|_| !counted.whole).map(|known| known.usage).unwrap_or_default();
        let usage = Usage {
            bytes: counted.usage.bytes.max(before.bytes),
            inodes: counted.usage.inodes.max(before.inodes),
        };
        state.last_count = Some(LastCount { usage, unix: unix_nanos(), ended: Instant::now(), took, last });
    }
}

/// What a question came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountRequest {
    Fresh,
    /// For somebody else's question already.
    Waits,
    /// And the folder must go into the queue.
    Queue,
}

/// A folder to count.
#[derive(Debug)]
pub struct Job {
    pub folder: PathBuf,
    pub figure: Arc<Figure>,
    /// Nothing can change it any more: this count will be the last.
    pub last: bool,
}

/// Told after each count; the thread says it without the lock of any figure.
#[derive(Debug, Default)]
struct CountSignal {
    lock: Mutex<()>,
    changed: Condvar,
}

/// The way to the thread, which ends with it.
#[derive(Debug)]
pub struct Walker {
    /// Bounded by the figures: each is in it once at most.
    jobs: mpsc::Sender<Job>,
    done: Arc<CountSignal>,
}

impl Walker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no room for one more.
    pub fn start() -> io::Result<Self> {
        Self::counting(of_folder)
    }

    fn counting(count: impl Fn(&Path) -> io::Result<FolderCount> + Send + 'static) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let done = Arc::new(CountSignal::default());
        let tell = Arc::clone(&done);
        thread::Builder::new().name("walker".to_owned()).spawn(move || {
            for job in queue {
                failpoint!("task.walker");
                let began = Instant::now();
                match count(&job.folder) {
                    Ok(counted) => job.figure.record(counted, began.elapsed(), job.last),
                    Err(error) => {
                        tracing::warn!(folder = %job.folder.display(), "cannot measure the folder: {error}");
                    }
                }
                lock(&job.figure.0).waiting = false;
                drop(lock(&tell.lock));
                tell.changed.notify_all();
            }
        })?;
        Ok(Self { jobs, done })
    }

    /// Has what is due counted, and waits for it no longer than `patience`. Blocks for as long.
    pub fn ask(&self, jobs: impl IntoIterator<Item = Job>, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut waiting = Vec::new();
        for job in jobs {
            let (asked, figure) = (job.figure.ask(job.last), Arc::clone(&job.figure));
            if asked == CountRequest::Queue && self.jobs.send(job).is_err() {
                // The thread has died of a panic; its figures stay as they are.
                return tracing::error!("the thread that measures folders has died: sizes stay as they are");
            }
            if asked != CountRequest::Fresh {
                waiting.push(figure);
            }
        }
        let mut guard = lock(&self.done.lock);
        loop {
            waiting.retain(|figure| figure.is_waiting());
            let left = deadline.saturating_duration_since(Instant::now());
            if waiting.is_empty() || left.is_zero() {
                return;
            }
            let told = self.done.changed.wait_timeout(guard, left);
            guard = told.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn job(folder: &Path, figure: &Arc<Figure>, last: bool) -> Job {
        Job { folder: folder.to_owned(), figure: Arc::clone(figure), last }
    }

    fn whole(inodes: u64) -> FolderCount {
        FolderCount { usage: Usage { bytes: 0, inodes }, whole: true }
    }

    #[test]
    fn an_ended_container_is_walked_once_more_and_never_again() {
        let folder = tempfile::tempdir().unwrap();
        let (walker, figure) = (Walker::start().unwrap(), Arc::default());
        let inodes = |last| {
            walker.ask([job(folder.path(), &figure, last)], LONG);
            figure.last_count().unwrap().usage.inodes
        };
        assert_eq!(inodes(false), 1);
        std::fs::write(folder.path().join("one"), "").unwrap();
        assert_eq!(inodes(false), 1, "the last walk is fresh enough");
        assert_eq!(inodes(true), 2);
        std::fs::write(folder.path().join("two"), "").unwrap();
        assert_eq!(inodes(true), 2);
    }

    #[test]
    fn a_count_that_does_not_end_keeps_nobody_and_is_not_begun_again() {
        let (release, held) = mpsc::channel::<u64>();
        let counts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&counts);
        let count = move |_: &Path| {
            counted.fetch_add(1, Ordering::SeqCst);
            held.recv().map(whole).map_err(io::Error::other)
        };
        let walker = Walker::counting(count).unwrap();
        let figure = Arc::default();
        for _ in 0..3 {
            walker.ask([job(Path::new("/large"), &figure, false)], Duration::from_millis(1));
            assert!(figure.last_count().is_none());
        }
        release.send(7).unwrap();
        walker.ask([job(Path::new("/large"), &figure, false)], LONG);
        assert_eq!(figure.last_count().unwrap().usage.inodes, 7);
        assert_eq!(counts.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_figures_age_counts_from_the_end_of_its_walk_and_is_no_less_than_that_took() {
        let ended = Instant::now();
        let known = |took| LastCount {
            usage: Usage::default(),
            unix: 0,
            ended,
            took: Duration::from_secs(took),
            last: false,
        };
        for (took, age, fresh) in [(0, 9, true), (0, 10, false), (60, 59, true), (60, 60, false)] {
            assert_eq!(known(took).is_fresh(ended + Duration::from_secs(age)), fresh, "{took} {age}");
        }
    }

    #[test]
    fn a_count_that_was_cut_short_never_shrinks_a_figure() {
        let figure = Figure::default();
        let note = |bytes, inodes, whole| {
            figure.record(FolderCount { usage: Usage { bytes, inodes }, whole }, Duration::ZERO, false);
            figure.last_count().unwrap().usage
        };
        note(100, 10, true);
        assert_eq!(note(50, 20, false), Usage { bytes: 100, inodes: 20 });
        assert_eq!(note(50, 5, true), Usage { bytes: 50, inodes: 5 });
    }

    #[test]
    fn a_folder_that_cannot_be_read_keeps_its_last_figure() {
        let good = Arc::new(AtomicU64::new(1));
        let answers = Arc::clone(&good);
        let count = move |_: &Path| match answers.load(Ordering::SeqCst) {
            0 => Err(io::Error::other("bad disk")),
            inodes => Ok(whole(inodes)),
        };
        let (walker, figure) = (Walker::counting(count).unwrap(), Arc::default());
        walker.ask([job(Path::new("/x"), &figure, false)], LONG);
        good.store(0, Ordering::SeqCst);
        walker.ask([job(Path::new("/x"), &figure, true)], LONG);
        assert_eq!(figure.last_count().unwrap().usage.inodes, 1);
    }
}
