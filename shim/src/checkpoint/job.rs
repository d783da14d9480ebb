//! One checkpoint from the work folder to the archive. Owns the order of its steps. Called by `checkpoint`, which holds
//! the container meanwhile and removes the work folder.

#![expect(clippy::disallowed_methods, reason = "parts of an archive that counts once it is whole")]

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_failpoint::failpoint;
use gantry_proto::monitor::StartContainer;
use serde_json::Value;

use super::criu::{self, Criu, CriuFailure};
use super::{archive, documents, plan, process, thaw, writable};
use crate::cgroup::Cgroup;
use crate::container;
use crate::error::Error as Failed;
use crate::error::checkpoint::{Error, file};
use crate::handler::program;
use crate::node::Node;
use crate::status;
use crate::store::Container;
use crate::store::record::SandboxRecord;
use gantry_base::timeline::unix_nanos;
use gantry_image::remove;

/// criu's log of a dump that failed: containerd's name for it, in the container's folder.
const KEPT_LOG: &str = "criu-dump.log";

/// More of a log is not read for a message.
const MAX_LOG: u64 = 16 << 20;

/// What a checkpoint is made of.
pub(super) struct CheckpointJob {
    pub node: Arc<Node>,
    pub criu: Criu,
    pub container: Arc<Container>,
    pub sandbox: Arc<SandboxRecord>,
    pub work: PathBuf,
    pub location: PathBuf,
    /// For the dump.
    pub time: Duration,
}

/// What is known before the dump.
struct PreparedDump {
    start: StartContainer,
    program: PathBuf,
    words: Vec<OsString>,
}

impl CheckpointJob {
    /// Makes it.
    ///
    /// # Errors
    /// The step that failed; the container goes on all the same.
    pub(super) async fn make(self) -> Result<(), Failed> {
        let job = Arc::new(self);
        let ready = Arc::new(job.beside(Self::prepare).await?);
        let mut command = job.criu.command(&ready.program);
        command.args(&ready.words);
        let ran = criu::run(command, job.time).await;
        let known = ready.clone();
        job.beside(move |job| job.judge(&known.program, ran)).await?;
        job.beside(move |job| job.pack(&ready.start)).await?;
        tracing::info!(container = job.container.id, location = %job.location.display(), "checkpoint written");
        Ok(())
    }

    /// On a thread for work that blocks.
    async fn beside<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, Failed> {
        let job = self.clone();
        tokio::task::spawn_blocking(move || work(&job)).await?
    }

    fn prepare(&self) -> Result<PreparedDump, Failed> {
        // Of an attempt that an end of the runtime has cut off.
        remove::tree(&self.work).map_err(file("remove", &self.work))?;
        let images = self.work.join(plan::IMAGES);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&images);
        made.map_err(file("make", &images))?;
        failpoint!("checkpoint.folder"?);
        let start = container::read_planned_start(&self.container)?;
        let id = &self.container.id;
        if let Some(external) = &start.external {
            let words = program::checkpoint(external, id, &images, &self.work);
            return Ok(PreparedDump { program: external.program.clone().into(), start, words });
        }
        if start.tty {
            return Err(Error::Terminal(id.clone()).into());
        }
        let record = self.container.record();
        let process = process::look(record.started.map_or(0, |started| started.process.pid))?;
        let streams = images.join("descriptors.json");
        let text = process::streams(process.pid)?.to_string();
        fs::write(&streams, text).map_err(file("write", &streams))?;
        let freezer = Cgroup::new(&self.node.layout, &record.cgroup)?.freezer();
        let words = plan::dump(&start, &process, &plan::DumpPaths { work: &self.work, freezer });
        Ok(PreparedDump { program: self.criu.program.clone(), start, words })
    }

    /// What has come of the dump. Whatever it is, the container goes on.
    fn judge(&self, program: &Path, ran: Result<std::process::Output, CriuFailure>) -> Result<(), Failed> {
        thaw(&self.node, &self.container);
        let said = match ran {
            Ok(output) if output.status.success() => {
                failpoint!("checkpoint.dumped"?);
                return Ok(());
            }
            Ok(output) => criu::last_error(&output),
            Err(CriuFailure::Start(error)) => error.to_string(),
            Err(CriuFailure::Slow) => String::new(),
        };
        let (from, log) = (self.work.join(plan::LOG), self.container.folder.join(KEPT_LOG));
        let errors = errors(&from);
        if let Err(error) = fs::rename(&from, &log) {
            tracing::warn!(container = self.container.id, "criu has left no log: {error}");
        }
        let (id, program) = (self.container.id.clone(), program.display().to_string());
        if said.is_empty() {
            return Err(Error::Slow { id, program, seconds: self.time.as_secs(), log }.into());
        }
        let said = [Some(said), errors].into_iter().flatten().collect::<Vec<_>>().join(": ");
        Err(Error::Dump { id, program, said, log }.into())
    }

    fn pack(&self, start: &StartContainer) -> Result<(), Failed> {
        if let Some(root) = &start.rootfs {
            writable::pack(Path::new(&root.upper), &self.work.join("rootfs-diff.tar"))?;
        }
        archive::log(&self.container.record().log_path, &self.work.join("container.log"))?;
        for (name, document) in self.documents(start)? {
            let path = self.work.join(name);
            fs::write(&path, document.to_string()).map_err(file("write", &path))?;
        }
        failpoint!("checkpoint.packed"?);
        archive::write(&self.work, &self.location, &self.container.id)
    }

    /// By their names in the archive.
    fn documents(&self, start: &StartContainer) -> Result<[(&'static str, Value); 4], Failed> {
        let record = self.container.record();
        let status = status::container_status(&self.container, false).status.unwrap_or_default();
        let image = status.image.as_ref().map(|image| image.image.clone()).unwrap_or_default();
        let (runtime, spec) = match &start.external {
            Some(external) => {
                let path = Path::new(&external.bundle).join("config.json");
                let bytes = fs::read(&path).map_err(file("read", &path))?;
                let spec =
                    serde_json::from_slice(&bytes).map_err(|error| file("read", &path)(error.into()))?;
                (external.program.rsplit('/').next().unwrap_or_default(), spec)
            }
            None => ("gantry", container::specification(start, &self.sandbox, &record)),
        };
        Ok([
            ("config.dump", documents::config(&record, &self.sandbox, &image, runtime, unix_nanos())),
            ("spec.dump", spec),
            ("status.dump", documents::status(&status)),
            ("status", documents::own_status(&record)),
        ])
    }
}

/// criu's own errors say more than that there are some. None without a log.
fn errors(log: &Path) -> Option<String> {
    let mut log = fs::File::open(log).ok()?;
    let length = log.metadata().ok()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG))).ok()?;
    let mut text = Vec::new();
    log.read_to_end(&mut text).ok()?;
    plan::errors(&String::from_utf8_lossy(&text))
}
