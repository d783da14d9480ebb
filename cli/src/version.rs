//! `gantry version`: what this program is, and what it speaks. Owns the three lines; asks nobody. Called by main.

use anyhow::Result;
use gantry_model::version;

use crate::output;

/// The CRI that the runtime serves and the agent speaks.
const CRI: &str = "v1";

pub(crate) fn version() -> Result<()> {
    Ok(output::print(text().as_bytes())?)
}

fn text() -> String {
    format!("gantry {}\nkubelet {}\nCRI {CRI}\n", env!("CARGO_PKG_VERSION"), version::KUBELET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_versions_a_line_each() {
        let text = text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("gantry ") && lines[1].starts_with("kubelet v1."), "{text}");
    }
}
