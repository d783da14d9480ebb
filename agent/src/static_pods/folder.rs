//! Reads a manifest folder once. Owns which files count; never decides which pods run. Called by
//! [`super::follow`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::choice::Reading;
use crate::manifest::{self, Object};

/// Every manifest in the folder, by name; none when there is no folder. Names that begin with a dot
/// and subfolders are passed over, as upstream. A path may also be one file.
///
/// # Errors
/// When the folder cannot be read at all.
pub(super) fn read(folder: &Path) -> Result<Vec<Reading>, String> {
    let paths = match fs::metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
        Ok(found) if found.is_file() => vec![folder.to_owned()],
        Ok(_) => list(folder).map_err(|error| error.to_string())?,
    };
    Ok(paths.into_iter().filter_map(read_one).collect())
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// None for what is no file, or is gone again.
fn read_one(path: PathBuf) -> Option<Reading> {
    match fs::metadata(&path) {
        Ok(found) if found.is_file() => {}
        Ok(found) if found.is_dir() => return None,
        Ok(_) => {
            return Some(Reading {
                path,
                result: Err("is neither a file nor a folder".to_owned()),
                raw: None,
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(Reading { path, result: Err(error.to_string()), raw: None }),
    }
    let text = manifest::read(&path);
    let raw = text.as_ref().ok().and_then(|text| manifest::parse_first_pod(text)).map(Arc::new);
    let result = text.and_then(|text| manifest::parse_text(&path, &text));
    let result = result.map_err(|error| error.within_file()).and_then(|objects| {
        let mut objects = objects.into_iter();
        match (objects.next(), objects.next()) {
            (Some(Object::Pod { pod, uid_given }), None) => Ok((*pod, uid_given)),
            (Some(object), None) => {
                let (kind, name) = object.id();
                Err(format!("{kind} {name}: a static pod's file holds a Pod"))
            }
            (None, _) => Err("no pod in it".to_owned()),
            (Some(_), Some(_)) => Err("more than one object: a static pod has a file of its own".to_owned()),
        }
    });
    Some(Reading { path, result, raw })
}
