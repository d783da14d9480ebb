//! `cargo xtask book`: the pages of docs/ as a book, by the program mdbook. Owns the copy that is made for it, where links
//! to what is no part of the book become text, and the look at each link of what comes out. Called by main and
//! by the tier `static`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::sh;

/// mdBook's version; its pages and links are looked at below.
const MDBOOK: &str = "0.5.4";
/// At the repository's root, and their names in the book.
const AROUND: [(&str, &str); 5] = [
    ("README.md", "about.md"),
    ("README.ko.md", "about.ko.md"),
    ("ARCHITECTURE.md", "architecture.md"),
    ("CONTRIBUTING.md", "contributing.md"),
    ("CHANGELOG.md", "changelog.md"),
];

/// Makes it, in target/book.
pub(crate) fn run() -> Result<()> {
    let (source, book) = (sh::target_dir().join("book-source"), sh::target_dir().join("book"));
    for folder in [&source, &book] {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("remove {}", folder.display()));
            }
            _ => {}
        }
    }
    copy(&sh::root(), &source)?;
    let mut mdbook = Command::new(mdbook()?);
    // Its lines on what it does are no news; what is wrong it says, too.
    mdbook.env("MDBOOK_LOG", "warn").arg("build").arg(&source).arg("--dest-dir").arg(&book);
    sh::run(&mut mdbook)?;
    let pages = files(&book)?;
    let broken = broken(&pages)?;
    if !broken.is_empty() {
        bail!("links of the book lead nowhere:\n  {}", broken.join("\n  "));
    }
    println!("{}", book.join("index.html").display());
    Ok(())
}

/// mdbook of that version, installed into the cache unless it is there.
fn mdbook() -> Result<PathBuf> {
    let tools = sh::cache_dir().join("tools");
    let tool = tools.join("bin/mdbook");
    let says = Command::new(&tool).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    if String::from_utf8_lossy(&says).trim() == format!("mdbook v{MDBOOK}") {
        return Ok(tool);
    }
    println!("installing mdbook {MDBOOK}, some minutes the first time");
    let package = format!("mdbook@{MDBOOK}");
    let mut install = sh::cargo(&["install", "--quiet", "--locked", &package, "--no-default-features"]);
    sh::run(install.args(["--features", "search", "--root"]).arg(&tools))?;
    Ok(tool)
}

/// The documents, as the book has them.
fn copy(root: &Path, to: &Path) -> Result<()> {
    let docs = root.join("docs");
    let mut places: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for path in files(&docs)? {
        let within = path.strip_prefix(&docs).unwrap_or(&path).to_owned();
        // mdbook makes index.html of it, and leaves links to it as they are.
        let within = if within.ends_with("README.md") { within.with_file_name("index.md") } else { within };
        places.insert(path, within);
    }
    for (name, inside) in AROUND {
        places.insert(root.join(name), inside.into());
    }
    for (path, inside) in &places {
        let target = to.join("src").join(inside);
        let made = target.parent().map_or(Ok(()), fs::create_dir_all);
        made.with_context(|| format!("make the folder of {}", target.display()))?;
        let failed = || format!("copy {}", path.display());
        if path.extension().is_some_and(|end| end == "md") {
            let text = fs::read_to_string(path).with_context(failed)?;
            let more = if inside.as_os_str() == "SUMMARY.md" { around() } else { String::new() };
            fs::write(&target, relinked(&text, path, inside, &places) + &more).with_context(failed)?;
        } else {
            fs::copy(path, &target).with_context(failed)?;
        }
    }
    let settings = "[book]\ntitle = \"Gantry\"\nlanguage = \"en\"\n";
    fs::write(to.join("book.toml"), settings).context("write book.toml")
}

/// The part of the summary for what stands around docs/.
fn around() -> String {
    let line = |(name, inside): &(&str, &str)| format!("- [{}]({inside})\n", name.trim_end_matches(".md"));
    format!("\n# The repository\n\n{}", AROUND.iter().map(line).collect::<String>())
}

/// Links lead to the same files at their places in the book; those to other files are their text alone.
fn relinked(text: &str, path: &Path, inside: &Path, places: &BTreeMap<PathBuf, PathBuf>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_code = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code || !line.contains("](") {
            out.push_str(line);
        } else {
            out.push_str(&relinked_line(line, path, inside, places));
        }
    }
    out
}

fn relinked_line(line: &str, path: &Path, inside: &Path, places: &BTreeMap<PathBuf, PathBuf>) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        out.push_str(before);
        let Some((link, behind)) = after.split_once(')') else {
            out.push_str("](");
            rest = after;
            continue;
        };
        rest = behind;
        let (file, anchor) =
            link.split_once('#').map_or((link, String::new()), |(f, a)| (f, format!("#{a}")));
        if file.is_empty() || link.contains("://") {
            out.push_str(&format!("]({link})"));
            continue;
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        match places.get(&clean(&folder.join(file))) {
            Some(place) => out.push_str(&format!("]({}{anchor})", from(inside, place))),
            None => unlink(&mut out, file),
        }
    }
    out.push_str(rest);
    out
}

/// Takes back the bracket that opened the link; the path follows its text where that is another one.
fn unlink(out: &mut String, file: &str) {
    let Some(open) = out.rfind('[') else { return };
    let text = out.split_off(open).trim_start_matches('[').to_owned();
    out.push_str(&text);
    let shown = file.trim_start_matches("../");
    if !text.trim_matches('`').ends_with(shown) && !shown.is_empty() {
        out.push_str(&format!(" (`{shown}`)"));
    }
}

/// Without `.` and `..`.
fn clean(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut clean, part| {
        match part {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            part => clean.push(part),
        }
        clean
    })
}

/// The way from one page to another file.
fn from(page: &Path, to: &Path) -> String {
    let up = "../".repeat(page.components().count().saturating_sub(1));
    format!("{up}{}", to.display())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).with_context(|| format!("read {}", at.display()))? {
            let path = entry.with_context(|| format!("read {}", at.display()))?.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    Ok(found)
}

/// Each link and picture of the pages that leads to no file, or to no part of one.
fn broken(pages: &[PathBuf]) -> Result<Vec<String>> {
    let mut texts = BTreeMap::new();
    // The page for printing has all others in it, with links as they stand in them.
    let is_page =
        |path: &&PathBuf| path.extension().is_some_and(|end| end == "html") && !path.ends_with("print.html");
    for path in pages.iter().filter(is_page) {
        texts.insert(path, fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?);
    }
    let mut broken = Vec::new();
    for (path, text) in &texts {
        let links = ["href=\"", "src=\""].into_iter().flat_map(|mark| text.split(mark).skip(1));
        for link in links.filter_map(|rest| rest.split('"').next()) {
            let is_elsewhere =
                link.contains("://") || link.starts_with("data:") || link.starts_with("mailto:");
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if is_elsewhere || file.starts_with('/') {
                continue;
            }
            let target = match file {
                "" => (*path).clone(),
                file => clean(&path.parent().unwrap_or(Path::new("")).join(file)),
            };
            let has = |text: &String| anchor.is_empty() || text.contains(&format!("id=\"{anchor}\""));
            if !target.exists() || !texts.get(&target).is_none_or(has) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    Ok(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_no_page_or_no_part_of_one_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
        };
        write(
            "a.html",
            "<h1 id=\"x\"></h1><a href=\"adr/b.html#y\"></a><a href=\"#x\"></a><img src=\"p.svg\">",
        );
        write("adr/b.html", "<h2 id=\"y\"></h2><a href=\"../a.html#no\"></a><a href=\"../c.html\"></a>");
        write("p.svg", "");
        let found = broken(&files(folder.path()).unwrap()).unwrap();
        let page = folder.path().join("adr/b.html").display().to_string();
        assert_eq!(found, [format!("{page}: ../a.html#no"), format!("{page}: ../c.html")]);
        write("a.html", "<a href=\"https://else.where/\"></a><img src=\"none.png\">");
        assert!(broken(&files(folder.path()).unwrap()).unwrap()[0].ends_with("a.html: none.png"));
    }

    #[test]
    fn links_stay_within_the_book_or_become_text() {
        let places: BTreeMap<PathBuf, PathBuf> =
            [("/r/docs/a.md", "a.md"), ("/r/docs/adr/b.md", "adr/b.md"), ("/r/README.md", "about.md")]
                .map(|(path, place)| (path.into(), place.into()))
                .into();
        let from = |text: &str| relinked(text, Path::new("/r/docs/adr/b.md"), Path::new("adr/b.md"), &places);
        for (text, want) in [
            ("see [a](../a.md#x), [top](../../README.md)\n", "see [a](../a.md#x), [top](../about.md)\n"),
            ("[here](#y) [web](http://x/)\n", "[here](#y) [web](http://x/)\n"),
            ("[`cli/src`](../../cli/src) and [it](../../x.rs)\n", "`cli/src` and it (`x.rs`)\n"),
            ("```\n[a](../../no)\n```\n", "```\n[a](../../no)\n```\n"),
        ] {
            assert_eq!(from(text), want);
        }
        let top = relinked("[b](docs/adr/b.md)", Path::new("/r/README.md"), Path::new("about.md"), &places);
        assert_eq!(top, "[b](adr/b.md)");
    }
}
