//! Command lines that README, docs and the help show: each one parses. Owns how they are found in Markdown; nothing is
//! run. A test alone; what the commands print is compared by the tier standalone.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;

use crate::args::settings;

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = folder.filter(|path| path.extension().is_some_and(|end| end == "md"));
    ["README.md", "README.ko.md", "examples/web.yaml"]
        .map(|name| root.join(name))
        .into_iter()
        .chain(pages)
        .collect()
}

/// The words of the first command, as a shell has them; none where a part is left to the reader.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => quote = Some(c),
            ('|' | '>' | '<' | ';' | '&', None) => break,
            (' ', None) => words.push(String::new()),
            (c, _) => words.last_mut()?.push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    (!line.contains(['…', '[', '(']) && quote.is_none()).then_some(words)
}

/// That documents name to say that they are not there.
const ABSENT: [&str; 1] = ["gantry image save"];

/// `HOST:PORT`, `sha256:HASH`: what the reader puts something in place of.
fn is_placeholder(word: &str) -> bool {
    let tail = word.rsplit(':').next().unwrap_or_default();
    tail.len() > 3 && tail.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// What is wrong with it. `whole`: it can be typed as it is; else it may name a command or a flag alone.
fn problem(line: &str, whole: bool) -> Option<String> {
    let words = words(line)?;
    if words.get(1).is_some_and(|word| word == "kubelet") || ABSENT.contains(&line) {
        return None;
    }
    let error = settings::command().try_get_matches_from(&words).err()?;
    let fits = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::ValueValidation if words.iter().any(|word| is_placeholder(word)) => true,
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict => false,
        _ => !whole,
    };
    (!fits).then(|| format!("{line}: {}", error.to_string().lines().next().unwrap_or_default()))
}

/// `gantry …` within a line: what follows another command's pipe, too.
fn commands(line: &str) -> impl Iterator<Item = &str> {
    let plain = line.split(" #").next().unwrap_or_default();
    plain.split(['|', ';']).filter_map(|part| {
        let part = part.trim().trim_start_matches("sudo ").trim_start_matches("./target/debug/");
        part.starts_with("gantry ").then_some(part)
    })
}

#[test]
fn command_lines_of_the_documents_parse() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for path in pages() {
        let text = fs::read_to_string(&path).unwrap();
        let mut is_code = false;
        for line in text.lines() {
            if line.starts_with("```") {
                is_code = !is_code;
                continue;
            }
            let shown: Vec<&str> = match is_code {
                true => commands(line).collect(),
                false => line.split('`').skip(1).step_by(2).flat_map(commands).collect(),
            };
            seen += shown.len();
            let wrong = shown.iter().filter_map(|shown| problem(shown, is_code));
            problems.extend(wrong.map(|problem| format!("{}: {problem}", path.display())));
        }
    }
    assert!(seen > 100, "{seen} command lines: has the form of the pages changed?");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn examples_of_the_help_parse() {
    fn of(command: &Command, problems: &mut Vec<String>, seen: &mut usize) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().map(str::trim) {
            // Words about it stand behind two spaces.
            for shown in commands(line.split("  ").next().unwrap_or_default()) {
                *seen += 1;
                problems.extend(problem(shown, true));
            }
        }
        command.get_subcommands().for_each(|inner| of(inner, problems, seen));
    }
    let (mut problems, mut seen) = (Vec::new(), 0);
    of(&settings::command(), &mut problems, &mut seen);
    assert!(seen > 30, "{seen} examples");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_wrong_flag_is_found() {
    assert_eq!(problem("gantry logs web -f", true), None);
    assert_eq!(problem("gantry exec web -- ls -l", true), None);
    assert_eq!(problem("gantry explain", false), None);
    assert!(problem("gantry explain", true).is_some());
    assert!(problem("gantry logs web --folow", false).is_some());
    assert!(problem("gantry lgos web", false).is_some());
    assert!(problem("gantry stop web --grace soon", true).is_some());
    assert_eq!(problem("gantry join HOST:PORT --token TOKEN", true), None);
    assert_eq!(problem("gantry wait --for=jsonpath='{.status.phase}'=Succeeded -l job-name=sum", true), None);
    assert_eq!(commands("docker save web | sudo gantry image load # all").next(), Some("gantry image load"));
}
