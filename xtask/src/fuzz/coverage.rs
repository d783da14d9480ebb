//! Lines of each parser that the kept corpus reaches. Owns a build of the tests that run the corpus, with
//! rustc's own coverage (`-C instrument-coverage`) in our crates alone, and the reading of llvm-cov's figures;
//! never fuzzes. Called by `fuzz`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Target, llvm, own};
use crate::sh;

/// What a parser's lines must be reached to, in per cent.
const WANTED: usize = 80;

/// Between cargo and rustc, for members of the workspace only: dependencies stay as they are.
const WRAPPER: &str = "#!/bin/sh\nexec \"$@\" -C instrument-coverage\n";

/// Lines with code, and how often each was reached.
type Lines = BTreeMap<usize, u64>;

/// Prints a line for each file and each target.
pub(super) fn report(targets: &[&Target]) -> Result<()> {
    let tools = llvm::fetch()?;
    let programs = build()?;
    let mut short = Vec::new();
    for target in targets {
        let files = of_target(target, &tools, &programs)?;
        let (mut reached, mut all) = (0, 0);
        for name in target.files {
            let lines = files.get(*name).with_context(|| format!("no figures of {name}"))?;
            let of_file = lines.values().filter(|count| **count > 0).count();
            (reached, all) = (reached + of_file, all + lines.len());
            println!("{}", row(&format!("  {name}"), of_file, lines.len()));
        }
        println!("{}", row(target.name, reached, all));
        if reached * 100 < all * WANTED {
            short.push(target.name);
        }
    }
    ensure!(short.is_empty(), "below {WANTED} % of their lines: {}", short.join(", "));
    Ok(())
}

fn row(name: &str, reached: usize, all: usize) -> String {
    format!("{name:<46}{reached:>5} of {all:>5} lines {:>4} %", reached * 100 / all.max(1))
}

/// The crates that have targets: the folder, and the name.
const CRATES: [(&str, &str); 5] = [
    ("cni", "gantry-cni"),
    ("shim", "gantry-shim"),
    ("shim/image", "gantry-image"),
    ("shim/monitor", "gantry-monitor"),
    ("shim/unpack", "gantry-unpack"),
];

/// The tests of the crates that have targets, by the crate's folder.
fn build() -> Result<BTreeMap<&'static str, PathBuf>> {
    let wrapper = sh::target_dir().join("fuzz/instrumented");
    fs::create_dir_all(wrapper.parent().context("the target folder")?)?;
    fs::write(&wrapper, WRAPPER)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let mut cargo = sh::cargo(&["test", "--message-format=json-render-diagnostics", "--lib", "--no-run"]);
    cargo
        .args(CRATES.iter().flat_map(|(_, name)| ["--package", name]))
        .env("RUSTC_WORKSPACE_WRAPPER", &wrapper);
    // Build scripts of ours are instrumented, too, and would leave profiles of themselves.
    let text = sh::output(cargo.env("LLVM_PROFILE_FILE", "/dev/null"))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let program = |name: &str| {
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_crate =
            |message: &Value| message.pointer("/target/name").and_then(Value::as_str) == Some(name);
        let mut found =
            messages.filter(of_crate).filter_map(|message| Some(message.get("executable")?.as_str()?.into()));
        found.next().with_context(|| format!("cargo built no tests of {name}"))
    };
    let of_crate = |(folder, name): &(&'static str, &str)| Ok((*folder, program(&name.replace('-', "_"))?));
    CRATES.iter().map(of_crate).collect()
}

fn of_target(
    target: &Target,
    tools: &llvm::Tools,
    programs: &BTreeMap<&'static str, PathBuf>,
) -> Result<BTreeMap<String, Lines>> {
    let folder = own(target)?;
    let name =
        target.files.first().and_then(|file| file.split_once("/src/")).map_or("", |(folder, _)| folder);
    let program = programs.get(name).with_context(|| format!("{} tries no known crate", target.name))?;
    let (raw, merged) = (folder.join("profile.raw"), folder.join("profile"));
    let mut replay = std::process::Command::new(program);
    replay.args(["--exact", &format!("fuzzing::tests::{}", target.name)]).stdout(Stdio::null());
    // As cargo would: the test looks for the corpus beside its crate.
    replay.env("CARGO_MANIFEST_DIR", sh::root().join(name)).current_dir(sh::root().join(name));
    sh::run(replay.env("LLVM_PROFILE_FILE", &raw)).context("an input of the corpus is a finding")?;
    sh::run(
        tools.command("llvm-profdata").args(["merge", "--sparse"]).arg(&raw).arg("--output").arg(&merged),
    )?;
    let mut export = tools.command("llvm-cov");
    export.args(["export", "--format=lcov", "--instr-profile"]).arg(&merged).arg(program);
    let text = sh::output(&mut export)?;
    by_file(&String::from_utf8_lossy(&text), target.files, &sh::root())
}

/// Out of lcov's format: `SF:file`, then `DA:line,count` for each of its lines. A file's own tests are no
/// part of the parser.
fn by_file(text: &str, wanted: &[&str], root: &Path) -> Result<BTreeMap<String, Lines>> {
    let mut files: BTreeMap<String, Lines> = BTreeMap::new();
    let mut current: Option<(String, usize)> = None;
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let name = wanted.iter().find(|name| root.join(name) == Path::new(path));
            current = name
                .map(|name| Ok::<_, anyhow::Error>(((*name).to_owned(), end(&root.join(name))?)))
                .transpose()?;
        } else if let Some((name, end)) = &current
            && let Some((line, count)) = line.strip_prefix("DA:").and_then(|pair| pair.split_once(','))
        {
            let (line, count): (usize, u64) = (line.parse()?, count.parse()?);
            if line < *end {
                let known = files.entry(name.clone()).or_default().entry(line).or_default();
                *known = (*known).max(count);
            }
        }
    }
    Ok(files)
}

/// The line at which tests within the file begin.
fn end(path: &Path) -> Result<usize> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let begins = |pair: &[&str]| matches!(pair, ["#[cfg(test)]", tests] if tests.ends_with("mod tests {"));
    Ok(lines.windows(2).position(begins).map_or(usize::MAX, |index| index + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_own_tests_are_not_counted() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a.rs"), "fn a() {\n}\n#[cfg(test)]\nmod tests {\n}\n").unwrap();
        let at = root.path().display();
        let text = format!(
            "SF:{at}/b.rs\nDA:1,9\nend_of_record\nSF:{at}/a.rs\nDA:1,3\nDA:2,0\nDA:4,0\nend_of_record\n"
        );
        let found = by_file(&text, &["a.rs"], root.path()).unwrap();
        assert_eq!(found, BTreeMap::from([("a.rs".to_owned(), BTreeMap::from([(1, 3), (2, 0)]))]));
        assert_eq!(row("a", 1, 2).split_whitespace().last(), Some("%"));
    }
}
