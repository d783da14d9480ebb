//! A folder as a layer: owners, modes, links as they are. Owns the order, by path, so that equal
//! folders make equal layers. Reads only. Called by `debian`.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::image::Layer;

/// Nothing that runs reads these.
const LEFT_OUT: [&str; 4] = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian"];

/// Everything below `root`.
pub(super) fn layer(root: &Path) -> Result<Layer> {
    let mut walk = TreeWalk { layer: Layer::default(), first: HashMap::new() };
    walk.folder(root, root)?;
    Ok(walk.layer)
}

struct TreeWalk {
    layer: Layer,
    /// Where an inode with several names was seen first.
    first: HashMap<u64, String>,
}

impl TreeWalk {
    fn folder(&mut self, root: &Path, folder: &Path) -> Result<()> {
        let at = || format!("read {}", folder.display());
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).with_context(at)? {
            names.push(entry.with_context(at)?.path());
        }
        names.sort();
        for path in names {
            self.entry(root, &path).with_context(|| format!("add {}", path.display()))?;
        }
        Ok(())
    }

    fn entry(&mut self, root: &Path, path: &Path) -> Result<()> {
        let name = path.strip_prefix(root)?.to_str().context("a name that is not UTF-8")?.to_owned();
        if LEFT_OUT.contains(&name.as_str()) {
            return Ok(());
        }
        let meta = path.symlink_metadata()?;
        let mode = meta.mode() & 0o7777;
        let layer = std::mem::take(&mut self.layer);
        let layer = if meta.is_dir() {
            layer.dir(&name, mode)
        } else if meta.is_symlink() {
            let target = std::fs::read_link(path)?;
            layer.symlink(&name, target.to_str().context("a target that is not UTF-8")?)
        } else if !meta.is_file() {
            bail!("neither file, folder nor link");
        } else if let Some(first) = self.first.get(&meta.ino()) {
            layer.link(&name, first)
        } else {
            if meta.nlink() > 1 {
                self.first.insert(meta.ino(), name.clone());
            }
            layer.file(&name, mode, std::fs::read(path)?)
        };
        self.layer = layer.with_owner(meta.uid().into(), meta.gid().into());
        if meta.is_dir() { self.folder(root, path) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::image::Image;

    #[test]
    fn links_and_modes_come_along_and_manuals_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("usr/share/man/man1")).unwrap();
        std::fs::write(root.join("usr/share/man/man1/x.1"), "").unwrap();
        std::fs::write(root.join("usr/a"), "bytes").unwrap();
        std::fs::set_permissions(root.join("usr/a"), PermissionsExt::from_mode(0o4755)).unwrap();
        std::fs::hard_link(root.join("usr/a"), root.join("usr/b")).unwrap();
        symlink("a", root.join("usr/c")).unwrap();
        let built = Image { layers: vec![layer(root).unwrap()], ..Image::default() }.build().unwrap();
        let plain = flate2::read::GzDecoder::new(built.layers[0].bytes.as_slice());
        let mut archive = tar::Archive::new(plain);
        let seen: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let target = entry.link_name().unwrap().unwrap_or_default().display().to_string();
                format!("{} {:o} {target}", entry.path().unwrap().display(), entry.header().mode().unwrap())
            })
            .collect();
        assert_eq!(seen[0], "usr/ 755 ");
        assert_eq!(seen[1..], ["usr/a 4755 ", "usr/b 755 usr/a", "usr/c 777 a", "usr/share/ 755 "]);
    }
}
