//! Options of the static policy, by upstream's names. Pure: owns their reading and what excludes what. Called by
//! [`super::CpuManager`].

use std::collections::BTreeMap;

pub(super) const FULL_CORES: &str = "full-pcpus-only";
pub(super) const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
pub(super) const BY_SOCKET: &str = "align-by-socket";
pub(super) const ACROSS_CORES: &str = "distribute-cpus-across-cores";
pub(super) const STRICT: &str = "strict-cpu-reservation";
pub(super) const BY_UNCORE: &str = "prefer-align-cpus-by-uncorecache";

/// What pods' CPUs are chosen by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option that upstream names")]
pub struct StaticOptions {
    /// Whole cores only.
    pub full_cores: bool,
    /// Where one NUMA node is not enough, as many CPUs of each.
    pub across_numa: bool,
    /// A socket's NUMA nodes count as one.
    pub by_socket: bool,
    /// Threads of different cores first.
    pub across_cores: bool,
    /// Nobody else runs on reserved CPUs.
    pub strict: bool,
    /// CPUs of one uncore cache first.
    pub by_uncore: bool,
}

/// The feature gates that let options be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OptionGates {
    /// `CPUManagerPolicyAlphaOptions`.
    pub alpha: bool,
    /// `CPUManagerPolicyBetaOptions`.
    pub beta: bool,
}

impl StaticOptions {
    /// # Errors
    /// In upstream's words.
    pub fn read(options: &BTreeMap<String, String>, gates: OptionGates) -> Result<Self, String> {
        let mut read = Self::default();
        for (name, text) in options {
            allow(name, gates)?;
            let value = bool_in_go(text).map_err(|why| format!("bad value for option {name:?}: {why}"))?;
            match name.as_str() {
                FULL_CORES => read.full_cores = value,
                ACROSS_NUMA => read.across_numa = value,
                BY_SOCKET => read.by_socket = value,
                ACROSS_CORES => read.across_cores = value,
                STRICT => read.strict = value,
                _ => read.by_uncore = value,
            }
        }
        for (both, one, other) in [
            (read.full_cores && read.across_cores, FULL_CORES, ACROSS_CORES),
            (read.across_numa && read.across_cores, ACROSS_NUMA, ACROSS_CORES),
            (read.by_uncore && read.across_cores, BY_UNCORE, ACROSS_CORES),
            (read.by_uncore && read.across_numa, BY_UNCORE, ACROSS_NUMA),
        ] {
            if both {
                return Err(format!(
                    "static policy options {one} and {other} can not be used at the same time"
                ));
            }
        }
        Ok(read)
    }
}

fn allow(name: &str, gates: OptionGates) -> Result<(), String> {
    let level = match name {
        FULL_CORES | STRICT | BY_UNCORE => return Ok(()),
        ACROSS_NUMA if gates.beta => return Ok(()),
        BY_SOCKET | ACROSS_CORES if gates.alpha => return Ok(()),
        ACROSS_NUMA => "Beta",
        BY_SOCKET | ACROSS_CORES => "Alpha",
        _ => return Err(format!("unknown CPU Manager Policy option: {name:?}")),
    };
    Err(format!("CPU Manager Policy {level}-level Options not enabled, but option {name:?} provided"))
}

/// As strconv.ParseBool.
fn bool_in_go(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[(&str, &str)], gates: OptionGates) -> Result<StaticOptions, String> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        StaticOptions::read(&options.collect(), gates)
    }

    #[test]
    fn options_are_upstreams() {
        let all = OptionGates { alpha: true, beta: true };
        let off = OptionGates::default();
        let full = StaticOptions { full_cores: true, ..StaticOptions::default() };
        assert_eq!(read(&[(FULL_CORES, "true"), (STRICT, "0")], off), Ok(full));
        assert!(read(&[(BY_SOCKET, "T"), (ACROSS_NUMA, "1")], all).is_ok());
        for (options, gates, why) in [
            (&[("x", "true")][..], all, "unknown CPU Manager Policy option: \"x\""),
            (
                &[(BY_SOCKET, "true")],
                off,
                "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
            ),
            (
                &[(ACROSS_NUMA, "true")],
                off,
                "CPU Manager Policy Beta-level Options not enabled, but option \"distribute-cpus-across-numa\" provided",
            ),
            (
                &[(FULL_CORES, "yes")],
                off,
                "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"yes\": invalid syntax",
            ),
            (
                &[(FULL_CORES, "true"), (ACROSS_CORES, "true")],
                all,
                "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
            ),
        ] {
            assert_eq!(read(options, gates).unwrap_err(), why);
        }
    }
}
