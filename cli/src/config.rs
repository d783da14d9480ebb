//! `--config FILE.toml`: flags from a file. Owns the mapping: each key is a flag's name in snake_case; the command line
//! and variables win. So a new flag is a key without further doing ([`crate::args::settings`]). Called by main.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use crate::args::{Cli, settings};

/// The variable that names the file; empty for none.
pub(crate) const FILE: &str = "GANTRY_CONFIG";
/// Read when nobody names one, if it is there.
const USUAL: &str = "/etc/gantry/config.toml";
/// Subcommands that take something away.
const ENDS: [&str; 6] = ["stop", "rm", "delete", "rmi", "down", "leave"];

/// Parses the command line, and the file that it, or `GANTRY_CONFIG`, names; else the one at the usual place.
///
/// # Errors
/// The file and the key that is wrong. A wrong command line ends the process, as clap has it.
pub(crate) fn parse(line: &[OsString]) -> Result<Cli> {
    parse_with_file(line, std::env::var_os(FILE), Path::new(USUAL))
}

fn parse_with_file(line: &[OsString], variable: Option<OsString>, usual: &Path) -> Result<Cli> {
    let read = |line: &[OsString]| {
        let matches = settings::command().try_get_matches_from(line)?;
        Cli::from_arg_matches(&matches).map(|cli| (cli, matches))
    };
    let (cli, matches) =
        read(line).unwrap_or_else(|error| with_good_tips(without_bad_tips(error), line).exit());
    let named = cli.config.clone().or_else(|| variable.map(PathBuf::from));
    let file = match named.as_deref() {
        // No file at all, as in the environment of a daemon whose flags say everything.
        Some(none) if none.as_os_str().is_empty() => return Ok(cli),
        Some(named) => named,
        None => usual,
    };
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => return Ok(cli),
        text => text.with_context(|| format!("read {}", file.display()))?,
    };
    let from_file = flags(&text, file, &matches)?;
    // Behind `--` stand another program's words.
    let at = line.iter().position(|word| word == "--").unwrap_or(line.len());
    let (before, after) = line.split_at(at);
    let own = before.iter().cloned();
    let whole: Vec<OsString> =
        own.chain(from_file.into_iter().map(Into::into)).chain(after.iter().cloned()).collect();
    read(&whole).map(|(cli, _)| cli).map_err(|error| {
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

/// Who runs a command in a container may have left out what parts its words from ours; who knows another program may
/// look for that one's command.
fn with_good_tips(mut error: clap::Error, line: &[OsString]) -> clap::Error {
    let has = |word: &str| line.iter().any(|other| other == word);
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(tip) = of_another_program(name)
    {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    if error.kind() == clap::error::ErrorKind::UnknownArgument && has("exec") && !has("--") {
        let tip = "put `--` before the command, as in `gantry exec web -- ls`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// What to use in place of a command of docker, podman or kubectl that Gantry does not have.
fn of_another_program(name: &str) -> Option<&'static str> {
    Some(match name {
        "build" => "Gantry builds no images: build with docker or buildah, then `gantry image load -i FILE`",
        "load" | "import" => "`gantry image load -i FILE` loads images from an archive",
        "commit" | "export" | "push" | "save" | "tag" => {
            "Gantry runs images and makes none: use docker, podman or skopeo"
        }
        "create" | "kube" | "play" | "start" | "up" => "`gantry run FILE` starts the pods of a manifest",
        "get" => "`gantry ps` lists pods, `gantry images` images, `gantry events` events",
        "kill" => "`gantry stop POD --grace 0` kills a pod's containers at once",
        "restart" => "`gantry apply -f FILE` replaces a pod whose manifest has changed",
        _ => return None,
    })
}

/// The file's keys as flags of the command that is called, without those that the command line or a variable has said;
/// lists of both are one.
fn flags(text: &str, file: &Path, matches: &ArgMatches) -> Result<Vec<String>> {
    let table: toml::Table = toml::from_str(text).with_context(|| file.display().to_string())?;
    let cli = settings::command();
    let known = settings::all(&cli);
    let (called, said) = called(&cli, matches);
    let mut flags = Vec::new();
    for (key, value) in table {
        let Some((long, arg)) = known.iter().find(|(name, _)| settings::key(name) == key) else {
            let shown = known.iter().filter(|(_, arg)| !arg.is_hide_set());
            let names: Vec<String> = shown.map(|(name, _)| settings::key(name)).collect();
            bail!(
                "{}: unknown key {key:?}{}",
                file.display(),
                nearest(&key, names.iter().map(String::as_str))
            );
        };
        let own = called.get_arguments().find(|own| own.get_long() == Some(long.as_str()));
        let Some(own) = own.filter(|_| settings::is_taken(called.get_name(), long)) else { continue };
        match (said.value_source(own.get_id().as_str()), own.get_action()) {
            (Some(ValueSource::CommandLine), ArgAction::Append) => {}
            (Some(ValueSource::CommandLine | ValueSource::EnvVariable), _) => continue,
            _ => {}
        }
        flags.extend(flags_of(&key, value, arg, file)?);
    }
    Ok(flags)
}

/// The command that does it, and what was said to it.
fn called<'a>(cli: &'a Command, matches: &'a ArgMatches) -> (&'a Command, &'a ArgMatches) {
    let (mut command, mut said) = (cli, matches);
    while let Some((name, inner)) = said.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, said) = (found, inner);
    }
    (command, said)
}

fn flags_of(key: &str, value: toml::Value, arg: &Arg, file: &Path) -> Result<Vec<String>> {
    let long = arg.get_long().unwrap_or_default();
    Ok(match (arg.get_action(), value) {
        (ArgAction::SetTrue, toml::Value::Boolean(true)) => vec![format!("--{long}")],
        (ArgAction::SetTrue, toml::Value::Boolean(false)) => Vec::new(),
        (ArgAction::SetTrue, _) => bail!("{}: {key}: expected true or false", file.display()),
        (ArgAction::Append, toml::Value::Table(entries)) => entries
            .into_iter()
            .map(|(name, entry)| Ok(format!("--{long}={}", entry_of(&name, entry, key, file)?)))
            .collect::<Result<_>>()?,
        (ArgAction::Append, toml::Value::Array(values)) => values
            .into_iter()
            .map(|value| Ok(format!("--{long}={}", plain(value, key, file)?)))
            .collect::<Result<_>>()?,
        (_, value) => vec![format!("--{long}={}", plain(value, key, file)?)],
    })
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
    use clap::Parser;

    use super::*;
    use crate::args::Command;

    const RUNTIME: &str = "runtime";

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
        let parsed = parse_with_file(&line, None, Path::new("/nonexistent"));
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
        let line: Vec<OsString> = ["gantry", "exec", "web", "ls"].map(Into::into).to_vec();
        let error = without_bad_tips(Cli::try_parse_from(&line).unwrap_err());
        let text = with_good_tips(error, &line).render().to_string();
        assert!(text.contains("put `--` before the command"), "{text}");
        let text = said(&["ps", "--namespac", "x"]);
        assert!(text.contains("'--namespace'"), "{text}");
    }

    #[test]
    fn a_command_of_another_program_leads_to_ours() {
        let said = |word: &str| {
            let line: Vec<OsString> = ["gantry", word].map(Into::into).to_vec();
            let error = without_bad_tips(Cli::try_parse_from(&line).unwrap_err());
            with_good_tips(error, &line).render().to_string()
        };
        let known = settings::command();
        for (word, tip) in [("build", "gantry image load"), ("get", "gantry ps"), ("up", "gantry run FILE")] {
            let text = said(word);
            assert!(text.contains("unrecognized subcommand") && text.contains(tip), "{text}");
            assert!(known.find_subcommand(word).is_none(), "{word} is a command of ours");
        }
        assert!(!said("quux").contains("tip:"), "{}", said("quux"));
    }

    #[test]
    fn keys_are_flags_and_flags_win() {
        let text = "root = \"/a\"\nstate = \"/b\"\nunset_seccomp_profile = \"runtime/default\"\n";
        let Command::Runtime(args) = with(text, &["--state=/c"]).unwrap().command else {
            panic!("not a runtime");
        };
        assert_eq!(args.flags.root, Path::new("/a"));
        assert_eq!(args.flags.state, Path::new("/c"));
        assert_eq!(args.flags.security.unset_seccomp_profile, "runtime/default");
        let Command::Runtime(args) =
            with("pinned_images = [\"a:1\", \"b\"] # a list", &["--pinned-images=c,d"]).unwrap().command
        else {
            panic!("not a runtime");
        };
        assert_eq!(args.flags.pinned_images, ["c", "d", "a:1", "b"]);
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

    /// With such a file at the usual place.
    fn usual(text: &str, words: &[&str]) -> Result<Cli> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text)?;
        let line: Vec<OsString> = ["gantry"].iter().chain(words).map(Into::into).collect();
        let parsed_of = |variable: Option<OsString>| parse_with_file(&line, variable, &file);
        let plain = parsed_of(Some(OsString::new()))?;
        assert!(plain.config.is_none());
        parsed_of(None)
    }

    #[test]
    fn every_command_takes_what_it_knows_from_the_usual_file() {
        let text = "agent_socket = \"/a.sock\"\nroot = \"/r\"\ncontainer_runtime_endpoint = \"unix:///c\"\n";
        let Command::Ps(args) = usual(text, &["ps"]).unwrap().command else { panic!("no ps") };
        assert_eq!(args.agent.agent_socket, Path::new("/a.sock"));
        let Command::Ps(args) = usual(text, &["ps", "--agent-socket", "/b"]).unwrap().command else {
            panic!("no ps");
        };
        assert_eq!(args.agent.agent_socket, Path::new("/b"));
        let Command::Run(args) = usual(text, &["run", "x.yaml", "-d"]).unwrap().command else {
            panic!("no run")
        };
        assert_eq!(
            (args.flags.root.as_path(), args.pods.agent_socket.as_path()),
            (Path::new("/r"), Path::new("/a.sock"))
        );
        assert_eq!(args.container_runtime_endpoint, None);
        let Command::Exec(args) = usual(text, &["exec", "web", "--", "ls", "--", "x"]).unwrap().command
        else {
            panic!("no exec");
        };
        assert_eq!(
            (args.command, args.target.pod.agent.agent_socket),
            (vec!["ls".into(), "--".into(), "x".into()], "/a.sock".into())
        );
        assert!(usual(text, &["version"]).is_ok());
        let error = usual("manifest_dir = \"/m\"", &["ps"]).unwrap_err().to_string();
        assert!(error.contains("unknown key \"manifest_dir\""), "{error}");
    }
}
