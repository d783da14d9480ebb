//! What gantry itself writes of its command line: manual pages, and completions for shells. Owns where they
//! are below `/usr/share`; what they say is made by the program from its own commands. Called by `dist`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::sh;

const MANUAL: &str = "man/man8";

/// A shell, and where it looks for the completion of a program.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/gantry"),
    ("zsh", "zsh/vendor-completions/_gantry"),
    ("fish", "fish/vendor_completions.d/gantry.fish"),
];

/// Makes the tree anew: a page of a command that is no more must not stay. Returns its folder.
pub(super) fn write(programs: &Path) -> Result<PathBuf> {
    let (gantry, share) = (programs.join("gantry"), programs.join("share"));
    if share.exists() {
        fs::remove_dir_all(&share).with_context(|| format!("remove {}", share.display()))?;
    }
    let manual = share.join(MANUAL);
    fs::create_dir_all(&manual).with_context(|| format!("make {}", manual.display()))?;
    sh::run(Command::new(&gantry).arg("manual").arg(&manual))?;
    for name in super::names(&manual)? {
        compress(&manual.join(name))?;
    }
    for (shell, to) in COMPLETIONS {
        let to = share.join(to);
        let folder = to.parent().context("a completion without a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let script = sh::output(Command::new(&gantry).args(["completion", shell]))?;
        fs::write(&to, script).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(share)
}

/// As Debian wants a page; cargo-deb compresses only what cargo has not made. The same bytes each time: no name, no time.
fn compress(page: &Path) -> Result<()> {
    let at = || format!("compress {}", page.display());
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&fs::read(page).with_context(at)?)?;
    let name = page.file_name().with_context(at)?.to_string_lossy();
    fs::write(page.with_file_name(format!("{name}.gz")), packed.finish()?).with_context(at)?;
    fs::remove_file(page).with_context(at)
}

/// Every file of the tree, by its path in it, in order.
pub(super) fn files(share: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    let mut folders = vec![share.to_owned()];
    while let Some(folder) = folders.pop() {
        for name in super::names(&folder)? {
            let path = folder.join(name);
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            files.push((path.strip_prefix(share)?.display().to_string(), bytes));
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_packed_alike_and_the_tree_is_listed_in_order() {
        let share = tempfile::tempdir().unwrap();
        let page = share.path().join("man/man8/gantry.8");
        fs::create_dir_all(page.parent().unwrap()).unwrap();
        fs::create_dir(share.path().join("zsh")).unwrap();
        fs::write(share.path().join("zsh/_gantry"), "z").unwrap();
        let packed = || {
            fs::write(&page, "page").unwrap();
            compress(&page).unwrap();
            files(share.path()).unwrap()
        };
        let found = packed();
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["man/man8/gantry.8.gz", "zsh/_gantry"]);
        assert_eq!(found, packed());
    }
}
