//! What journalctl says of units, and files of services that do not log to the journal. Owns the runs of journalctl,
//! which end with their reader or after half a minute; never decides what may be asked. Called by [`super`].

#![expect(
    clippy::disallowed_methods,
    reason = "journalctl alone reads the journal of whatever systemd is there"
)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::log_query::{LogQuery, Options};
use super::{LogEntry, PIECE, find};

/// For all of one answer, as upstream.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where logs of services are.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// The program.
    pub(super) journalctl: PathBuf,
    /// What `/logs/` shows.
    pub(super) folder: PathBuf,
}

type Pieces = mpsc::Sender<Bytes>;

/// The reader is gone.
struct Gone;

/// The logs of all services of the query, those of the journal first. What goes wrong on the way is told in it.
pub(super) fn stream(places: Places, query: LogQuery) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    // One piece waits for the reader.
    let (pieces, taken) = mpsc::channel(1);
    let writer = Box::pin(async move {
        let deadline = Instant::now() + PATIENCE;
        // Who is gone needs no more, and what is late is cut off, as upstream.
        let _ = tokio::time::timeout_at(deadline, write(&places, &query, &pieces)).await;
    });
    // The body drives the work: it ends with the answer.
    futures_util::stream::unfold((taken, Some(writer)), async |(mut taken, mut writer)| {
        loop {
            let Some(work) = writer.as_mut() else {
                return taken.recv().await.map(|piece| (Ok(piece), (taken, writer)));
            };
            tokio::select! {
                biased;
                Some(piece) = taken.recv() => return Some((Ok(piece), (taken, writer))),
                () = work => writer = None,
            }
        }
    })
}

async fn say(pieces: &Pieces, text: String) -> Result<(), Gone> {
    pieces.send(text.into()).await.map_err(|_| Gone)
}

async fn write(places: &Places, query: &LogQuery, pieces: &Pieces) -> Result<(), Gone> {
    let known = units(&places.journalctl).await;
    let (units, files): (Vec<String>, Vec<String>) =
        query.services.iter().cloned().partition(|service| known.contains(&format!("{service}.service")));
    if !units.is_empty() {
        journal(&places.journalctl, &query.arguments(&units), pieces).await?;
    }
    if !files.is_empty() && query.options != Options::default() {
        let names = files.join(" ");
        let text = "options present and query resolved to log files for";
        return say(pieces, format!("\n{text} [{names}]\ntry without specifying options\n")).await;
    }
    for service in files {
        file_of(&places.folder, &service, pieces).await?;
    }
    Ok(())
}

/// Every unit that the journal has heard of, one a line; nothing where there is no journal.
async fn units(journalctl: &Path) -> String {
    let mut run = Command::new(journalctl);
    run.args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).kill_on_drop(true);
    match run.output().await {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(_) | Err(_) => String::new(),
    }
}

/// Both outputs of journalctl, as they come.
async fn journal(journalctl: &Path, arguments: &[String], pieces: &Pieces) -> Result<(), Gone> {
    let child = Command::new(journalctl)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let Ok(Child { stdout: Some(stdout), stderr: Some(stderr), .. }) = &mut child.map_err(drop) else {
        return say(pieces, "\nerror: journal output not available\n".to_owned()).await;
    };
    let (said, complained) = tokio::join!(copy(stdout, pieces), copy(stderr, pieces));
    said.and(complained)
}

async fn copy(from: &mut (impl AsyncRead + Unpin), pieces: &Pieces) -> Result<(), Gone> {
    loop {
        let mut piece = vec![0; PIECE];
        // A pipe that fails is one that is over.
        let count = from.read(&mut piece).await.unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        piece.truncate(count);
        pieces.send(piece.into()).await.map_err(|_| Gone)?;
    }
}

/// The first of `NAME`, `NAME.log` and `NAME/NAME.log` that is a file.
async fn file_of(folder: &Path, service: &str, pieces: &Pieces) -> Result<(), Gone> {
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        let folder = folder.to_owned();
        let found = tokio::task::spawn_blocking(move || find(&folder, &name)).await;
        match found.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(LogEntry::File(file, size)) => {
                return copy(&mut tokio::fs::File::from_std(file).take(size), pieces).await;
            }
            Ok(LogEntry::Folder(_) | LogEntry::Nothing) => {}
            Err(error) => return say(pieces, format!("\nerror getting log for {service}: {error}\n")).await,
        }
    }
    say(pieces, format!("\nlog not found for {service}\n")).await
}
