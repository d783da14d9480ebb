//! The pages of docs/reference, made from the flags and from the kubelet's types. Owns their form; a test holds the files
//! to them, and writes them with `GANTRY_UPDATE_DOCS=1 cargo test -p gantry reference`. Never part of the program.

use std::path::Path;

use clap::{Arg, Command};
use gantry_agent::config::{self, Host, Order};
use serde_json::Value;

use crate::args::settings;

#[test]
fn the_pages_of_the_reference_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
    let update = std::env::var_os("GANTRY_UPDATE_DOCS").is_some();
    let mut stale = Vec::new();
    for (name, page) in
        [("commands.md", commands()), ("settings.md", all_settings()), ("kubelet.md", kubelet())]
    {
        let path = folder.join(name);
        if update {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &page).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != page {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "docs/reference: {stale:?} are not what the code says: GANTRY_UPDATE_DOCS=1 cargo test -p gantry reference"
    );
}

/// Text in a table's cell.
fn cell(text: &str) -> String {
    let text = text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ");
    text.trim().to_owned()
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}

fn commands() -> String {
    let mut cli = settings::command().disable_help_subcommand(true).term_width(100);
    cli.build();
    let mut text = String::from(
        "# Commands\n\n\
         This page is made from the program's own flags; `gantry COMMAND --help` prints the same. A flag with a variable \
         can be set by it, or by a key of the configuration file ([settings](settings.md)). The kubelet's flags are \
         [a page of their own](kubelet.md).\n",
    );
    one(&cli, &mut text);
    text
}

fn one(command: &Command, into: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let usage = command.clone().render_usage().to_string();
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string);
    into.push_str(&format!("\n## {name}\n\n{}\n\n", about.unwrap_or_default().trim()));
    into.push_str(&format!("```\n{}\n```\n", usage.trim_start_matches("Usage:").trim()));
    let aliases: Vec<String> =
        command.get_visible_aliases().map(|alias| format!("`gantry {alias}`")).collect();
    if !aliases.is_empty() {
        into.push_str(&format!("\nOther names: {}.\n", aliases.join(", ")));
    }
    let shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let own = |arg: &&Arg| !arg.is_global_set() || !name.contains(' ');
    let args: Vec<&Arg> = command.get_arguments().filter(shown).filter(own).collect();
    if !args.is_empty() {
        into.push_str("\n| flag | default | what |\n|---|---|---|\n");
    }
    for arg in args {
        let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string);
        into.push_str(&format!(
            "| {} | {} | {} |\n",
            flag(arg),
            code(&default(arg)),
            cell(&help.unwrap_or_default())
        ));
    }
    if let Some(examples) = command.get_after_help() {
        let examples = examples.to_string();
        let lines: Vec<&str> = examples.lines().skip(1).map(str::trim_start).collect();
        into.push_str(&format!("\n```\n{}\n```\n", lines.join("\n")));
    }
    command.get_subcommands().filter(|inner| !inner.is_hide_set()).for_each(|inner| one(inner, into));
}

/// `-n`, `--namespace NAMESPACE`; the name of what has no dashes.
fn flag(arg: &Arg) -> String {
    let takes = arg.get_action().takes_values();
    let names: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let value = if takes { format!(" {}", names.join(" ")) } else { String::new() };
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("`-{short}`, {}", code(&format!("--{long}{value}"))),
        (None, Some(long)) => code(&format!("--{long}{value}")),
        (Some(short), None) => code(&format!("-{short}{value}")),
        (None, None) => code(value.trim()),
    }
}

fn default(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
    values.collect::<Vec<_>>().join(",")
}

fn all_settings() -> String {
    let cli = settings::command();
    let mut text = String::from(
        "# Settings\n\n\
         A setting is a flag, a variable and a key of `/etc/gantry/config.toml`. The flag wins over the variable, and the \
         variable over the file. `--config FILE.toml`, or `GANTRY_CONFIG`, names another file; an empty `GANTRY_CONFIG` \
         reads none. Each command takes the keys that it has a flag for. [Configuration](../configuration.md) has \
         examples.\n\n\
         `gantry run` has a runtime of its own: only its flag names another one. This page is made from the program's \
         own flags.\n\n\
         | key | variable | default | what |\n|---|---|---|---|\n",
    );
    let mut all = settings::all(&cli);
    all.retain(|(_, arg)| !arg.is_hide_set());
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (name, arg) in all {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            code(&settings::key(&name)),
            code(&settings::variable(&name)),
            code(&default(arg)),
            cell(&help),
        ));
    }
    text
}

fn kubelet() -> String {
    let mut text = String::from(
        "# The kubelet's flags and configuration\n\n\
         The flags and fields are those of upstream's kubelet 1.36. Which of them are honoured, refused or have no effect: \
         [flags](../ledger/kubelet-flags.md), [fields](../ledger/kubelet-config.md). This page is made from the \
         kubelet's table of flags and its types.\n\n\
         ## KubeletConfiguration\n\n\
         What `/configz` shows for a file that says nothing, on a host with cgroup v2. Fields without a default are left \
         out.\n\n\
         | field | default |\n|---|---|\n",
    );
    let Ok(Order::Run(loaded)) = config::load(&[], Host { unified: true }, |_| {}) else {
        panic!("no configuration")
    };
    let mut rows = Vec::new();
    fields(&config::configz(&loaded.config)["kubeletconfig"], "", &mut rows);
    for (field, value) in rows {
        text.push_str(&format!("| {} | {} |\n", code(&field), code(&value)));
    }
    text.push_str("\n## Flags\n\n| flag | default | sets, or what it does |\n|---|---|---|\n");
    for flag in config::flag::all() {
        let name = match flag.letter.chars().next() {
            Some(letter) => format!("`-{letter}`, `--{}`", flag.name),
            None => format!("`--{}`", flag.name),
        };
        let words = config::flag::words(flag.name);
        let what = match (flag.field, words) {
            ("", "") => cell(flag.kind),
            ("", words) => cell(words),
            (field, _) => code(field),
        };
        text.push_str(&format!("| {name} | {} | {what} |\n", code(flag.default)));
    }
    text
}

/// Each value with its way.
fn fields(value: &Value, at: &str, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, inner) in map {
                let way = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                fields(inner, &way, rows);
            }
        }
        value => rows.push((at.to_owned(), value.to_string())),
    }
}
