//! `gantry image load`: hands archives of images to the runtime. Owns reading them (files, folders, standard
//! input; unpacking gzip and zstd) and showing how far it has come; what an archive holds is the runtime's to
//! judge. Called by main and by `ctr`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use gantry_proto::runtime_ext::LoadImagesRequest;
use gantry_proto::runtime_ext::runtime_extensions_client::RuntimeExtensionsClient;
use gantry_unpack::{Packing, inflate};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Channel;

use crate::args::LoadArgs;
use crate::image_store::ImageStore;
use crate::output;

/// Bytes of a message.
const CHUNK: usize = 512 << 10;
/// Messages that wait for the runtime.
const WAITING: usize = 4;
/// Between looks at a terminal.
const LIVE: Duration = Duration::from_millis(100);

/// What an image is called that its archive does not name; empty for nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Naming {
    /// A name.
    pub(crate) name: String,
    /// Without one: a repository, where its digest names it.
    pub(crate) repository: String,
}

/// Loads one after the other; goes on past those that can't be loaded.
pub(crate) async fn load(args: LoadArgs) -> Result<ExitCode> {
    let LoadArgs { files, input, name, quiet, runtime, store } = args;
    let mut files: Vec<PathBuf> = files.into_iter().chain(input).collect();
    if files.is_empty() {
        if io::stdin().is_terminal() {
            bail!("name an archive, or send one to standard input: docker save web | gantry image load");
        }
        files.push("-".into());
    }
    let naming = Naming { name, repository: String::new() };
    let store = ImageStore::find_or_make(&runtime, store).await?;
    let client = RuntimeExtensionsClient::new(store.channel());
    let mut code = ExitCode::SUCCESS;
    for file in files {
        if let Err(error) = one(client.clone(), &file, &naming, quiet).await {
            output::say(&format!("error: load {}: {error:#}", file.display()));
            code = ExitCode::FAILURE;
        }
    }
    drop(client);
    store.close().await?;
    Ok(code)
}

/// Loads one archive, and prints what was in it.
pub(crate) async fn one(
    mut client: RuntimeExtensionsClient<Channel>,
    file: &Path,
    naming: &Naming,
    quiet: bool,
) -> Result<()> {
    let begun = Instant::now();
    let (send, messages) = mpsc::channel(WAITING);
    let (failed, failure) = oneshot::channel();
    let sent = Arc::new(AtomicU64::new(0));
    let upload = Upload { naming: naming.clone(), chunk: Vec::new(), send, sent: Arc::clone(&sent) };
    let path = file.to_owned();
    std::thread::Builder::new().name("read the archive".to_owned()).spawn(move || {
        let mut upload = upload;
        if let Err(error) = read(&path, &mut upload) {
            // With the sender: while it lives the runtime does not take what has come for all.
            let _ = failed.send((error, upload));
        }
    })?;
    let call = client.load_images(ReceiverStream::new(messages));
    let live = !quiet && io::stderr().is_terminal();
    let result = watch(call, failure, live, || show(file, sent.load(Ordering::Relaxed))).await?;
    let images = match result {
        Ok(answer) => answer.into_inner().images,
        Err(status) if status.code() == Code::Unimplemented => {
            bail!("this runtime can't load archives: it is not Gantry's, or an older one")
        }
        Err(status) => return Err(anyhow!("{}", without_prefix(status.message()))),
    };
    let seconds = begun.elapsed().as_secs_f64();
    for image in images {
        let text = match quiet {
            true => format!("{}\n", image.id),
            false if image.names.is_empty() => format!("loaded in {seconds:.1} s: {}\n", image.id),
            false => format!("loaded {} in {seconds:.1} s: {}\n", image.names.join(", "), image.id),
        };
        output::print(text.as_bytes())?;
    }
    Ok(())
}

/// What the runtime answers, or why the archive could not be read; draws meanwhile.
async fn watch<T>(
    call: impl Future<Output = Result<T, tonic::Status>>,
    mut failure: oneshot::Receiver<(anyhow::Error, Upload)>,
    live: bool,
    show: impl Fn() -> String,
) -> Result<Result<T, tonic::Status>> {
    tokio::pin!(call);
    let (mut drawn, mut reads) = (0, true);
    let result = loop {
        // All are cancel-safe: the call and the failure are polled by reference, the timer has no state.
        tokio::select! {
            result = &mut call => break Ok(result),
            failed = &mut failure, if reads => match failed {
                Ok((error, _upload)) => break Err(error),
                // It has read all.
                Err(_) => reads = false,
            },
            () = tokio::time::sleep(LIVE), if live => {
                let lines = output::fit(vec![show()]);
                output::say_part(&format!("{}{}", output::erase(drawn), lines.join("")));
                drawn = lines.len();
            }
        }
    };
    if drawn > 0 {
        output::say_part(&output::erase(drawn));
    }
    result
}

fn show(file: &Path, sent: u64) -> String {
    format!("{}: {} read\n", output::one_line(&file.display().to_string()), output::bytes(sent))
}

/// The command says itself that it loads.
fn without_prefix(message: &str) -> &str {
    message.strip_prefix("load the archive: ").unwrap_or(message)
}

/// Messages to the runtime, made of what is written.
struct Upload {
    naming: Naming,
    chunk: Vec<u8>,
    send: mpsc::Sender<LoadImagesRequest>,
    sent: Arc<AtomicU64>,
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..count]);
        if self.chunk.len() == CHUNK {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.sent.fetch_add(self.chunk.len() as u64, Ordering::Relaxed);
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK));
        let Naming { name, repository } = self.naming.clone();
        let message = LoadImagesRequest { chunk, name, repository };
        // The call has ended, and its answer says why.
        self.send.blocking_send(message).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Sends the archive at `path`, as a plain tar.
fn read(path: &Path, upload: &mut Upload) -> Result<()> {
    let sent = if path.as_os_str() == "-" {
        stream(io::stdin().lock(), upload)
    } else if path.is_dir() {
        folder(path, upload)
    } else {
        stream(File::open(path).context("open it")?, upload)
    };
    match sent.and_then(|()| upload.flush().map_err(anyhow::Error::from)) {
        // The runtime has its reasons, and tells them.
        Err(error)
            if error.downcast_ref::<io::Error>().map(io::Error::kind) == Some(io::ErrorKind::BrokenPipe) =>
        {
            Ok(())
        }
        sent => sent,
    }
}

/// By its first bytes: names lie.
fn stream(from: impl Read, upload: &mut Upload) -> Result<()> {
    let mut from = BufReader::with_capacity(CHUNK, from);
    let packing = match from.fill_buf().context("read it")? {
        [0x1f, 0x8b, ..] => Packing::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Packing::Zstd,
        _ => Packing::Plain,
    };
    match packing {
        Packing::Plain => drop(io::copy(&mut from, upload)?),
        packing => inflate(packing, from, upload)?,
    }
    Ok(())
}

/// An OCI layout that was not packed: its files, and no others of the folder.
fn folder(path: &Path, upload: &mut Upload) -> Result<()> {
    let mut tar = tar::Builder::new(upload);
    for name in ["oci-layout", "index.json"] {
        let file = path.join(name);
        if !file.is_file() {
            bail!("{} is missing: it is no folder of an OCI layout", file.display());
        }
        tar.append_path_with_name(&file, name)?;
    }
    let blobs = path.join("blobs/sha256");
    for entry in fs::read_dir(&blobs).with_context(|| format!("list {}", blobs.display()))? {
        let entry = entry.with_context(|| format!("list {}", blobs.display()))?;
        if entry.path().is_file() {
            tar.append_path_with_name(entry.path(), Path::new("blobs/sha256").join(entry.file_name()))?;
        }
    }
    Ok(tar.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the runtime gets of an archive.
    fn sent(path: &Path) -> Result<Vec<u8>> {
        let (send, mut messages) = mpsc::channel(WAITING);
        let (sent, naming) = (Arc::default(), Naming { name: "web:1".to_owned(), ..Naming::default() });
        let mut upload = Upload { naming, chunk: Vec::new(), send, sent };
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || read(path, &mut upload));
            let mut bytes = Vec::new();
            while let Some(message) = messages.blocking_recv() {
                assert_eq!(message.name, "web:1");
                bytes.extend(message.chunk);
            }
            reading.join().unwrap().map(|()| bytes)
        })
    }

    #[test]
    fn an_archive_is_sent_unpacked_whatever_its_name_says() {
        let folder = tempfile::tempdir().unwrap();
        let plain: Vec<u8> = (0..=250).cycle().take(3 * CHUNK + 5).collect();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let mut gzip = std::process::Command::new("gzip");
        let path = file("plain.tar.zst", &plain);
        let packed = gzip.arg("-c").arg(&path).output().unwrap().stdout;
        assert!(sent(&path).unwrap() == plain);
        assert!(sent(&file("packed.tar", &packed)).unwrap() == plain);
        assert!(sent(&file("cut.tar", &packed[..packed.len() / 2])).is_err());
        assert!(sent(&folder.path().join("absent")).unwrap_err().to_string().contains("open it"));
    }

    #[test]
    fn a_folder_is_sent_as_a_tar_of_its_layout_alone() {
        let folder = tempfile::tempdir().unwrap();
        let error = sent(folder.path()).unwrap_err().to_string();
        assert!(error.contains("no folder of an OCI layout"), "{error}");
        fs::create_dir_all(folder.path().join("blobs/sha256")).unwrap();
        for name in ["oci-layout", "index.json", "blobs/sha256/aa", "secret"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let bytes = sent(folder.path()).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["oci-layout", "index.json", "blobs/sha256/aa"]);
    }

    #[test]
    fn a_runtime_that_hangs_up_is_no_error_of_the_archive() {
        let (send, messages) = mpsc::channel(1);
        drop(messages);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        fs::write(&path, vec![7; 2 * CHUNK]).unwrap();
        let mut upload = Upload { naming: Naming::default(), chunk: Vec::new(), send, sent: Arc::default() };
        assert!(read(&path, &mut upload).is_ok());
    }
}
