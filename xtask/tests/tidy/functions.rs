//! How long functions are: lines of code between the braces, without those that are empty or a comment. Owns the list of
//! longer ones: each is one table, one exhaustive match or destructuring, or one story of a test. None may grow.

use std::collections::BTreeMap;

/// As CONTRIBUTING.md says.
const MOST: usize = 50;

/// File, function, its length. An entry that is no longer needed is to go.
const LONGER: &[(&str, &str, usize)] = &[
    ("agent/server/src/tests.rs", "answers_of_those_who_may", 57),
    ("agent/src/config/tests.rs", "errors_are_told_in_upstreams_words", 58),
    ("agent/src/config/validate.rs", "node", 63),
    ("agent/src/explain/pulls.rs", "explain", 68),
    ("agent/src/manifest/container.rs", "ephemeral", 62),
    ("agent/src/manifest/container.rs", "one", 96),
    ("agent/src/manifest/meta.rs", "meta", 53),
    ("agent/src/manifest/pod.rs", "with_spec", 124),
    ("agent/src/manifest/security.rs", "container", 58),
    ("agent/src/manifest/security.rs", "pod", 67),
    ("agent/src/manifest/tests.rs", "all_that_is_wrong_is_told_at_once_each_with_its_line", 53),
    ("agent/src/manifest/tests/fields.rs", "variables_come_from_everywhere", 56),
    ("agent/src/manifest/tests/fields.rs", "volumes_of_every_kind_are_read", 57),
    ("agent/src/manifest/volume.rs", "mount_of", 55),
    ("agent/src/manifest/volume.rs", "source_of", 78),
    ("agent/src/pod/phase.rs", "status", 56),
    ("agent/src/pod/worker_state/outcome.rs", "record_success", 66),
    ("agent/src/runtime/cri/tests.rs", "what_a_pod_says_of_security_and_names_reaches_the_runtime", 51),
    ("agent/src/runtime/cri/tests.rs", "what_the_api_says_of_security_and_resources_reaches_the_runtime", 54),
    ("agent/src/status/convert/tests.rs", "a_running_pod_is_told_as_upstream_tells_it", 62),
    ("cli/src/detach/words.rs", "runtime", 55),
    ("cli/src/runtime.rs", "config", 52),
    (
        "shim/image/src/image/tests/leftovers.rs",
        "a_crowd_of_good_bad_and_cancelled_pulls_leaves_whole_images_only",
        51,
    ),
    ("shim/monitor/src/monitor/spawn.rs", "container", 54),
    ("shim/src/container/create.rs", "make", 56),
    ("tests/disruption/pods.rs", "spec", 55),
    ("tests/join/main.rs", "a_machine_joins_by_token_and_leaves_as_it_was", 54),
    ("tests/kernel/checkpoint.rs", "a_checkpoint_that_cannot_be_is_refused_and_the_container_goes_on", 51),
    ("tests/kernel/exec.rs", "an_exec_is_a_process_of_its_container", 53),
    ("tests/kernel/kubelet_api.rs", "commands_and_ports_are_reached_with_a_certificate_only", 68),
    ("tests/src/cluster/addons.rs", "dns", 68),
    ("tests/src/cluster/addons.rs", "metrics", 79),
    ("tests/src/cluster/addons.rs", "proxy", 54),
    ("tests/standalone/kubelet.rs", "a_kubelet_runs_static_pods_without_an_api_server", 67),
    ("tests/standalone/terminal.rs", "bars_of_a_pull_are_drawn_over_and_gone_at_the_end", 52),
    ("xtask/src/tiers.rs", "run", 66),
];

/// Names and lengths of the functions of one file. Rustfmt puts the closing brace below the `fn` it belongs to.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = name(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let Some(open) = (at..lines.len()).find(|at| lines[*at].ends_with(['{', ';', '}'])) else { continue };
        if !lines[open].ends_with('{') {
            continue; // A declaration, or all on one line.
        }
        let end = format!("{indent}}}");
        let body = lines[open + 1..].iter().take_while(|line| **line != end);
        let is_code = |line: &&&str| !line.trim().is_empty() && !line.trim().starts_with("//");
        found.push((name, body.filter(is_code).count()));
    }
    found
}

fn name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    if let Some(public) = rest.strip_prefix("pub") {
        rest = match public.strip_prefix('(') {
            Some(scope) => scope.split_once(')')?.1.trim_start(),
            None => public.strip_prefix(' ')?,
        };
    }
    for word in ["const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
}

#[test]
fn functions_are_short() {
    let mut longer: BTreeMap<(&str, &str), usize> =
        LONGER.iter().map(|(file, function, lines)| ((*file, *function), *lines)).collect();
    let sources = super::sources();
    let mut offenders = Vec::new();
    for (file, text) in &sources {
        for (function, lines) in functions(text).into_iter().filter(|(_, lines)| *lines > MOST) {
            match longer.remove(&(file.as_str(), function)) {
                Some(most) if lines <= most => {}
                Some(most) => offenders.push(format!("{file}: {function} has {lines} lines, and had {most}")),
                None => offenders.push(format!("{file}: {function} has {lines} lines")),
            }
        }
    }
    offenders.extend(longer.keys().map(|(file, function)| {
        format!(
            "{file}: {function} is short now, or gone: take it off the list in xtask/tests/tidy/functions.rs"
        )
    }));
    super::assert_none("a function has at most 50 lines of code", &offenders);
}

#[test]
fn lines_of_code_between_the_braces_count() {
    let text = "pub(crate) async fn one(\n    a: u8,\n) -> u8 {\n    // Why.\n\n    let b = a;\n    b\n}\n\
                trait T {\n    fn two(&self);\n    fn three() {}\n    pub fn four<A>(a: A) {\n        a\n    }\n}\n";
    assert_eq!(functions(text), [("one", 2), ("four", 1)]);
}
