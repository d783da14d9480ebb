//! The folders of CDI files: which devices there are, who wins where two files have one, and which files are
//! bad. Reads them anew each time; a file that can't be used leaves the others alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check::{self, CdiSpec};
use super::file::{self, MAX_BYTES};

/// All that a node offers.
#[derive(Debug, Default)]
pub(super) struct CdiSpecs {
    /// By full name: the file that has it.
    pub(super) devices: BTreeMap<String, Arc<CdiSpec>>,
    /// What is wrong, by file.
    pub(super) errors: BTreeMap<PathBuf, Vec<String>>,
}

/// What is wrong with the files of these folders, each with its path.
#[must_use]
pub(crate) fn errors(folders: &[PathBuf]) -> BTreeMap<PathBuf, Vec<String>> {
    read(folders).errors
}

/// Reads the folders, the last one first in rank. Of two files of one folder with the same device neither is
/// taken.
pub(super) fn read(folders: &[PathBuf]) -> CdiSpecs {
    let mut found = CdiSpecs::default();
    let mut owners: BTreeMap<String, (usize, PathBuf)> = BTreeMap::new();
    let mut conflicts = BTreeSet::new();
    for (rank, folder) in folders.iter().enumerate() {
        let files = match list(folder) {
            Ok(files) => files,
            Err(error) => {
                found.errors.entry(folder.clone()).or_default().push(format!("list the folder: {error}"));
                continue;
            }
        };
        for path in files {
            let spec = match load(&path) {
                Ok(Some(spec)) => Arc::new(spec),
                // Gone between the two looks.
                Ok(None) => continue,
                Err(why) => {
                    found.errors.entry(path).or_default().push(format!("failed to load CDI Spec {why}"));
                    continue;
                }
            };
            for name in spec.devices.keys() {
                if let Some((_, other)) = owners.get(name).filter(|(known, _)| *known == rank) {
                    let why = format!("conflicting device {name:?} (specs {path:?}, {other:?})");
                    for file in [&path, other] {
                        found.errors.entry(file.clone()).or_default().push(why.clone());
                    }
                    conflicts.insert(name.clone());
                }
                owners.insert(name.clone(), (rank, path.clone()));
                found.devices.insert(name.clone(), spec.clone());
            }
        }
    }
    found.devices.retain(|name, _| !conflicts.contains(name));
    found
}

/// The files that may be CDI's, by name; folders in it are passed over, and one that is not there has none.
fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let is_spec = path.extension().is_some_and(|ending| ending == "json" || ending == "yaml");
        if is_spec && !entry.file_type()?.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn load(path: &Path) -> Result<Option<CdiSpec>, String> {
    let text = match text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("failed to read CDI Spec {path:?}: {error}")),
    };
    let parsed = file::parse(&text).map_err(|why| format!("failed to parse CDI Spec {path:?}: {why}"))?;
    check::spec(parsed).map(Some)
}

fn text(path: &Path) -> io::Result<String> {
    // A pipe of that name must not hold up a create.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("it is longer than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(vendor: &str, device: &str, value: &str) -> String {
        format!(
            "{{cdiVersion: 1.0.0, kind: {vendor}/c, devices: [{{name: {device}, containerEdits: {{env: [A={value}]}}}}]}}"
        )
    }

    fn env(found: &CdiSpecs, name: &str) -> Option<String> {
        found.devices.get(name).map(|spec| spec.devices[name].env[0].clone())
    }

    fn folders(root: &Path, files: &[(&str, &str)]) -> Vec<PathBuf> {
        let folders = ["one", "two", "none"].map(|name| root.join(name));
        fs::create_dir_all(folders[0].join("folder.json")).unwrap();
        fs::create_dir_all(&folders[1]).unwrap();
        for (name, text) in files {
            fs::write(root.join(name), text).unwrap();
        }
        folders.to_vec()
    }

    #[test]
    fn the_later_folder_wins_and_of_two_files_in_one_neither() {
        let root = tempfile::tempdir().unwrap();
        let folders = folders(
            root.path(),
            &[
                ("one/a.yaml", &spec("v", "both", "low")),
                ("two/a.json", &spec("v", "both", "high")),
                ("one/b.yaml", &spec("v", "twice", "1")),
                ("one/c.yaml", &spec("v", "twice", "2")),
                ("one/d.txt", &spec("v", "text", "1")),
            ],
        );
        let found = read(&folders);
        assert_eq!(env(&found, "v/c=both").as_deref(), Some("A=high"));
        assert_eq!(env(&found, "v/c=twice"), None);
        assert_eq!(found.devices.len(), 1);
        let named: Vec<&str> =
            found.errors.keys().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(named, ["b.yaml", "c.yaml"]);
        assert!(
            found.errors.values().all(|why| why[0].starts_with("conflicting device \"v/c=twice\" (specs "))
        );
    }

    #[test]
    fn bad_files_are_named_and_leave_the_others_alone() {
        let root = tempfile::tempdir().unwrap();
        let folders = folders(root.path(), &[("one/good.json", &spec("v", "d", "1")), ("one/bad.json", "{")]);
        let long = fs::File::create(folders[0].join("long.yaml")).unwrap();
        long.set_len(MAX_BYTES + 1).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folders[0].join("pipe.yaml"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        std::os::unix::fs::symlink("/nowhere", folders[0].join("link.yaml")).unwrap();
        std::os::unix::fs::symlink("../one/good.json", folders[1].join("link.yaml")).unwrap();
        let found = read(&folders);
        assert_eq!(found.devices.len(), 1);
        let errors: Vec<String> = found.errors.values().flatten().cloned().collect();
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(
            errors[0].contains("failed to parse CDI Spec") && errors[0].contains("bad.json"),
            "{errors:?}"
        );
        assert!(errors[1].contains("longer than 4194304 bytes"), "{errors:?}");
        assert!(errors[2].contains("not a file"), "{errors:?}");
    }
}
