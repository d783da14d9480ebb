//! `--config FILE.toml`: the flags of `gantry runtime` from a file. Owns the mapping: each key is a flag's
//! name in snake_case and stands before the flags of the command line, which win. So a new flag is a key
//! without further doing. Called by main.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, CommandFactory, Parser};

use crate::args::{Cli, Command};

/// The subcommand that has such a file.
const RUNTIME: &str = "runtime";
/// Subcommands that take something away.
const ENDS: [&str; 6] = ["stop", "rm", "delete", "rmi", "down", "leave"];

/// Parses the command line, and the file that it names.
///
/// # Errors
/// The file and the key that is wrong. A wrong command line ends the process, as clap has it.
pub(crate) fn parse(line: &[OsString]) -> Result<Cli> {
    let cli = Cli::try_parse_from(line).unwrap_or_else(|error| without_bad_tips(error).exit());
    let Command::Runtime(args) = &cli.command else { return Ok(cli) };
    let Some(file) = &args.config else { return Ok(cli) };
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let from_file = flags(&text, file)?;
    let at = line.iter().position(|word| word == RUNTIME).context("no subcommand")?;
    let (before, after) = line.split_at(at + 1);
    let whole: Vec<OsString> = before
        .iter()
        .cloned()
        .chain(from_file.into_iter().map(Into::into))
        .chain(after.iter().cloned())
        .collect();
    Cli::try_parse_from(whole).map_err(|error| {
        // The command line alone was fine: it is the file.
        anyhow!(
            "{}: {}",
            file.display(),
            error.render().to_string().lines().next().unwrap_or_default().trim_start_matches("error: ")
        )
    })
}

/// What is near to a typing error must not end anything when it is tried, and a flag that is not there
/// is no value that only wants to be marked as one.
fn without_bad_tips(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(near)) = error.remove(ContextKind::SuggestedSubcommand) {
        let harmless: Vec<String> = near.into_iter().filter(|name| !ENDS.contains(&name.as_str())).collect();
        if !harmless.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(harmless));
        }
    }
    if error.kind() == clap::error::ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    error
}

/// The file's keys as flags.
fn flags(text: &str, file: &Path) -> Result<Vec<String>> {
    let table: toml::Table = toml::from_str(text).with_context(|| file.display().to_string())?;
    let command = Cli::command();
    let command = command.find_subcommand(RUNTIME).context("no subcommand")?;
    // Global flags and the file itself are the command line's.
    let known: Vec<(String, &clap::Arg)> = command
        .get_arguments()
        .filter(|arg| !arg.is_global_set() && !matches!(arg.get_id().as_str(), "config" | "help" | "version"))
        .filter_map(|arg| Some((arg.get_long()?.replace('-', "_"), arg)))
        .collect();
    let mut flags = Vec::new();
    for (key, value) in table {
        let Some((_, arg)) = known.iter().find(|(name, _)| *name == key) else {
            let names = known.iter().filter(|(_, arg)| !arg.is_hide_set()).map(|(name, _)| name.as_str());
            bail!("{}: unknown key {key:?}{}", file.display(), nearest(&key, names));
        };
        let long = arg.get_long().unwrap_or_default();
        match (arg.get_action(), value) {
            (ArgAction::SetTrue, toml::Value::Boolean(true)) => flags.push(format!("--{long}")),
            (ArgAction::SetTrue, toml::Value::Boolean(false)) => {}
            (ArgAction::SetTrue, _) => bail!("{}: {key}: expected true or false", file.display()),
            (ArgAction::Append, toml::Value::Table(entries)) => {
                for (name, entry) in entries {
                    flags.push(format!("--{long}={}", entry_of(&name, entry, &key, file)?));
                }
            }
            (ArgAction::Append, toml::Value::Array(values)) => {
                for value in values {
                    flags.push(format!("--{long}={}", plain(value, &key, file)?));
                }
            }
            (_, value) => flags.push(format!("--{long}={}", plain(value, &key, file)?)),
        }
    }
    Ok(flags)
}

/// A table's entry as its flag has it: `[handlers.NAME]` with keys is `NAME:key=value,…`.
fn entry_of(name: &str, entry: toml::Value, key: &str, file: &Path) -> Result<String> {
    let toml::Value::Table(entry) = entry else {
        bail!("{}: {key}.{name}: expected a table, as in [{key}.{name}]", file.display());
    };
    let of = |(inner, value): (String, toml::Value)| {
        let value = plain(value, &format!("{key}.{name}.{inner}"), file)?;
        if value.contains(',') {
            bail!("{}: {key}.{name}.{inner}: a comma can't stand here", file.display());
        }
        Ok(format!("{inner}={value}"))
    };
    Ok(format!("{name}:{}", entry.into_iter().map(of).collect::<Result<Vec<_>>>()?.join(",")))
}

fn plain(value: toml::Value, key: &str, file: &Path) -> Result<String> {
    match value {
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(number) => Ok(number.to_string()),
        toml::Value::Boolean(flag) => Ok(flag.to_string()),
        _ => bail!("{}: {key}: expected a string or a number", file.display()),
    }
}

/// ` (did you mean "…"?)`, when a name is near.
fn nearest<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> String {
    let near = names.map(|name| (distance(key, name), name)).min();
    match near {
        Some((distance, name)) if distance <= name.len() / 3 => format!(" (did you mean {name:?}?)"),
        _ => String::new(),
    }
}

/// Levenshtein's.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (above, to) in row.iter().skip(1).zip(b.bytes()) {
            left = (diagonal + usize::from(from != to)).min(above + 1).min(left + 1);
            diagonal = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, flags: &[&str]) -> Result<Cli> {
        // Tests run side by side: each has a folder of its own.
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("gantry-config-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let file = folder.join(format!("{}.toml", text.len()));
        std::fs::write(&file, text)?;
        let mut line: Vec<OsString> =
            vec!["gantry".into(), "-v".into(), RUNTIME.into(), "--config".into(), file.into()];
        line.extend(flags.iter().map(Into::into));
        let parsed = parse(&line);
        std::fs::remove_dir_all(&folder)?;
        parsed
    }

    #[test]
    fn no_tip_ends_a_pod_or_misleads() {
        let said = |words: &[&str]| {
            let line = ["gantry"].iter().chain(words);
            without_bad_tips(Cli::try_parse_from(line).unwrap_err()).render().to_string()
        };
        for (wrong, tip) in [("stp", "stop"), ("don", "down"), ("delet", "delete")] {
            let text = said(&[wrong]);
            assert!(
                !text.contains(&format!("'{tip}'")) && text.contains("unrecognized subcommand"),
                "{text}"
            );
        }
        assert!(said(&["explan"]).contains("'explain'"), "{}", said(&["explan"]));
        let text = said(&["ps", "-z", "x"]);
        assert!(text.contains("unexpected argument '-z'") && !text.contains("as a value"), "{text}");
        let text = said(&["ps", "--namespac", "x"]);
        assert!(text.contains("'--namespace'"), "{text}");
    }

    #[test]
    fn keys_are_flags_and_flags_win() {
        let text = "root = \"/a\"\nstate = \"/b\"\nunset_seccomp_profile = \"runtime/default\"\n";
        let Command::Runtime(args) = with(text, &["--state=/c"]).unwrap().command else {
            panic!("not a runtime");
        };
        assert_eq!(args.flags.root, Path::new("/a"));
        assert_eq!(args.flags.state, Path::new("/c"));
        assert_eq!(args.flags.unset_seccomp_profile, "runtime/default");
        let Command::Runtime(args) =
            with("pinned_images = [\"a:1\", \"b\"] # a list", &["--pinned-images=c,d"]).unwrap().command
        else {
            panic!("not a runtime");
        };
        assert_eq!(args.flags.pinned_images, ["a:1", "b", "c", "d"]);
        let text =
            "[handlers.runc]\ntype = \"oci\"\npath = \"/usr/sbin/runc\"\n[handlers.own]\ntype = \"gantry\"\n";
        let Command::Runtime(args) = with(text, &["--handlers=x:type=gantry"]).unwrap().command else {
            panic!("not a runtime");
        };
        let mut handlers = args.flags.handlers.clone();
        handlers.sort();
        assert_eq!(handlers.len(), 3, "{handlers:?}");
        assert_eq!((handlers[0].as_str(), handlers[2].as_str()), ("own:type=gantry", "x:type=gantry"));
        assert!(
            handlers[1].contains("path=/usr/sbin/runc") && handlers[1].contains("type=oci"),
            "{handlers:?}"
        );
    }

    #[test]
    fn a_wrong_file_is_refused_with_file_key_and_the_nearest_name() {
        for (text, words) in [
            ("rott = \"/a\"", vec![".toml: unknown key \"rott\" (did you mean \"root\"?)"]),
            ("something_else = 1\n", vec!["unknown key \"something_else\""]),
            ("config = \"/x\" # no", vec!["unknown key \"config\""]),
            ("[root]\na = 1     # no", vec!["root: expected a string"]),
            ("pinned_images = [[1]] # no", vec!["pinned_images: expected a string"]),
            ("[handlers]\na = 1    # no", vec!["handlers.a: expected a table"]),
            ("[handlers.a]\ntype=\"oci\"", vec!["handler \"a\": path is missing"]),
            ("[handlers.a]\ntype=\"oci\"\npath=\"/a,b\"", vec!["handlers.a.path: a comma"]),
            ("socket = \"tcp://x\"  # no", vec!["unix:///"]),
            ("root = ", vec![".toml"]),
        ] {
            let error = format!("{:#}", with(text, &[]).unwrap_err());
            for word in words {
                assert!(error.contains(word), "{error}");
            }
        }
    }
}
