//! docs/ledger/cri.md against the descriptors of CRI: each field below each request is honoured (and the
//! check or test named exists), refused, or inert. Owns the comparison; what a name stands for is the
//! suite's (`tests/go/cri`) and the tests' own. Run by `cargo test`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use prost_reflect::{Kind, MessageDescriptor};

/// Protocols that the suite has a check for, each under the same name.
const PROTOCOLS: [&str; 3] = ["spdy", "websocket", "websocket-v4"];

fn root() -> Result<PathBuf> {
    // Not env!: checkouts that share a target folder share this binary.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR")?;
    Ok(Path::new(&own).parent().context("no parent")?.to_owned())
}

/// The fields of every message that a request may hold, by message.
fn fields() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.open_file("proto/cri.proto")?;
    let pool = compiler.descriptor_pool();
    let mut found = BTreeMap::new();
    let mut open: Vec<MessageDescriptor> =
        pool.all_messages().filter(|message| message.name().ends_with("Request")).collect();
    while let Some(message) = open.pop() {
        if found.contains_key(message.name()) {
            continue;
        }
        let names = message.fields().map(|field| field.name().to_owned());
        found.insert(message.name().to_owned(), names.collect());
        for field in message.fields().filter(|field| !field.is_map()) {
            if let Kind::Message(inner) = field.kind() {
                open.push(inner);
            }
        }
    }
    // GetContainerEvents and its like say nothing.
    found.retain(|_, names: &mut BTreeSet<String>| !names.is_empty());
    Ok(found)
}

/// Every file below a folder with this ending.
fn texts(folder: &Path, ending: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(texts(&path, ending)?);
        } else if path.extension().is_some_and(|own| own == ending) {
            found.push(std::fs::read_to_string(&path)?);
        }
    }
    Ok(found)
}

/// Names of the suite's checks: `register("NAME"`, or `register("FRONT"+protocol+"REST"`.
fn checks(root: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for text in texts(&root.join("tests/go/cri"), "go")? {
        for rest in text.split("register(\"").skip(1) {
            let Some((front, rest)) = rest.split_once('"') else { continue };
            match rest.strip_prefix("+protocol+\"").and_then(|rest| rest.split_once('"')) {
                Some((rest, _)) => names.extend(PROTOCOLS.map(|protocol| format!("{front}{protocol}{rest}"))),
                None if rest.starts_with(',') => drop(names.insert(front.to_owned())),
                None => {}
            }
        }
    }
    Ok(names)
}

/// Functions that `#[test]` stands before, at most a line away.
fn tests(root: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for folder in ["shim", "cni/src", "tests/kernel"] {
        for text in texts(&root.join(folder), "rs")? {
            for rest in text.split("#[test]").chain(text.split("#[tokio::test")).skip(1) {
                let function = rest.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
                names.extend(function.map(|(name, _)| name.to_owned()));
            }
        }
    }
    Ok(names)
}

/// `check` and `test` in backquotes within a reason.
fn named(note: &str) -> Vec<&str> {
    let quoted = note.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.contains('/') && !name.contains(' ')).collect()
}

#[test]
fn every_field_of_a_request_is_honoured_refused_or_inert() -> Result<()> {
    let root = root()?;
    let (checks, tests) = (checks(&root)?, tests(&root)?);
    ensure!(checks.len() > 200 && tests.len() > 300, "{} checks, {} tests", checks.len(), tests.len());
    let text = std::fs::read_to_string(root.join("docs/ledger/cri.md"))?;
    let (mut listed, mut wrong) = (BTreeMap::<&str, BTreeSet<String>>::new(), Vec::new());
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [of, field, what, note] = cells[..] else { anyhow::bail!("not four cells: {line}") };
        let known = |name: &str| checks.contains(name) || tests.contains(name);
        let fine = match what {
            "honoured" => known(note.trim_matches('`')),
            // A check that is named beside a reason has to be there, too.
            "refused" => note.contains('`') && named(note).into_iter().all(known),
            "inert" => !note.is_empty() && named(note).into_iter().all(known),
            _ => false,
        };
        let field = field.trim_matches('`').to_owned();
        if !fine || !listed.entry(of.trim_matches('`')).or_default().insert(field) {
            wrong.push(line);
        }
    }
    ensure!(wrong.is_empty(), "no such check or test, no message or reason, or twice:\n{}", wrong.join("\n"));
    for (message, fields) in fields()? {
        let own = listed.remove(message.as_str()).unwrap_or_default();
        ensure!(own == fields, "{message}: the ledger has {own:?}, CRI has {fields:?}");
    }
    ensure!(listed.is_empty(), "not in any request of CRI: {listed:?}");
    Ok(())
}
