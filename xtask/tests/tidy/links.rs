//! Links of the documents: each relative one leads to a file, its anchor to a heading, and the book's summary has every
//! page of docs/. Owns how a link is found in Markdown. No network: links elsewhere are not followed.

use std::fs;
use std::path::{Path, PathBuf};

use super::{assert_none, root, walk};

fn documents() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "md") {
            paths.push(path);
        }
    }
    walk(&root().join("docs"), "md", &mut paths);
    walk(&root().join("vagrant"), "md", &mut paths);
    paths
}

/// Lines without blocks of code and without code in them.
fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut is_code) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let parts: Vec<&str> = line.split('`').step_by(2).collect();
            lines.push((index + 1, parts.join("")));
        }
    }
    lines
}

/// What stands behind `](`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// A heading's anchor, as it is made where Markdown is shown.
fn slug(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
        .collect::<String>();
    kept.trim().replace(' ', "-")
}

fn anchors(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            found.push(slug(heading.trim_start_matches('#')));
        }
    }
    found
}

#[test]
fn links_of_the_documents_lead_somewhere() {
    let mut offenders = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        for (number, line) in prose(&text) {
            for link in links(&line).filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let target = match file {
                    "" => path.clone(),
                    file => path.parent().unwrap().join(file),
                };
                if !target.exists() {
                    offenders.push(format!("{name}:{number}: {link}: there is no such file"));
                } else if !anchor.is_empty() && !anchors(&target).iter().any(|known| known == anchor) {
                    offenders.push(format!("{name}:{number}: {link}: there is no such heading"));
                }
            }
        }
    }
    assert_none("links lead somewhere", &offenders);
}

#[test]
fn the_summary_of_the_book_has_every_page() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let listed: Vec<&str> = summary.lines().flat_map(links).collect();
    let mut pages = Vec::new();
    walk(&root().join("docs"), "md", &mut pages);
    let names =
        pages.iter().map(|path| path.strip_prefix(root().join("docs")).unwrap().display().to_string());
    let missing: Vec<String> =
        names.filter(|name| name != "SUMMARY.md" && !listed.contains(&name.as_str())).collect();
    assert_none("docs/SUMMARY.md lists each page of docs/", &missing);
    let index = fs::read_to_string(root().join("docs/adr/README.md")).unwrap();
    let listed: Vec<&str> = index.lines().flat_map(links).collect();
    let mut decisions = Vec::new();
    walk(&root().join("docs/adr"), "md", &mut decisions);
    let names = decisions.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
    let missing: Vec<String> =
        names.filter(|name| name != "README.md" && !listed.contains(&name.as_str())).collect();
    assert_none("docs/adr/README.md lists each decision", &missing);
}

#[test]
fn links_and_anchors_are_found_as_they_are_written() {
    let text = "a [b](c.md#d) and `[not](this)`\n```\n[nor](that)\n```\n[e](#f)\n";
    let lines = prose(text);
    let found: Vec<&str> = lines.iter().flat_map(|(_, line)| links(line)).collect();
    assert_eq!(found, ["c.md#d", "#f"]);
    assert_eq!(slug(" What's `new`, here? "), "whats-new-here");
}
