//! The Container Device Interface (CDI 1.1): devices by name, whose files in the node's folders say what a
//! container needs for them. Owns the names, the files and who wins among them; reads them anew at each
//! create, on a blocking thread. Called by `container::create` and, to tell which files are bad, by Status.

mod apply;
mod check;
mod file;
mod folder;
mod mount;
mod name;
mod node;
mod version;

use std::path::PathBuf;

use gantry_proto::cri;

pub(crate) use apply::inject;
pub(crate) use folder::errors;

/// Annotations that ask for devices, as kubelets did before CRI had a field for it.
const ANNOTATION: &str = "cdi.k8s.io/";

/// Devices that can't be given, in the words of containerd and its library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node's configuration says no.
    #[error("CDI devices ({0}) requested but CDI support is explicitly disabled")]
    Disabled(String),
    /// An annotation with something else.
    #[error("failed to parse CDI device annotations: invalid CDI device name {0:?}")]
    Annotation(String),
    /// No file has them. Bad files are named: they may be the ones.
    #[error("CDI device injection failed: unresolvable CDI devices {}{}", .names.join(", "), bad(.files))]
    Unresolvable {
        /// All that are missing.
        names: Vec<String>,
        /// What keeps files from being read.
        files: Vec<String>,
    },
    /// A device node that the node does not have.
    #[error("CDI device injection failed: failed to inject devices: {0}")]
    Node(#[from] node::Error),
    /// A mount that can't be made.
    #[error("CDI device injection failed: failed to inject devices: {0}")]
    Mount(#[from] mount::Error),
    /// What this runtime does not do.
    #[error(
        "CDI device injection failed: {0} is not supported by this runtime: take it out of the device's file"
    )]
    Unsupported(&'static str),
}

fn bad(files: &[String]) -> String {
    if files.is_empty() { String::new() } else { format!(" (bad files: {})", files.join("; ")) }
}

/// Where files are looked for; a later folder wins over an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CdiConfig {
    /// As containerd's `enable_cdi`.
    pub enabled: bool,
    /// As containerd's `cdi_spec_dirs`.
    pub spec_dirs: Vec<PathBuf>,
}

impl Default for CdiConfig {
    fn default() -> Self {
        Self { enabled: true, spec_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()] }
    }
}

/// The devices that a container asks for: by the field, then by annotations; each once.
///
/// # Errors
/// When they are not to be had, or an annotation holds something else.
pub(crate) fn requested_devices(config: &cri::ContainerConfig, enabled: bool) -> Result<Vec<String>, Error> {
    let fields = config.cdi_devices.iter().map(|device| device.name.clone());
    if !enabled {
        let names: Vec<String> = fields.collect();
        return if names.is_empty() { Ok(names) } else { Err(Error::Disabled(names.join(", "))) };
    }
    let mut all = Vec::new();
    let mut annotations: Vec<_> =
        config.annotations.iter().filter(|(key, _)| key.starts_with(ANNOTATION)).collect();
    annotations.sort();
    let annotated = annotations.into_iter().flat_map(|(_, value)| value.split(',')).map(str::to_owned);
    let annotated: Vec<String> = annotated.collect();
    if let Some(odd) = annotated.iter().find(|device| !name::is_qualified(device)) {
        return Err(Error::Annotation(odd.clone()));
    }
    for device in fields.chain(annotated) {
        if !all.contains(&device) {
            all.push(device);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
