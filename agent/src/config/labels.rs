//! Labels that `--node-labels` may give a node. Pure: owns the rules and their texts; never puts a
//! label anywhere. Called by [`super`] and by taints.

use std::collections::BTreeMap;

use gantry_model::names;

/// Labels below kubernetes.io that a node may give itself, by name.
const ALLOWED: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// And by prefix.
const PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

fn is_within(namespace: &str, of: &str) -> bool {
    namespace == of || namespace.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'))
}

fn is_refused(key: &str) -> bool {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    let reserved = ["kubernetes.io", "k8s.io"].iter().any(|of| is_within(namespace, of));
    reserved && !ALLOWED.contains(&key) && !PREFIXES.iter().any(|of| is_within(namespace, of))
}

/// What is wrong with the labels of a node.
///
/// # Errors
/// In upstream's words.
pub fn check(labels: &BTreeMap<String, String>) -> Result<(), String> {
    let refused: Vec<&str> = labels.keys().map(String::as_str).filter(|key| is_refused(key)).collect();
    if !refused.is_empty() {
        return Err(format!(
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{}]\n--node-labels in the \
             'kubernetes.io' namespace must begin with an allowed prefix ({}) or be in the specifically allowed set \
             ({})",
            refused.join(" "),
            PREFIXES.join(", "),
            ALLOWED.join(", ")
        ));
    }
    let mut wrong = Vec::new();
    for (key, value) in labels {
        wrong.extend(name_problem(key).map(|problem| format!("'{key}' - {problem}")));
        wrong.extend(value_problem(value).map(|problem| format!("'{value}' - {problem}")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("invalid node labels: {}", wrong.join("; "))) }
}

/// What is wrong with the name of a label or a taint.
pub(super) fn name_problem(name: &str) -> Option<String> {
    (!names::is_qualified_key(name)).then(|| {
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            .to_owned()
    })
}

/// What is wrong with its value.
pub(super) fn value_problem(value: &str) -> Option<String> {
    (!names::is_label_value(value)).then(|| {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
         start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
         validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_node_may_not_call_itself_a_control_plane() {
        let error =
            check(&of(&[("node-role.kubernetes.io/control-plane", ""), ("x.k8s.io/y", "")])).unwrap_err();
        assert!(error.starts_with(
            "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: \
             [node-role.kubernetes.io/control-plane x.k8s.io/y]\n"
        ));
        check(&of(&[
            ("node.kubernetes.io/pool", "a"),
            ("my.node.kubernetes.io/pool", "a"),
            ("kubernetes.io/hostname", "n"),
            ("example.com/x", ""),
            ("notkubernetes.io/x", ""),
        ]))
        .unwrap();
    }

    #[test]
    fn names_and_values_are_checked() {
        assert!(check(&of(&[("-x", "a")])).unwrap_err().starts_with("invalid node labels: '-x' - name part"));
        assert!(
            check(&of(&[("x", "a b")]))
                .unwrap_err()
                .starts_with("invalid node labels: 'a b' - a valid label")
        );
    }
}
