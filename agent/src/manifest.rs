//! Pods, ConfigMaps and Secrets from YAML files: read, parse, convert, check. Owns the path from
//! bytes to [`Pod`]; never starts anything, and refuses what it would not honour. Called by
//! `gantry run` and by [`crate::static_pods`].

pub mod api;
mod apparmor;
mod claim;
mod container;
mod device;
mod env;
mod faults;
mod field;
mod iscsi;
mod meta;
mod network;
mod object;
mod parse;
mod placement;
mod places;
mod pod;
mod pod_list;
mod probe;
mod resources;
mod security;
mod suggest;
mod texts;
mod volume;
mod workload;
pub mod yaml;

use std::path::{Path, PathBuf};

use gantry_base::error::chain;
use gantry_model::pod::Pod;
use gantry_model::pod::volume::{Projection, VolumeSource};
use serde_json::Value;

use crate::api::files::Files;

use faults::ManifestFault;
pub use field::FieldError;
pub(crate) use network::cut as hostname_of;
use parse::Kind;
use places::{PathSegment, Places};
pub(crate) use pod::fnv1a_128;
pub(crate) use pod_list::{PodOfList, parse_pods};
pub(crate) use texts::{MAX_BYTES, read_file as read};
pub use texts::{Text, read as read_all};

/// A List may hold Lists; not for ever.
const MAX_DEPTH: usize = 8;

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
    #[error("{}: larger than {} bytes", path.display(), texts::MAX_BYTES)]
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
    #[error("{}{fault}", path.display())]
    Yaml {
        /// As given.
        path: PathBuf,
        /// Where and why.
        fault: yaml::YamlFault,
    },
    /// No document in the file.
    #[error("{}: no pod in it", path.display())]
    Empty {
        /// As given.
        path: PathBuf,
    },
    /// The document is something that no single machine has.
    #[error("{}: document {document}: {found} is not supported{}", path.display(), parse::instead(found))]
    Kind {
        /// As given.
        path: PathBuf,
        /// From 1.
        document: usize,
        /// What it says it is.
        found: String,
    },
    /// Fields are wrong, each with its own place.
    #[error("{}", list_faults(path, faults))]
    Fields {
        /// As given.
        path: PathBuf,
        /// In the order of the file.
        faults: Vec<ManifestFault>,
    },
    /// A pod of a file wants what only a cluster has.
    #[error("{}: pod {pod}: volume {volume:?} is a {what}, which only an API server has: remove it", path.display())]
    NeedsCluster {
        /// As given.
        path: PathBuf,
        /// namespace/name.
        pod: String,
        /// Its name.
        volume: String,
        /// Such as `persistentVolumeClaim`.
        what: &'static str,
    },
    /// Two documents describe one object.
    #[error("{}: {kind} {name} is already described in {}", path.display(), first.display())]
    Twice {
        /// Of the second.
        path: PathBuf,
        /// Of the first.
        first: PathBuf,
        /// Such as `pod`.
        kind: &'static str,
        /// namespace/name.
        name: String,
    },
    /// Two pods want one port of the node.
    #[error("{}: pod {pod} wants port {port} of the node, which pod {other} of {} has already: give it another hostPort", path.display(), first.display())]
    PortTaken {
        /// Of the second.
        path: PathBuf,
        /// Of the first.
        first: PathBuf,
        /// namespace/name of the second.
        pod: String,
        /// namespace/name of the first.
        other: String,
        /// `80/TCP`, with its address if it has one.
        port: String,
    },
}

impl Error {
    /// With its causes, on one line and without the path: for those who name the file themselves.
    #[must_use]
    pub fn within_file(&self) -> String {
        match self {
            Self::Yaml { fault, .. } => return fault.on_one_line(),
            Self::Fields { faults, .. } => {
                let all = faults.iter().map(|fault| match fault.place {
                    Some((line, column)) => format!("line {line}, column {column}: {}", fault.text()),
                    None => format!("document {}: {}", fault.document, fault.text()),
                });
                return all.collect::<Vec<_>>().join("; ");
            }
            _ => {}
        }
        let text = chain(self);
        let path = format!("{}: ", self.path().display());
        text.strip_prefix(&path).map_or(text.clone(), str::to_owned)
    }

    fn path(&self) -> &Path {
        match self {
            Self::Read { path, .. }
            | Self::TooLarge { path }
            | Self::Encoding { path, .. }
            | Self::Yaml { path, .. }
            | Self::Empty { path }
            | Self::Kind { path, .. }
            | Self::Fields { path, .. }
            | Self::NeedsCluster { path, .. }
            | Self::Twice { path, .. }
            | Self::PortTaken { path, .. } => path,
        }
    }
}

/// A line for each, as compilers tell them.
fn list_faults(path: &Path, faults: &[ManifestFault]) -> String {
    let path = path.display();
    let all = faults.iter().map(|fault| match fault.place {
        Some((line, column)) => format!("{path}:{line}:{column}: {}", fault.text()),
        None => format!("{path}: document {}: {}", fault.document, fault.text()),
    });
    all.collect::<Vec<_>>().join("\n")
}

/// What files describe.
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    /// In the order of the files.
    pub pods: Vec<Pod>,
    /// What the pods may refer to.
    pub objects: Files,
    /// What is not done for the workloads among them, which a controller would do.
    pub notes: Vec<String>,
}

/// One object of a file.
#[derive(Debug, Clone)]
pub enum Object {
    /// To run.
    Pod {
        /// What is described.
        pod: Box<Pod>,
        /// Whether the UID is the manifest's own, not derived from its content.
        uid_given: bool,
    },
    /// To refer to.
    ConfigMap(object::Named<crate::api::ConfigMap>),
    /// To refer to.
    Secret(object::Named<crate::api::Secret>),
}

/// Reads all files; nothing is returned unless all of them are right.
///
/// # Errors
/// The first file with a problem: all of its fields that are wrong, or what else it is.
pub fn load(paths: &[PathBuf]) -> Result<Loaded, Error> {
    load_texts(&texts::read(paths)?)
}

/// The same of files that were read already.
///
/// # Errors
/// As [`load`].
pub fn load_texts(texts: &[Text]) -> Result<Loaded, Error> {
    let mut loaded = Loaded::default();
    let mut seen: Vec<(&'static str, String, PathBuf)> = Vec::new();
    let mut owners: Vec<PathBuf> = Vec::new();
    for Text { path, text } in texts {
        let ManifestReader { objects, notes, .. } = read_text(path, text, Workloads::Run)?;
        if objects.is_empty() && notes.is_empty() {
            return Err(Error::Empty { path: path.clone() });
        }
        loaded.notes.extend(notes);
        for object in objects {
            let (kind, name) = object.id();
            if let Some((_, _, first)) = seen.iter().find(|(k, n, _)| *k == kind && *n == name) {
                return Err(Error::Twice { path: path.clone(), first: first.clone(), kind, name });
            }
            seen.push((kind, name, path.clone()));
            match object {
                Object::Pod { pod, .. } => {
                    let others = loaded.pods.iter().zip(&owners);
                    beside(&pod, path, others)?;
                    without_cluster(&pod, path)?;
                    loaded.pods.push(*pod);
                    owners.push(path.clone());
                }
                Object::ConfigMap((namespace, name, map)) => {
                    loaded.objects.add_config_map(&namespace, &name, map);
                }
                Object::Secret((namespace, name, secret)) => {
                    loaded.objects.add_secret(&namespace, &name, secret);
                }
            }
        }
    }
    Ok(loaded)
}

/// No volume of it needs an API server.
fn without_cluster(pod: &Pod, path: &Path) -> Result<(), Error> {
    for volume in &pod.volumes {
        let what = match &volume.source {
            VolumeSource::Claim { .. } => "persistentVolumeClaim",
            VolumeSource::Csi(_) | VolumeSource::Migrated(_) => "csi",
            VolumeSource::Projected { sources, .. }
                if sources.iter().any(|source| matches!(source, Projection::Token(_))) =>
            {
                "serviceAccountToken"
            }
            VolumeSource::Projected { .. }
            | VolumeSource::EmptyDir { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Iscsi(_)
            | VolumeSource::Nfs(_)
            | VolumeSource::Image { .. } => {
                continue;
            }
        };
        let (path, pod, volume) = (path.to_owned(), pod.full_name(), volume.name.clone());
        return Err(Error::NeedsCluster { path, pod, volume, what });
    }
    Ok(())
}

/// Neither the UID nor a port of the node that another pod has.
fn beside<'a>(
    pod: &Pod,
    path: &Path,
    mut others: impl Iterator<Item = (&'a Pod, &'a PathBuf)>,
) -> Result<(), Error> {
    others.try_for_each(|(other, first)| {
        if other.uid == pod.uid {
            let (path, first, name) = (path.to_owned(), first.clone(), format!("with UID {}", pod.uid));
            return Err(Error::Twice { path, first, kind: "a pod", name });
        }
        match crate::ports::clash(pod, other) {
            None => Ok(()),
            Some(port) => Err(Error::PortTaken {
                path: path.to_owned(),
                first: first.clone(),
                pod: pod.full_name(),
                other: other.full_name(),
                port,
            }),
        }
    })
}

impl Object {
    /// Kind and namespace/name.
    pub(crate) fn id(&self) -> (&'static str, String) {
        match self {
            Self::Pod { pod, .. } => ("pod", pod.full_name()),
            Self::ConfigMap((namespace, name, _)) => ("ConfigMap", format!("{namespace}/{name}")),
            Self::Secret((namespace, name, _)) => ("Secret", format!("{namespace}/{name}")),
        }
    }
}

/// The objects of one file's text, none of them a workload; `path` is only for the errors.
///
/// # Errors
/// All fields that are wrong, or the first problem of another kind.
pub fn parse_text(path: &Path, text: &str) -> Result<Vec<Object>, Error> {
    Ok(read_text(path, text, Workloads::Refuse)?.objects)
}

fn read_text(path: &Path, text: &str, workloads: Workloads) -> Result<ManifestReader, Error> {
    let documents = parse::documents(text)
        .map_err(|error| Error::Yaml { path: path.to_owned(), fault: yaml::YamlFault::new(&error, text) })?;
    read_documents(path, text, documents, workloads)
}

/// `text` is what the documents were read from.
fn read_documents(
    path: &Path,
    text: &str,
    documents: Vec<Value>,
    workloads: Workloads,
) -> Result<ManifestReader, Error> {
    let mut read = ManifestReader { workloads, ..ManifestReader::default() };
    for (index, value) in documents.into_iter().enumerate() {
        read.document = index;
        read.document(path, value)?;
    }
    if read.wrong.is_empty() {
        return Ok(read);
    }
    let places = Places::of(text);
    let faults = read.wrong.into_iter().map(|(document, steps, error)| {
        let place = places.as_ref().and_then(|places| places.find(document, &steps));
        ManifestFault { document: document + 1, place, error }
    });
    let mut faults: Vec<ManifestFault> = faults.collect();
    // As they stand, not as they were looked at; last what nothing of stands there.
    faults.sort_by_key(|fault| (fault.document, fault.place.is_none(), fault.place));
    Err(Error::Fields { path: path.to_owned(), faults })
}

/// What becomes of a Deployment and the like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Workloads {
    /// A static pod's file holds a Pod.
    #[default]
    Refuse,
    Run,
}

/// What has been read of a file.
#[derive(Default)]
struct ManifestReader {
    workloads: Workloads,
    objects: Vec<Object>,
    notes: Vec<String>,
    /// Fields that are wrong: in which document, from 0, and where there.
    wrong: Vec<(usize, Vec<PathSegment>, FieldError)>,
    /// The document that is read.
    document: usize,
    /// Where in it the object stands: not at its root in a List.
    at: Vec<PathSegment>,
}

impl ManifestReader {
    fn document(&mut self, path: &Path, value: Value) -> Result<(), Error> {
        let document = self.document + 1;
        let not = |found| Error::Kind { path: path.to_owned(), document, found };
        match parse::kind(&value).map_err(not)? {
            Kind::Pod => self.object(&value, |value| {
                let described: k8s_openapi::api::core::v1::Pod = parse::typed(value)?;
                let uid_given = described.metadata.uid.is_some();
                let pod = Box::new(pod::pod(described, field::ManifestSource::File)?);
                Ok(Object::Pod { pod, uid_given })
            }),
            Kind::ConfigMap => self.object(&value, |value| {
                parse::typed(value).and_then(object::config_map).map(Object::ConfigMap)
            }),
            Kind::Secret => self.object(&value, |value| secret_of(value).map(Object::Secret)),
            Kind::Workload(kind) if self.workloads == Workloads::Run => {
                if let Some((objects, note)) = self.read(&value, |value| workload::pods(kind, value)) {
                    self.objects.extend(objects);
                    self.notes.push(note);
                }
            }
            Kind::Workload(_) => return Err(not(parse::render_value(&value))),
            Kind::List if self.at.len() < 2 * MAX_DEPTH => match parse::items(value) {
                Ok(items) => {
                    for (index, item) in items.into_iter().enumerate() {
                        self.at.extend([PathSegment::Key("items".to_owned()), PathSegment::Index(index)]);
                        self.document(path, item)?;
                        self.at.truncate(self.at.len().saturating_sub(2));
                    }
                }
                Err(error) => {
                    let steps =
                        self.at.iter().cloned().chain([PathSegment::Key(error.field().to_owned())]).collect();
                    self.wrong.push((self.document, steps, error));
                }
            },
            Kind::List => return Err(not(format!("a List within {MAX_DEPTH} Lists"))),
        }
        Ok(())
    }

    fn object(&mut self, value: &Value, read: impl Fn(&Value) -> Result<Object, FieldError>) {
        if let Some(object) = self.read(value, read) {
            self.objects.push(object);
        }
    }

    fn read<T>(&mut self, value: &Value, read: impl Fn(&Value) -> Result<T, FieldError>) -> Option<T> {
        match faults::all(value, read) {
            Ok(read) => Some(read),
            Err(all) => {
                let (document, at) = (self.document, &self.at);
                self.wrong.extend(
                    all.into_iter()
                        .map(|(steps, error)| (document, at.iter().cloned().chain(steps).collect(), error)),
                );
                None
            }
        }
    }
}

/// The source of a wrong type would show the secret: only its place is told.
fn secret_of(value: &Value) -> Result<object::Named<crate::api::Secret>, FieldError> {
    let typed = parse::typed(value).map_err(|error| match error {
        FieldError::Type { field, .. } => field::invalid(
            field,
            "<secret contents redacted>",
            "wrong type: values of data are base64 text, those of stringData are text",
        ),
        other => other,
    });
    typed.and_then(object::secret)
}

/// The first pod of a text in its own words; none when it is not to be read as one.
pub(crate) fn parse_first_pod(text: &str) -> Option<k8s_openapi::api::core::v1::Pod> {
    let first = parse::documents(text).ok()?.into_iter().next()?;
    parse::typed(&first).ok()
}

#[cfg(test)]
mod tests;
