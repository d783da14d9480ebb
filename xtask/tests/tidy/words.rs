//! How we write: phrases that readers had to read twice, with what to write instead, and quotes of messages that must
//! be the code's own, and sentences that are too long to be read once. Owns the list and the length. A phrase comes onto
//! the list when somebody stumbles over it.

use std::fs;

use super::{assert_none, root, walk};

/// Words of a sentence, or of a part of one between `; :` or the cells of a table.
const LONGEST: usize = 30;

/// In lower case; and what to write.
const PHRASES: [(&str, &str); 16] = [
    ("does not get on", "is not running"),
    ("nobody has to know", "no configuration is needed"),
    ("is monotone", "is never cancelled"),
    ("say where with", "pass … with"),
    ("its exit code is this one's", "exit with its exit code"),
    ("are told as", "are reported as"),
    ("the file is told", "an error names the file"),
    ("another's machine", "a third party's machine"),
    ("to see what it is worth", "for benchmarks"),
    ("leaves two daemons behind", "runs the pods in the background"),
    ("says what becomes of each", "documents how every … is handled"),
    ("or as you:", "as your user"),
    ("in order to", "to"),
    ("utilize", "use"),
    ("please note", "say it"),
    ("leverage", "use"),
];

/// Where people read: documents for users, and help and messages of the command line.
fn read_by_people() -> Vec<(String, String)> {
    let mut paths =
        vec![root().join("README.md"), root().join("CONTRIBUTING.md"), root().join("ARCHITECTURE.md")];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "md") {
            paths.push(path);
        }
    }
    walk(&root().join("docs/ledger"), "md", &mut paths);
    walk(&root().join("cli/src"), "rs", &mut paths);
    let name = |path: &std::path::Path| path.strip_prefix(root()).unwrap().display().to_string();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn nothing_has_to_be_read_twice() {
    let mut offenders = Vec::new();
    for (name, text) in read_by_people() {
        for (index, line) in text.to_lowercase().lines().enumerate() {
            for (phrase, instead) in PHRASES.iter().filter(|(phrase, _)| line.contains(phrase)) {
                offenders.push(format!("{name}:{}: {phrase:?}: write {instead:?}", index + 1));
            }
        }
    }
    assert_none("plain words", &offenders);
}

/// What a message says between the parts that differ; short ones say nothing.
fn pieces(quote: &str) -> impl Iterator<Item = &str> {
    quote.split('…').map(str::trim).filter(|piece| piece.len() > 5)
}

#[test]
fn messages_that_troubleshooting_quotes_are_the_codes_own() {
    let mut paths = Vec::new();
    for folder in ["agent", "cli/src", "shim/src"] {
        walk(&root().join(folder), "rs", &mut paths);
    }
    let code: String = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    // The first word of a probe's event is its kind's name.
    let code = code.replace("{what} probe failed:", "Startup probe failed: Readiness probe failed:");
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let (mut offenders, mut seen) = (Vec::new(), 0);
    for line in page.lines().filter(|line| line.starts_with("| `") || line.starts_with("| |")) {
        // The last cell is what to do.
        let cells = line.trim_end_matches('|').rsplit_once(" | ").map_or("", |(cells, _)| cells);
        for quote in cells.split('`').skip(1).step_by(2) {
            seen += 1;
            offenders.extend(pieces(quote).filter(|piece| !code.contains(piece)).map(str::to_owned));
        }
    }
    assert!(seen > 20, "the page quotes {seen} messages: has its form changed?");
    assert_none("docs/troubleshooting.md quotes messages as the code has them", &offenders);
}

/// Documents for users, in English. ARCHITECTURE.md, the ADRs and the ledgers are for those who change the code.
fn prose() -> Vec<(String, String)> {
    let mut paths: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "vagrant/README.md", "docs/reference/commands.md"]
            .map(|path| root().join(path))
            .to_vec();
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".md") && !name.ends_with(".ko.md") {
            paths.push(path);
        }
    }
    let name = |path: &std::path::Path| path.strip_prefix(root()).unwrap().display().to_string();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// A line without the targets of its links; a span of code is one word.
fn plain(line: &str) -> String {
    let spoken: String =
        line.split('`').enumerate().map(|(at, part)| if at % 2 == 1 { "X" } else { part }).collect();
    let mut plain = String::new();
    let mut rest = spoken.as_str();
    while let Some((before, target)) = rest.split_once("](") {
        plain.push_str(before);
        rest = target.split_once(')').map_or("", |(_, after)| after);
    }
    plain + rest
}

/// The parts of a line that are read in one breath.
fn sentences(line: &str) -> Vec<String> {
    let plain = plain(line);
    let letters: Vec<char> = plain.chars().collect();
    let mut parts = vec![String::new()];
    for (at, letter) in letters.iter().enumerate() {
        let ends_here = letters.get(at + 1).is_none_or(|next| next.is_whitespace() || ")|".contains(*next));
        if *letter == '|' || ".!?;:".contains(*letter) && ends_here {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(*letter);
        }
    }
    parts
}

/// Dashes and marks of lists are no words.
fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
}

#[test]
fn sentences_are_short() {
    let mut offenders = Vec::new();
    for (name, text) in prose() {
        let mut code = false;
        for (index, line) in text.lines().enumerate() {
            let fence = line.trim_start().starts_with("```");
            code ^= fence;
            if code || fence {
                continue;
            }
            for sentence in sentences(line).iter().filter(|sentence| words(sentence) > LONGEST) {
                let (count, sentence) = (words(sentence), sentence.trim());
                offenders.push(format!("{name}:{}: {count} words: {sentence}", index + 1));
            }
        }
    }
    assert_none("sentences of at most 30 words: make two of it", &offenders);
}

#[test]
fn sentences_end_where_readers_pause() {
    let line = "- A pod (see [its life](docs/a.b.md)) runs 1.36; it stops. Why? | `a b c: d` and so";
    let counts: Vec<usize> = sentences(line).iter().map(|part| words(part)).collect();
    assert_eq!(counts, [7, 2, 1, 0, 3]);
    let long = vec!["word"; LONGEST + 1].join(" ");
    assert!(sentences(&long).iter().any(|part| words(part) > LONGEST));
}
