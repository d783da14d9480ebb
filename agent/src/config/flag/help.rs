//! `kubelet --help`. Pure: owns the text; never printed here. Called by [`super`].

use std::fmt::Write as _;

use super::{table, words};

/// Every flag in a line or two: its name, the type of its value, its default, and what it sets.
#[must_use]
pub fn usage() -> String {
    let mut text = String::from(
        "The kubelet runs on each node of a cluster: it registers the node, watches for the pods that are bound \
         to it,\nruns them through a container runtime (CRI), and reports how they are. Without --kubeconfig it \
         runs the pods\nof a folder alone.\n\nUsage:\n  kubelet [flags]\n\nFlags:\n",
    );
    for flag in table::all() {
        let letter = if flag.letter.is_empty() { "    ".to_owned() } else { format!("-{}, ", flag.letter) };
        let kind = if flag.kind == "bool" { String::new() } else { format!(" {}", flag.kind) };
        // Writing to a String cannot fail.
        let _ = write!(text, "  {letter}--{}{kind}", flag.name);
        if !matches!(flag.default, "" | "[]" | "false" | "0") {
            let _ = write!(text, " (default {})", flag.default);
        }
        text.push('\n');
        if !words(flag.name).is_empty() {
            let _ = writeln!(text, "          {}", words(flag.name));
        }
        if !flag.field.is_empty() {
            let _ = writeln!(text, "          field {} of the file that --config names", flag.field);
        }
        if !flag.deprecated.is_empty() {
            let _ = writeln!(text, "          DEPRECATED: {}", flag.deprecated);
        }
    }
    text
}
