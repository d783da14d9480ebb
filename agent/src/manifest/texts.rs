//! The texts of manifests: of files, of folders and of standard input. Owns how much is read; never looks at what it
//! says. Called by [`super::load`] and by those who pass texts on.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

use super::Error;

/// As the kubelet takes of a file.
pub(crate) const MAX_BYTES: u64 = 10 << 20;
/// What stands for standard input.
const STDIN: &str = "-";
/// What is read in a folder.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// For messages.
    pub path: PathBuf,
    /// YAML or JSON.
    pub text: String,
}

/// The files, those of folders by name, and standard input for `-`.
///
/// # Errors
/// When one cannot be read, or a folder holds none.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Text>, Error> {
    let mut texts = Vec::new();
    for path in paths {
        if path.as_os_str() == STDIN {
            let path = PathBuf::from("standard input");
            texts.push(Text { text: whole(stdin(), &path)?, path });
        } else if path.is_dir() {
            for path in files_of(path)? {
                texts.push(Text { text: read_file(&path)?, path });
            }
        } else {
            texts.push(Text { text: read_file(path)?, path: path.clone() });
        }
    }
    Ok(texts)
}

/// The manifests of a folder, not of those in it.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let wrap = |source| Error::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(wrap)? {
        let path = entry.map_err(wrap)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(Error::Empty { path: folder.to_owned() });
    }
    files.sort();
    Ok(files)
}

/// The file's text.
pub(crate) fn read_file(path: &Path) -> Result<String, Error> {
    let file = File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    whole(file, path)
}

fn whole(from: impl Read, path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let read = from.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|source| Error::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::TooLarge { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|source| Error::Encoding { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_its_manifests_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let error = read(&[folder.path().to_owned()]).unwrap_err();
        assert!(matches!(error, Error::Empty { .. }), "{error}");
        for name in ["b.yaml", "a.yml", "c.json", "notes.txt"] {
            std::fs::write(at(name), name).unwrap();
        }
        std::fs::create_dir(at("d.yaml")).unwrap();
        let texts = read(&[folder.path().to_owned(), at("notes.txt")]).unwrap();
        let names: Vec<&str> = texts.iter().map(|text| text.text.as_str()).collect();
        assert_eq!(names, ["a.yml", "b.yaml", "c.json", "notes.txt"]);
        let error = read(&[at("none.yaml")]).unwrap_err();
        assert!(error.to_string().ends_with("none.yaml: cannot read the manifest"), "{error}");
    }
}
