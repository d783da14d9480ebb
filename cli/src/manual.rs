//! `gantry manual FOLDER`: a page of section 8 for each command, made from the commands that parse the command
//! line, and one for the kubelet from its table of flags. Owns which pages there are; the package says where
//! they go. Called by main, for `cargo xtask dist`.

#![expect(clippy::disallowed_methods, reason = "pages for whoever asks for them, no state")]

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use gantry_agent::config::flag::{self, Flag};

use crate::args::settings;

/// System administration: what they do takes root.
const SECTION: &str = "8";

/// Writes the pages into a folder that is there.
///
/// # Errors
/// Names the page that could not be written.
pub(crate) fn manual(folder: &Path) -> Result<()> {
    for (name, page) in pages()? {
        let path = folder.join(name);
        std::fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// File names and what is in them.
fn pages() -> Result<Vec<(String, Vec<u8>)>> {
    let mut gantry = settings::command().disable_help_subcommand(true).after_help(
        "gantry kubelet, also by the name kubelet, takes the flags of upstream's: gantry-kubelet(8)",
    );
    gantry.build();
    let mut commands = vec![kubelet()];
    with_those_below(&gantry, &mut commands);
    commands.into_iter().map(page).collect()
}

/// A command, then those below it that help shows.
fn with_those_below(command: &Command, into: &mut Vec<Command>) {
    into.push(command.clone());
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        with_those_below(inner, into);
    }
}

fn page(command: Command) -> Result<(String, Vec<u8>)> {
    let source = concat!("gantry ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command).section(SECTION).source(source).manual("Gantry");
    let mut bytes = Vec::new();
    man.render(&mut bytes).with_context(|| man.get_filename())?;
    Ok((man.get_filename(), bytes))
}

/// The kubelet's command line, for its page only.
fn kubelet() -> Command {
    Command::new("kubelet")
        .display_name("gantry-kubelet")
        .about("Run the pods of a cluster that are bound to this node, or those of a folder")
        .override_usage("kubelet [FLAGS]")
        .disable_help_flag(true)
        .args(flag::all().iter().map(kubelet_flag))
}

fn kubelet_flag(flag: &Flag) -> Arg {
    let words = flag::words(flag.name);
    let mut help: Vec<String> = (!words.is_empty()).then(|| words.to_owned()).into_iter().collect();
    if !flag.field.is_empty() {
        help.push(format!("Sets {} of the file that --config names.", flag.field));
    }
    if !flag.deprecated.is_empty() {
        help.push(format!("Deprecated: {}", flag.deprecated));
    }
    let mut arg = Arg::new(flag.name).long(flag.name).short(flag.letter.chars().next()).help(help.join(" "));
    if flag.kind == "bool" {
        return arg.action(ArgAction::SetTrue);
    }
    if !matches!(flag.default, "" | "[]" | "0") {
        arg = arg.default_value(flag.default);
    }
    arg.value_name(flag.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory as _;

    #[test]
    fn each_command_has_a_page() {
        let pages = pages().unwrap();
        let page = |name: &str| {
            let of = pages.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("no {name}"));
            // roff writes a dash as one that is no hyphen.
            String::from_utf8(of.1.clone()).unwrap().replace("\\-", "-")
        };
        fn all(command: &Command, name: &str, names: &mut Vec<String>) {
            names.push(format!("{name}.8"));
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                all(inner, &format!("{name}-{}", inner.get_name()), names);
            }
        }
        let mut names = vec!["gantry-kubelet.8".to_owned()];
        all(&Cli::command(), "gantry", &mut names);
        assert_eq!(pages.len(), names.len(), "{:?}", pages.iter().map(|(name, _)| name).collect::<Vec<_>>());
        for name in names {
            let text = page(&name);
            assert!(text.contains(".SH NAME\n") && text.contains(".SH SYNOPSIS\n"), "{name}: {text}");
            assert!(text.contains("\"gantry "), "{name} says no version: {text}");
        }
        assert!(page("gantry.8").contains("gantry-run(8)"), "{}", page("gantry.8"));
        assert!(page("gantry-image-load.8").contains("gantry image load"), "{}", page("gantry-image-load.8"));
        assert!(page("gantry-runtime.8").contains("--cgroup-root"));
        assert!(!page("gantry-runtime.8").contains("--boot-id-file"), "a hidden flag");
    }

    #[test]
    fn the_kubelets_page_has_each_of_its_flags() {
        let (_, page) = page(kubelet()).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        for flag in flag::all() {
            assert!(page.contains(&format!("--{}", flag.name)), "{}", flag.name);
        }
        assert!(page.contains("clusterDNS of the file"), "{page}");
    }
}
