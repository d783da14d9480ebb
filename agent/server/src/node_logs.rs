//! `/logs/`: the node's own log folder, as a file server shows it, and logs of services by
//! `?query=`. Owns the way in, which no link leads out of; never writes. Called by [`super::serve`].
//!
//! what is asked: [`log_query`] (pure) · the journal: [`journal`]

mod journal;
mod log_query;

use std::fmt::Write;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use axum::body::{Body, Bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{Stream, StreamExt as _};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tokio::io::AsyncReadExt;

use super::answer::{self, Answer};
use super::context::{ServerContext, Settings};
use super::query;

/// Read at once.
const PIECE: usize = 64 << 10;

/// What is there.
enum LogEntry {
    /// Names with a slash behind those of folders, sorted.
    Folder(Vec<String>),
    /// Its size when it was opened.
    File(File, u64),
    /// Nothing, or nothing that may be shown.
    Nothing,
}

/// A file, a folder's list, or why not.
pub(super) async fn serve(inner: &ServerContext, path: String, asked: &str, headers: &HeaderMap) -> Answer {
    let path = if inner.settings.system_log_query {
        match log_query::read(&query::pairs(asked)) {
            Err(wrong) => return refuse(StatusCode::BAD_REQUEST, &wrong),
            Ok(Some(query)) => match judge(&path, query) {
                Err(wrong) => return refuse(StatusCode::NOT_ACCEPTABLE, &wrong),
                Ok(Asked::Services(query)) => return services(inner, query, headers),
                Ok(Asked::File(name)) => return queried_file(inner, name).await,
            },
            Ok(None) => path,
        }
    } else {
        path
    };
    file_or_folder(inner, path).await
}

/// What a query comes to.
enum Asked {
    Services(log_query::LogQuery),
    File(String),
}

fn refuse(status: StatusCode, wrong: &[String]) -> Answer {
    answer::error(status, format!("{}\n", log_query::together(wrong)))
}

/// What may not be asked is refused in words.
fn judge(path: &str, query: log_query::LogQuery) -> Result<Asked, Vec<String>> {
    if !path.trim_matches('/').is_empty() {
        return Err(vec!["path not allowed in query mode".to_owned()]);
    }
    let wrong = query.problems();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    Ok(match query.files.first() {
        Some(file) => Asked::File(file.clone()),
        None => Asked::Services(query),
    })
}

/// One that is not there is a query that is wrong.
async fn queried_file(inner: &ServerContext, name: String) -> Answer {
    // Clients on Windows write backslashes.
    let answer = file_or_folder(inner, name.replace('\\', "/").trim_matches('/').to_owned()).await;
    if answer.status() != StatusCode::NOT_FOUND {
        return answer;
    }
    let path = inner.settings.node_logs.join(name.trim_start_matches(['/', '\\']));
    let why = format!("stat {}: no such file or directory", path.display());
    refuse(StatusCode::NOT_ACCEPTABLE, &[format!("query: Invalid value: [{name:?}]: {why}")])
}

fn services(inner: &ServerContext, query: log_query::LogQuery, headers: &HeaderMap) -> Answer {
    let Settings { journalctl, node_logs, .. } = &inner.settings;
    let places = journal::Places { journalctl: journalctl.clone(), folder: node_logs.clone() };
    let pieces = journal::stream(places, query);
    let kind = "text/plain;charset=UTF-8";
    // Only when nothing else is taken, as upstream.
    if headers.get(ACCEPT_ENCODING).is_none_or(|accepts| accepts != "gzip") {
        return answer::of_type(StatusCode::OK, kind, Body::from_stream(pieces));
    }
    let mut answer = answer::of_type(StatusCode::OK, kind, Body::from_stream(compressed(pieces)));
    answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    answer
}

type Piece = std::io::Result<Bytes>;

fn compressed(pieces: impl Stream<Item = Piece>) -> impl Stream<Item = Piece> {
    let encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    futures_util::stream::unfold((Box::pin(pieces), encoder), async |(mut pieces, encoder)| {
        let mut encoder = encoder?;
        let next = match pieces.next().await {
            // Flushed: who follows a log sees what there is.
            Some(Ok(piece)) => encoder.write_all(&piece).and_then(|()| encoder.flush()),
            Some(Err(error)) => Err(error),
            None => return Some((encoder.finish().map(Bytes::from), (pieces, None))),
        };
        let piece = next.map(|()| Bytes::from(std::mem::take(encoder.get_mut())));
        Some((piece, (pieces, Some(encoder))))
    })
}

async fn file_or_folder(inner: &ServerContext, path: String) -> Answer {
    let root = inner.settings.node_logs.clone();
    let wanted = path.clone();
    let found = tokio::task::spawn_blocking(move || find(&root, &wanted)).await;
    match found {
        Ok(Ok(LogEntry::Folder(names))) if path.is_empty() || path.ends_with('/') => listing(&names),
        Ok(Ok(LogEntry::Folder(_))) => redirect(&path),
        Ok(Ok(LogEntry::File(file, size))) => content(file, size),
        Ok(Ok(LogEntry::Nothing)) => answer::error(StatusCode::NOT_FOUND, "404 page not found\n"),
        Ok(Err(error)) => {
            tracing::warn!(path, %error, "cannot read a log of the node");
            answer::error(StatusCode::FORBIDDEN, "403 Forbidden\n")
        }
        Err(_) => answer::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n"),
    }
}

fn find(root: &Path, path: &str) -> std::io::Result<LogEntry> {
    if path.split('/').any(|part| part == "..") || path.contains('\0') {
        return Ok(LogEntry::Nothing);
    }
    let root = root.canonicalize()?;
    // Links within the folder are followed: /var/log/containers is full of them. Where they end is
    // looked at, then opened without following any: what is exchanged meanwhile is not opened.
    let real: PathBuf = match root.join(path.trim_matches('/')).canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(LogEntry::Nothing),
        found => found?,
    };
    let Ok(inside) = real.strip_prefix(&root) else { return Ok(LogEntry::Nothing) };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let base = rustix::fs::open(&root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = File::from(rustix::fs::openat2(&base, inside, flags, Mode::empty(), how)?);
    let data = file.metadata()?;
    if data.is_dir() {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&file)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                let slash = if entry.file_type().is_dir() { "/" } else { "" };
                names.push(format!("{name}{slash}"));
            }
        }
        names.sort();
        return Ok(LogEntry::Folder(names));
    }
    // A pipe or a device would be read for ever.
    Ok(if data.is_file() { LogEntry::File(file, data.len()) } else { LogEntry::Nothing })
}

fn listing(names: &[String]) -> Answer {
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        let mut link = String::new();
        for byte in name.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                    link.push(char::from(byte));
                }
                // Writing to a String cannot fail.
                _ => drop(write!(link, "%{byte:02X}")),
            }
        }
        let shown = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let shown = shown.replace('"', "&#34;").replace('\'', "&#39;");
        let _ = writeln!(page, "<a href=\"{link}\">{shown}</a>");
    }
    page.push_str("</pre>\n");
    answer::of_type(StatusCode::OK, "text/html; charset=utf-8", page)
}

/// A folder is shown under a name that ends with a slash, so that its links lead into it.
fn redirect(path: &str) -> Answer {
    let last = path.rsplit('/').next().unwrap_or_default();
    let mut answer = answer::text(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(to) = HeaderValue::from_str(&format!("{last}/")) {
        answer.headers_mut().insert(LOCATION, to);
    }
    answer
}

fn content(file: File, size: u64) -> Answer {
    // No more than was there: the length has been said. A piece is read when the client has room for
    // it: no thread waits for one.
    let file = tokio::fs::File::from_std(file).take(size);
    let pieces = futures_util::stream::try_unfold(file, async |mut file| {
        let mut piece = vec![0; PIECE];
        let count = file.read(&mut piece).await?;
        piece.truncate(count);
        Ok::<_, std::io::Error>((count > 0).then(|| (Bytes::from(piece), file)))
    });
    let mut answer = answer::text(StatusCode::OK, Body::from_stream(pieces));
    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(size));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(root: &Path, path: &str) -> Option<String> {
        match find(root, path).unwrap() {
            LogEntry::Folder(names) => Some(names.join(" ")),
            LogEntry::File(file, size) => Some(format!("{size} {}", std::io::read_to_string(file).unwrap())),
            LogEntry::Nothing => None,
        }
    }

    #[test]
    fn no_link_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (root, secret) = (folder.path().join("log"), folder.path().join("secret"));
        std::fs::create_dir_all(root.join("pods")).unwrap();
        std::fs::write(&secret, "s").unwrap();
        std::fs::write(root.join("pods/0.log"), "hello").unwrap();
        symlink(root.join("pods/0.log"), root.join("web.log")).unwrap();
        symlink(&secret, root.join("out")).unwrap();
        symlink("../secret", root.join("up")).unwrap();
        symlink("/", root.join("all")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert_eq!(names(&root, "").unwrap(), "all out pipe pods/ up web.log");
        assert_eq!(names(&root, "pods/").unwrap(), "0.log");
        assert_eq!(names(&root, "pods/0.log").unwrap(), "5 hello");
        assert_eq!(names(&root, "web.log").unwrap(), "5 hello");
        for bad in
            ["../secret", "pods/../../secret", "out", "up", "all/etc/passwd", "pipe", "none", "a\0b", "/../x"]
        {
            assert_eq!(names(&root, bad), None, "{bad}");
        }
    }

    /// More clients that do not read than there are threads: everything else goes on.
    #[test]
    fn a_client_that_does_not_read_holds_no_thread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("big.log");
        std::fs::write(&path, "x".repeat(1 << 20)).unwrap();
        let mut one_thread = tokio::runtime::Builder::new_current_thread();
        let one_thread = one_thread.enable_all().max_blocking_threads(1).build().unwrap();
        one_thread.block_on(async {
            let stalled = content(File::open(&path).unwrap(), 1 << 20);
            let other = tokio::task::spawn_blocking(|| "done");
            let other = tokio::time::timeout(std::time::Duration::from_secs(20), other).await;
            assert_eq!(other.expect("the thread waits for the client").unwrap(), "done");
            let all = axum::body::to_bytes(stalled.into_body(), 1 << 21).await.unwrap();
            assert_eq!(all.len(), 1 << 20);
        });
    }

    #[test]
    fn names_of_files_are_no_markup() {
        let page = listing(&["<b>&\"'.log".to_owned(), "a b/".to_owned()]);
        assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    }
}
