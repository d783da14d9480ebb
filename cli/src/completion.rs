//! `gantry completion SHELL`: what a shell reads to complete our command line. Made from the same commands
//! that parse it; owns that hidden ones stay hidden. Called by main.

use clap::{Command, CommandFactory as _};

use crate::args::{Cli, CompletionArgs};
use crate::output;

pub(crate) fn completion(args: &CompletionArgs) -> std::io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut without_hidden(&Cli::command()), "gantry", &mut script);
    output::print(&script)
}

/// The same without what help does not show either: clap_complete would offer it.
pub(crate) fn without_hidden(command: &Command) -> Command {
    let mut copy = Command::new(command.get_name().to_owned())
        .visible_aliases(command.get_visible_aliases().map(str::to_owned).collect::<Vec<_>>())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(without_hidden));
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_owned());
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;
    use clap_complete::Shell;

    #[test]
    fn shells_are_told_every_command_and_nothing_hidden() {
        let cli = Cli::command();
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut without_hidden(&cli), "gantry", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            assert!(script.contains("cgroup-root") && script.contains("agent-socket"), "{shell}");
            for hidden in ["boot-id-file", "pull-without", "standalone", "manual"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
        }
    }
}
