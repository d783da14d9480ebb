//! Files of this machine as an archive. Owns the names in it; links stay links, and what is neither file, folder nor
//! link is left out. Called by [`super`].

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use tar::{Builder, HeaderMode};

use crate::output;

/// All of `from`, by the name `name`.
pub(super) fn pack(from: &Path, name: &str, into: impl Write) -> Result<()> {
    let mut archive = Builder::new(into);
    archive.follow_symlinks(false);
    archive.mode(HeaderMode::Complete);
    add(&mut archive, from, Path::new(name))?;
    let mut into = archive.into_inner().context("end the archive")?;
    into.flush().context("end the archive")
}

fn add(archive: &mut Builder<impl Write>, from: &Path, name: &Path) -> Result<()> {
    let failed = || format!("read {}", from.display());
    let kind = fs::symlink_metadata(from).with_context(failed)?.file_type();
    if !kind.is_dir() && !kind.is_file() && !kind.is_symlink() {
        output::say(&format!("warning: {} is a device, pipe or socket, skipping", from.display()));
        return Ok(());
    }
    archive.append_path_with_name(from, name).with_context(failed)?;
    if !kind.is_dir() {
        return Ok(());
    }
    let mut inner: Vec<_> = fs::read_dir(from).and_then(Iterator::collect).with_context(failed)?;
    inner.sort_by_key(fs::DirEntry::file_name);
    inner.iter().try_for_each(|entry| add(archive, &entry.path(), &name.join(entry.file_name())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_by_the_name_that_it_gets() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("site/deep")).unwrap();
        fs::write(at("site/deep/a"), "text").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("site/link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("site/socket")).unwrap();
        let mut bytes = Vec::new();
        pack(&at("site"), "html", &mut bytes).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let link = entry.link_name().unwrap().map(|link| format!(" -> {}", link.display()));
                format!(
                    "{}{}",
                    entry.path().unwrap().display().to_string().trim_end_matches('/'),
                    link.unwrap_or_default()
                )
            })
            .collect();
        assert_eq!(names, ["html", "html/deep", "html/deep/a", "html/link -> /etc/passwd"]);
        assert!(pack(&at("none"), "x", &mut Vec::new()).unwrap_err().to_string().contains("none"));
    }
}
