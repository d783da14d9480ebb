//! The flags that say where things are and how they are set up, not what to do now: each has a variable and a key of the
//! configuration file. Owns which flags those are, and their names. Called by [`crate::config`] and for help.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Cli;

/// Their flags are settings, and the same flags of other commands.
const OWNERS: [&str; 2] = ["runtime", "agent"];
/// But these, which say what to do now.
const DEEDS: [&str; 5] = ["config", "daemon", "help", "manifest-dir", "standalone"];

/// The command line, with the variables.
pub(crate) fn command() -> Command {
    let cli = Cli::command();
    let names: Vec<String> = all(&cli).into_iter().map(|(name, _)| name).collect();
    with_variables(cli, &names)
}

/// Each setting: its flag, and the command that it was found at.
pub(crate) fn all(cli: &Command) -> Vec<(String, &Arg)> {
    let mut found: Vec<(String, &Arg)> = Vec::new();
    for command in OWNERS.iter().filter_map(|name| cli.find_subcommand(name)) {
        for arg in command.get_arguments().filter(|arg| !arg.is_global_set()) {
            let Some(name) = arg.get_long().filter(|name| !DEEDS.contains(name)) else { continue };
            if !found.iter().any(|(known, _)| known == name) {
                found.push((name.to_owned(), arg));
            }
        }
    }
    found
}

/// Whether a command takes the setting from elsewhere than its command line. The runtime of `gantry run` is its own
/// unless it is told otherwise there and then.
pub(crate) fn is_taken(command: &str, name: &str) -> bool {
    command != "run" || name != "container-runtime-endpoint"
}

/// `GANTRY_AGENT_SOCKET` of `agent-socket`.
pub(crate) fn variable(name: &str) -> String {
    format!("GANTRY_{}", key(name).to_uppercase())
}

/// `agent_socket` of `agent-socket`.
pub(crate) fn key(name: &str) -> String {
    name.replace('-', "_")
}

fn with_variables(command: Command, names: &[String]) -> Command {
    let own = command.get_name().to_owned();
    let variable_of = |arg: &Arg| {
        let name = arg.get_long()?;
        (names.iter().any(|known| known == name) && is_taken(&own, name)).then(|| variable(name))
    };
    command
        .mut_args(|arg| match variable_of(&arg) {
            Some(name) if matches!(arg.get_action(), ArgAction::SetTrue) => {
                arg.env(name).hide_env_values(true).value_parser(BoolishValueParser::new())
            }
            Some(name) => arg.env(name).hide_env_values(true),
            None => arg,
        })
        .mut_subcommands(|inner| with_variables(inner, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_variables_wherever_they_are_flags() {
        let command = command();
        let of = |path: &[&str], name: &str| {
            let mut at = &command;
            for word in path {
                at = at.find_subcommand(word).unwrap();
            }
            let arg = at.get_arguments().find(|arg| arg.get_long() == Some(name)).unwrap();
            arg.get_env().map(|name| name.to_string_lossy().into_owned())
        };
        let socket = Some("GANTRY_AGENT_SOCKET".to_owned());
        assert_eq!(of(&["ps"], "agent-socket"), socket);
        assert_eq!(of(&["image", "load"], "agent-socket"), socket);
        assert_eq!(of(&["run"], "systemd-cgroup"), Some("GANTRY_SYSTEMD_CGROUP".to_owned()));
        assert_eq!(
            of(&["images"], "container-runtime-endpoint"),
            Some("GANTRY_CONTAINER_RUNTIME_ENDPOINT".to_owned())
        );
        assert_eq!(of(&["run"], "container-runtime-endpoint"), None);
        assert_eq!(of(&["run"], "manifest-dir"), None);
        assert_eq!(of(&["stop"], "all"), None);
        command.debug_assert();
    }
}
