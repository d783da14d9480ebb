//! What a node's processes use: a cgroup in which they all are, those that have ended included. Owns the cgroup
//! and the reading of it; starts nothing. Called by `side`.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::leakcheck;

/// Between two looks at the memory.
const TICK: Duration = Duration::from_millis(5);
/// The kernel gives one page at once, and these files are no longer.
const MOST: usize = 16 << 10;

/// Gone when dropped; its processes must be gone before.
#[derive(Debug)]
pub(super) struct Meter {
    cpu: MeterSource,
    memory: MeterSource,
    folders: Vec<PathBuf>,
}

/// A line of a file; None: the file's only number.
#[derive(Debug, Clone)]
struct MeterSource {
    path: PathBuf,
    /// Open all the time: opening costs more than reading, and all that is measured has the same cores.
    file: Arc<File>,
    key: Option<&'static str>,
}

/// Looks until it is asked for the most that it saw.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Meter {
    /// Makes a cgroup for processor time and memory.
    ///
    /// # Errors
    /// When neither version of cgroups is mounted with both.
    pub(super) fn new(name: &str) -> Result<Self> {
        let mounts = leakcheck::mounts()?;
        let legacy = |controller: &str| {
            mounts
                .iter()
                .find(|mount| mount.kind == "cgroup" && mount.options.split(',').any(|own| own == controller))
                .map(|mount| mount.point.join(name))
        };
        let made = |folder: &Path| {
            std::fs::create_dir(folder).with_context(|| format!("make cgroup {}", folder.display()))
        };
        if let (Some(cpu), Some(memory)) = (legacy("cpuacct"), legacy("memory")) {
            let mut folders = vec![cpu.clone(), memory.clone()];
            folders.dedup();
            for folder in &folders {
                made(folder)?;
            }
            let cpu = MeterSource::new(cpu.join("cpuacct.usage"), None)?;
            let memory = MeterSource::new(memory.join("memory.stat"), Some("total_rss"))?;
            return Ok(Self { cpu, memory, folders });
        }
        let unified =
            mounts.iter().find(|mount| mount.kind == "cgroup2").context("no cgroups are mounted")?;
        // Enabled already, or the file of the memory will be missed.
        let _ = std::fs::write(unified.point.join("cgroup.subtree_control"), "+memory");
        let folder = unified.point.join(name);
        made(&folder)?;
        let cpu = MeterSource::new(folder.join("cpu.stat"), Some("usage_usec"))?;
        let memory = MeterSource::new(folder.join("memory.stat"), Some("anon"))?;
        Ok(Self { cpu, memory, folders: vec![folder] })
    }

    /// The folders that a process must enter.
    pub(super) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Writes a program that is `program` in here.
    ///
    /// # Errors
    /// When it can't be written.
    pub(super) fn write_wrapper(&self, program: &Path, to: &Path) -> Result<()> {
        let enter: String = self
            .folders
            .iter()
            .map(|folder| format!("echo 0 >{}/cgroup.procs\n", folder.display()))
            .collect();
        std::fs::write(to, format!("#!/bin/sh\nset -e\n{enter}exec {} \"$@\"\n", program.display()))?;
        std::fs::set_permissions(to, PermissionsExt::from_mode(0o755))?;
        Ok(())
    }

    /// Processor time of all that were ever in here.
    ///
    /// # Errors
    /// When the file is not of its form.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let value = self.cpu.value()?;
        Ok(if self.cpu.key.is_some() { Duration::from_micros(value) } else { Duration::from_nanos(value) })
    }

    /// Begins to look at the anonymous memory.
    pub(super) fn watch(&self) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let (memory, stopped) = (self.memory.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut most = memory.value()?;
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                most = most.max(memory.value()?);
            }
            Ok(most)
        });
        Watch { stop, thread }
    }
}

impl MeterSource {
    fn new(path: PathBuf, key: Option<&'static str>) -> Result<Self> {
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        Ok(Self { path, file: Arc::new(file), key })
    }

    fn value(&self) -> Result<u64> {
        let at = || format!("read {}", self.path.display());
        let mut buffer = vec![0; MOST];
        let count = self.file.read_at(&mut buffer, 0).with_context(at)?;
        let text = std::str::from_utf8(&buffer[..count]).with_context(at)?;
        let word = match self.key {
            None => text.trim(),
            Some(key) => text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))
                .with_context(|| format!("{} has no {key}", self.path.display()))?,
        };
        word.parse().with_context(at)
    }
}

impl Watch {
    /// Most bytes at one time.
    ///
    /// # Errors
    /// When the cgroup could not be read.
    pub(super) fn most(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread that watches the memory died"))?
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        for folder in &self.folders {
            // One that is left shows when the cell is closed.
            let _ = std::fs::remove_dir(folder);
        }
    }
}
