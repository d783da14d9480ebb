//! A node selector's terms, as the API writes them: a pod's affinity, or a PersistentVolume's. Pure: owns the
//! conversion; never compares one with a node. Called by the manifest converter and by [`super::cluster`].

use gantry_model::pod::placement::{Match, Operator, Term};
use k8s_openapi::api::core::v1 as api;

/// The terms at the path `at`; `operator` reads one by its path and name.
///
/// # Errors
/// Those of `operator`.
pub(crate) fn terms<E>(
    at: &str,
    list: Vec<api::NodeSelectorTerm>,
    operator: &impl Fn(String, &str) -> Result<Operator, E>,
) -> Result<Vec<Term>, E> {
    let one = |(index, term): (usize, api::NodeSelectorTerm)| {
        let api::NodeSelectorTerm { match_expressions, match_fields } = term;
        let at = format!("{at}[{index}]");
        Ok(Term {
            labels: matches(
                &format!("{at}.matchExpressions"),
                match_expressions.unwrap_or_default(),
                operator,
            )?,
            fields: matches(&format!("{at}.matchFields"), match_fields.unwrap_or_default(), operator)?,
        })
    };
    list.into_iter().enumerate().map(one).collect()
}

fn matches<E>(
    at: &str,
    list: Vec<api::NodeSelectorRequirement>,
    operator: &impl Fn(String, &str) -> Result<Operator, E>,
) -> Result<Vec<Match>, E> {
    let one = |(index, of): (usize, api::NodeSelectorRequirement)| {
        let api::NodeSelectorRequirement { key, operator: name, values } = of;
        let operator = operator(format!("{at}[{index}].operator"), &name)?;
        Ok(Match { key, operator, values: values.unwrap_or_default() })
    };
    list.into_iter().enumerate().map(one).collect()
}
