//! Packages and all that they depend on, downloaded once into a cache. Owns the reading of
//! `apt-cache depends` and the list that says the cache is whole; never unpacks. Called by
//! `debian`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Needed by packages' installation scripts alone, which are never run here.
const NOT_NEEDED: [&str; 6] =
    ["debconf", "cdebconf", "passwd", "debianutils", "init-system-helpers", "util-linux-extra"];

/// Downloads a closure, unless its list is there and has these packages.
pub(super) fn fetch(name: &str, packages: &[&str], folder: &Path) -> Result<()> {
    if is_cached(name, packages, folder) {
        return Ok(());
    }
    download(name, &closure(packages)?, folder)
}

/// Downloads these alone, unless their list is there: their files are wanted, not their programs.
pub(super) fn fetch_alone(name: &str, packages: &[&str], folder: &Path) -> Result<()> {
    if is_cached(name, packages, folder) {
        return Ok(());
    }
    download(name, &packages.iter().map(|&package| package.to_owned()).collect(), folder)
}

/// A list of before may lack what was added to the packages since.
fn is_cached(name: &str, packages: &[&str], folder: &Path) -> bool {
    let Ok(paths) = list_cached(name, folder) else { return false };
    let has = |package: &&str| {
        let file = format!("{package}_");
        paths.iter().filter_map(|path| path.file_name()).any(|name| name.to_string_lossy().starts_with(&file))
    };
    packages.iter().all(has)
}

fn download(name: &str, closure: &BTreeSet<String>, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let scratch = tempfile::Builder::new().prefix("download-").tempdir_in(folder)?;
    let mut apt = Command::new("apt-get");
    // The scratch folder is root's alone, so apt's own user could not write there.
    apt.args(["--quiet", "--option", "APT::Sandbox::User=root", "download"]);
    output(apt.args(closure).current_dir(scratch.path()))?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(scratch.path())? {
        let entry = entry?;
        std::fs::rename(entry.path(), folder.join(entry.file_name()))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    ensure!(names.len() == closure.len(), "apt-get download left {names:?} of {closure:?}");
    names.sort();
    // Last, and whole: it says that all the others are there.
    let list = scratch.path().join("list");
    std::fs::write(&list, names.join("\n"))?;
    Ok(std::fs::rename(list, list_path(name, folder))?)
}

/// A closure's archives in the cache.
pub(super) fn list_cached(name: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    let list = list_path(name, folder);
    let text = std::fs::read_to_string(&list)
        .with_context(|| format!("read {}: `cargo xtask test --tier cri` downloads it", list.display()))?;
    let paths: Vec<PathBuf> = text.lines().map(|line| folder.join(line)).collect();
    for path in &paths {
        ensure!(path.is_file(), "{} is gone: remove {}", path.display(), list.display());
    }
    Ok(paths)
}

fn list_path(name: &str, folder: &Path) -> PathBuf {
    folder.join(format!("{name}.list"))
}

fn closure(packages: &[&str]) -> Result<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    let mut new: BTreeSet<String> = packages.iter().map(|&name| name.to_owned()).collect();
    while !new.is_empty() {
        let text = output(Command::new("apt-cache").arg("depends").args(&new))
            .context("apt does not know them: apt-get update")?;
        known.append(&mut new);
        new = dependencies(&text).into_iter().filter(|name| !known.contains(name)).collect();
    }
    Ok(known)
}

/// What `apt-cache depends` says is needed. Of alternatives (`|`) the first one; of the providers
/// listed below a virtual package (`<name>`) the first one.
fn dependencies(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut satisfied = false;
    // A virtual package whose provider is looked for, and whether it is an alternative.
    let mut provider: Option<bool> = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("    ") {
            if let Some(alternative) = provider.take() {
                found.insert(name.trim().to_owned());
                satisfied = alternative;
            }
            continue;
        }
        let alternative = line.starts_with(" |");
        let Some((kind, name)) = line.trim_start_matches([' ', '|']).split_once(": ") else {
            (satisfied, provider) = (false, None);
            continue;
        };
        provider = None;
        if matches!(kind, "Depends" | "PreDepends") && !satisfied {
            if name.starts_with('<') {
                provider = Some(alternative);
            } else {
                found.insert(name.to_owned());
                satisfied = true;
            }
        }
        // The last of its alternatives: what comes next is another dependency.
        if !alternative {
            satisfied = false;
        }
    }
    found.retain(|name| !NOT_NEEDED.contains(&name.as_str()));
    found
}

fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {program}: it comes with Debian"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_alternatives_and_providers_the_first_is_taken() {
        let text = "a\n |Depends: one\n  Depends: two\n  PreDepends: three\n  Depends: <virtual>\n    four\n    \
                    five\n  Depends: nine\n  Breaks: six\nb\n |Depends: debconf\n  Depends: <debconf-2.0>\n    cdebconf\n    \
                    debconf\n  Depends: seven\n  Suggests: eight\n";
        let found: Vec<String> = dependencies(text).into_iter().collect();
        assert_eq!(found, ["four", "nine", "one", "seven", "three"]);
    }

    #[test]
    fn a_cache_without_its_list_or_a_file_is_not_whole() {
        let folder = tempfile::tempdir().unwrap();
        assert!(list_cached("x", folder.path()).is_err());
        std::fs::write(folder.path().join("x.list"), "a.deb").unwrap();
        assert!(list_cached("x", folder.path()).unwrap_err().to_string().contains("a.deb is gone"));
        std::fs::write(folder.path().join("a.deb"), "").unwrap();
        assert_eq!(list_cached("x", folder.path()).unwrap(), [folder.path().join("a.deb")]);
    }

    #[test]
    fn a_cache_of_fewer_packages_is_fetched_anew() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.list"), "curl_7_amd64.deb").unwrap();
        std::fs::write(folder.path().join("curl_7_amd64.deb"), "").unwrap();
        assert!(is_cached("x", &["curl"], folder.path()));
        assert!(!is_cached("x", &["curl", "libc-bin"], folder.path()));
        assert!(!is_cached("x", &["cur"], folder.path()));
    }
}
