//! What the tests of this tier share beyond the harness. Owns no test. Called by every file of
//! this tier.

use std::collections::BTreeMap;

pub(crate) use gantry_tests::ready::{PAGE, Ready, ready, ready_on, web_image};

/// `key value` lines of the workload's `id` as a map.
pub(crate) fn facts(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(' ').or(Some((line, ""))))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
