//! Which version of CDI a file may say it is of: a known one that has all the file uses. Pure. The rules are
//! those of CDI's own library.

use super::file::{Edits, SpecFile};

/// In their order.
const KNOWN: [&str; 10] =
    ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// Nothing needs less than this.
const EARLIEST: usize = 2;

pub(super) fn check(file: &SpecFile) -> Result<(), String> {
    let said = file.cdi_version.strip_prefix('v').unwrap_or(&file.cdi_version);
    let place = KNOWN.iter().position(|known| *known == said);
    let place = place.ok_or_else(|| format!("invalid version {:?}", file.cdi_version))?;
    let needed = required_version(file);
    let name = KNOWN.get(needed).copied().unwrap_or_default();
    if needed > place { Err(format!("the spec version must be at least v{name}")) } else { Ok(()) }
}

fn required_version(file: &SpecFile) -> usize {
    let edits = || file.devices.iter().map(|device| &device.container_edits).chain([&file.container_edits]);
    let any = |has: fn(&Edits) -> bool| edits().any(has);
    let digit = |name: &str| name.starts_with(|letter: char| letter.is_ascii_digit());
    let rules = [
        (9, any(has_1_1)),
        (6, any(|edits| edits.intel_rdt.is_some() || !edits.additional_gids.is_empty())),
        (5, has_annotations(file) || file.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'))),
        (4, any(|edits| edits.device_nodes.iter().any(|node| !node.host_path.is_empty()))),
        (4, file.devices.iter().any(|device| digit(&device.name))),
        (3, any(|edits| edits.mounts.iter().any(|mount| !mount.kind.is_empty()))),
    ];
    rules.into_iter().find(|(_, used)| *used).map_or(EARLIEST, |(version, _)| version)
}

fn has_1_1(edits: &Edits) -> bool {
    let rdt = edits.intel_rdt.as_ref();
    !edits.net_devices.is_empty() || rdt.is_some_and(|rdt| rdt.schemata.is_some() || rdt.enable_monitoring)
}

fn has_annotations(file: &SpecFile) -> bool {
    !file.annotations.is_empty() || file.devices.iter().any(|device| !device.annotations.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(version: &str, edits: &str) -> Result<(), String> {
        let text = format!(
            "{{cdiVersion: {version:?}, kind: v/c, devices: [{{name: d, containerEdits: {edits}}}]}}"
        );
        check(&super::super::file::parse(&text).unwrap())
    }

    #[test]
    fn a_file_is_of_a_known_version_that_has_what_it_uses() {
        assert_eq!(with("2.0.0", "{}").unwrap_err(), "invalid version \"2.0.0\"");
        assert_eq!(with("", "{}").unwrap_err(), "invalid version \"\"");
        assert_eq!(with("0.2.0", "{}").unwrap_err(), "the spec version must be at least v0.3.0");
        for (edits, version, below) in [
            ("{env: [A=b]}", "0.3.0", "0.2.0"),
            ("{mounts: [{hostPath: /a, containerPath: /a, type: bind}]}", "0.4.0", "0.3.0"),
            ("{deviceNodes: [{path: /a, hostPath: /b}]}", "0.5.0", "0.4.0"),
            ("{additionalGids: [5]}", "0.7.0", "0.6.0"),
            ("{intelRdt: {closID: a}}", "0.7.0", "0.6.0"),
            ("{netDevices: [{hostInterfaceName: a, name: b}]}", "1.1.0", "1.0.0"),
            ("{intelRdt: {schemata: [a]}}", "1.1.0", "0.8.0"),
        ] {
            assert_eq!(with(version, edits), Ok(()), "{edits}");
            assert_eq!(with("v1.1.0", edits), Ok(()), "{edits}");
            assert_eq!(with(below, edits), Err(format!("the spec version must be at least v{version}")));
        }
    }
}
