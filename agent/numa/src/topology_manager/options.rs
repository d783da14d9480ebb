//! `topologyManagerPolicyOptions` of the kubelet's configuration. Pure: owns their names, defaults and upstream's words of
//! refusal. Part of [`super`].

use std::collections::BTreeMap;

const PREFER_CLOSEST: &str = "prefer-closest-numa-nodes";
const MOST_NODES: &str = "max-allowable-numa-nodes";
/// With more nodes the sets of them are too many to look at; upstream's default, and the least that can be set.
const DEFAULT_MOST_NODES: usize = 8;

/// What refines a policy. Both options are stable, so that no feature gate stands before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopologyOptions {
    /// Of as many nodes, those that are nearer to each other.
    pub prefer_closest: bool,
    /// On a machine with more nodes than these the kubelet does not start.
    pub most_nodes: usize,
}

impl Default for TopologyOptions {
    fn default() -> Self {
        Self { prefer_closest: false, most_nodes: DEFAULT_MOST_NODES }
    }
}

/// Why an option cannot be, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("unknown Topology Manager Policy option: {0:?}")]
    Unknown(String),
    #[error("bad value for option {PREFER_CLOSEST:?}: strconv.ParseBool: parsing {0:?}: invalid syntax")]
    Boolean(String),
    #[error(
        "unable to convert policy option to integer {MOST_NODES:?}: strconv.Atoi: parsing {text:?}: {why}"
    )]
    Number { text: String, why: &'static str },
    #[error("the minimum value of {MOST_NODES:?} should not be less than {DEFAULT_MOST_NODES}")]
    TooFew,
}

impl TopologyOptions {
    pub(super) fn parse(written: &BTreeMap<String, String>) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        for (name, text) in written {
            match name.as_str() {
                PREFER_CLOSEST => options.prefer_closest = boolean(text)?,
                MOST_NODES => options.most_nodes = number(text)?,
                _ => return Err(OptionsError::Unknown(name.clone())),
            }
        }
        Ok(options)
    }

    /// Whether upstream warns of it at the start.
    #[must_use]
    pub fn is_above_default(&self) -> bool {
        self.most_nodes > DEFAULT_MOST_NODES
    }
}

/// The forms of Go's ParseBool.
fn boolean(text: &str) -> Result<bool, OptionsError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(OptionsError::Boolean(text.to_owned())),
    }
}

/// The forms of Go's Atoi.
fn number(text: &str) -> Result<usize, OptionsError> {
    let wrong = |why| OptionsError::Number { text: text.to_owned(), why };
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong("invalid syntax"));
    }
    let value = text.parse::<i64>().map_err(|_| wrong("value out of range"))?;
    usize::try_from(value).ok().filter(|most| *most >= DEFAULT_MOST_NODES).ok_or(OptionsError::TooFew)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, text: &str) -> Result<TopologyOptions, String> {
        let written = BTreeMap::from([(name.to_owned(), text.to_owned())]);
        TopologyOptions::parse(&written).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read() {
        assert_eq!(TopologyOptions::parse(&BTreeMap::new()), Ok(TopologyOptions::default()));
        for (text, prefer_closest) in [("true", true), ("1", true), ("F", false)] {
            let expected = TopologyOptions { prefer_closest, ..TopologyOptions::default() };
            assert_eq!(parse(PREFER_CLOSEST, text), Ok(expected));
        }
        for (text, most_nodes) in [("8", 8), ("+9", 9), ("64", 64)] {
            let options = parse(MOST_NODES, text).unwrap();
            assert_eq!((options.most_nodes, options.is_above_default()), (most_nodes, most_nodes > 8));
        }
    }

    #[test]
    fn what_is_wrong_is_told_in_upstreams_words() {
        for (name, text, message) in [
            ("unknown", "true", "unknown Topology Manager Policy option: \"unknown\""),
            (
                PREFER_CLOSEST,
                "yes",
                "bad value for option \"prefer-closest-numa-nodes\": strconv.ParseBool: parsing \"yes\": invalid syntax",
            ),
            (
                MOST_NODES,
                "x",
                "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \"x\": \
                 invalid syntax",
            ),
            (
                MOST_NODES,
                "9223372036854775808",
                "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \
                 \"9223372036854775808\": value out of range",
            ),
            (MOST_NODES, "7", "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"),
            (MOST_NODES, "-9", "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"),
        ] {
            assert_eq!(parse(name, text), Err(message.to_owned()));
        }
    }
}
