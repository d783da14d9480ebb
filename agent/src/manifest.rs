//! Pods from YAML files: read, parse, convert, check. Owns the path from bytes to
//! [`Pod`]; never starts anything, and refuses what it would not honour. Called by
//! `gantry run`.

mod container;
mod convert;
pub mod expand;
pub mod names;
mod parse;
pub mod quantity;
mod suggest;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::pod::spec::Pod;

pub use convert::FieldError;

/// Larger files are no pod manifests; etcd would not take them either.
const MAX_BYTES: u64 = 3 << 20;

/// Why a manifest was refused. Each names the file, and the field where there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("{}: cannot read the manifest", path.display())]
    Read {
        /// As given.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("{}: larger than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// As given.
        path: PathBuf,
    },
    /// The file is not UTF-8.
    #[error("{}: not UTF-8 text", path.display())]
    Encoding {
        /// As given.
        path: PathBuf,
        /// Where.
        #[source]
        source: std::string::FromUtf8Error,
    },
    /// The text is not YAML, or holds a key twice.
    #[error("{}: not valid YAML", path.display())]
    Yaml {
        /// As given.
        path: PathBuf,
        /// Where.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// No document in the file.
    #[error("{}: no pod in it", path.display())]
    Empty {
        /// As given.
        path: PathBuf,
    },
    /// The document is something else than a pod.
    #[error("{}: document {document}: {found} is not supported, only kind Pod of apiVersion v1", path.display())]
    Kind {
        /// As given.
        path: PathBuf,
        /// From 1.
        document: usize,
        /// What it says it is.
        found: String,
    },
    /// A field is wrong; the source says which.
    #[error("{}: document {document}", path.display())]
    Field {
        /// As given.
        path: PathBuf,
        /// From 1.
        document: usize,
        /// Which field and why.
        #[source]
        source: FieldError,
    },
    /// Two documents describe pods of one name.
    #[error("{}: pod {pod} is already described in {}", path.display(), first.display())]
    Twice {
        /// Of the second.
        path: PathBuf,
        /// Of the first.
        first: PathBuf,
        /// namespace/name.
        pod: String,
    },
}

/// Reads all files; nothing is returned unless all of them are right.
///
/// # Errors
/// The first problem found, naming file and field.
pub fn load(paths: &[PathBuf]) -> Result<Vec<Pod>, Error> {
    let mut pods: Vec<(PathBuf, Pod)> = Vec::new();
    for path in paths {
        for pod in parse_text(path, &read(path)?)? {
            let twin = pods.iter().find(|(_, p)| p.full_name() == pod.full_name() || p.uid == pod.uid);
            if let Some((first, _)) = twin {
                return Err(Error::Twice { path: path.clone(), first: first.clone(), pod: pod.full_name() });
            }
            pods.push((path.clone(), pod));
        }
    }
    Ok(pods.into_iter().map(|(_, pod)| pod).collect())
}

/// The pods of one file's text; `path` is only for the errors.
///
/// # Errors
/// The first problem found, naming file and field.
pub fn parse_text(path: &Path, text: &str) -> Result<Vec<Pod>, Error> {
    let documents = parse::documents(text)
        .map_err(|source| Error::Yaml { path: path.to_owned(), source: Box::new(source) })?;
    if documents.is_empty() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    let mut pods = Vec::new();
    for (index, value) in documents.iter().enumerate() {
        let document = index + 1;
        if let Some(found) = parse::not_a_pod(value) {
            return Err(Error::Kind { path: path.to_owned(), document, found });
        }
        let pod = parse::pod(value).and_then(convert::pod).map_err(|source| Error::Field {
            path: path.to_owned(),
            document,
            source,
        })?;
        pods.push(pod);
    }
    Ok(pods)
}

fn read(path: &Path) -> Result<String, Error> {
    let wrap = |source| Error::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(wrap)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(wrap)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::TooLarge { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|source| Error::Encoding { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
