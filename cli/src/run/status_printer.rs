//! What `gantry run` says of a pod: sentences for changes, and with -v each stage of its start. Pure: statuses in, lines
//! out. Called by `narrate`.

use std::collections::{BTreeMap, BTreeSet};

use gantry_agent::pod::status::PodStatus;
use gantry_agent::timeline::render::millis;

use crate::output;

/// What the status of a pod says that does not come further by itself; of an init container behind `Init:`.
const STUCK: [&str; 8] = [
    "BackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "InvalidImageName",
    "RunContainerError",
    "StartError",
];

/// One pod, and what was told of it already.
#[derive(Debug, Default)]
pub(super) struct StatusPrinter {
    pod: String,
    stages: bool,
    spans: usize,
    told: BTreeSet<(i64, String, String)>,
    reason: String,
    message: String,
    /// By container, from when it was first seen.
    restarts: BTreeMap<String, u32>,
    is_ready: bool,
    has_pointed: bool,
}

impl StatusPrinter {
    /// `stages`: every stage is told, too.
    pub(super) fn new(pod: String, stages: bool) -> Self {
        Self { pod, stages, ..Self::default() }
    }

    /// What is new, each on one line.
    pub(super) fn lines(&mut self, status: &PodStatus) -> Vec<String> {
        let mut lines = Vec::new();
        if self.stages && status.spans.len() != self.spans {
            self.spans = status.spans.len();
            self.stages(status, &mut lines);
        }
        self.restarts(status, &mut lines);
        if status.reason != self.reason || status.message != self.message {
            self.reason.clone_from(&status.reason);
            self.message.clone_from(&status.message);
            lines.push(match (status.message.as_str(), status.ip.as_str()) {
                ("", ip) if !ip.is_empty() && status.reason == "Running" => {
                    format!("{}: Running at {ip}", self.pod)
                }
                ("", _) => format!("{}: {}", self.pod, status.reason),
                (message, _) => format!("{}: {}: {message}", self.pod, status.reason),
            });
        }
        self.ready(status, &mut lines);
        // Once: what is wrong changes less often than its words.
        if !self.has_pointed && STUCK.iter().any(|stuck| status.reason.ends_with(stuck)) {
            self.has_pointed = true;
            lines.push(format!("→ gantry explain {}", self.pod));
        }
        lines.iter().map(|line| output::one_line(line)).collect()
    }

    fn stages(&mut self, status: &PodStatus, lines: &mut Vec<String>) {
        for span in status.spans.iter().filter(|span| span.end != 0) {
            let key = (span.start, span.name.clone(), span.container.clone());
            let inner = span.name.strip_prefix("container.").unwrap_or(&span.name).contains('.');
            if inner || !self.told.insert(key) {
                continue;
            }
            let container =
                if span.container.is_empty() { String::new() } else { format!(" [{}]", span.container) };
            let took = match span.end - span.start {
                0 => String::new(),
                took => format!(" {}", millis(took)),
            };
            let detail = if span.detail.is_empty() { String::new() } else { format!(" {}", span.detail) };
            lines.push(format!("{}{container} {}{took}{detail}", self.pod, span.name));
        }
    }

    fn restarts(&mut self, status: &PodStatus, lines: &mut Vec<String>) {
        for container in status.all_containers() {
            let count = container.restart_count;
            let before = self.restarts.insert(container.name.clone(), count);
            if before.is_none_or(|before| count <= before) {
                continue;
            }
            let why = match &container.last_exit {
                Some(exit) => format!(": it ended with exit code {} ({})", exit.code, exit.reason),
                None => String::new(),
            };
            let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
            lines.push(format!("{}: container {} has restarted {times}{why}", self.pod, container.name));
        }
    }

    /// Once: `gantry ps` and probes' events tell of what comes later.
    fn ready(&mut self, status: &PodStatus, lines: &mut Vec<String>) {
        let begun = status.spans.iter().map(|span| span.start).min();
        let ready = status.spans.iter().find(|span| span.name == "ready" && span.end == span.start);
        if let (false, Some(begun), Some(ready)) = (self.is_ready, begun, ready) {
            self.is_ready = true;
            lines.push(format!("{}: ready after {}", self.pod, millis(ready.start - begun)));
        }
    }
}

#[cfg(test)]
mod tests {
    use gantry_agent::pod::status::ContainerStatus;
    use gantry_agent::runtime::Exit;
    use gantry_agent::timeline::Span;

    use super::*;

    fn status(reason: &str, message: &str) -> PodStatus {
        PodStatus { reason: reason.into(), message: message.into(), ..PodStatus::default() }
    }

    fn span(name: &str, start: i64, end: i64) -> Span {
        Span { name: name.into(), container: String::new(), start, end, detail: String::new() }
    }

    #[test]
    fn a_start_is_a_few_sentences_and_its_stages_are_for_those_who_ask() {
        let ms = 1_000_000;
        let spans = vec![
            span("sandbox", ms, 50 * ms),
            span("sandbox.netns", ms, 9 * ms),
            span("ready", 121 * ms, 121 * ms),
        ];
        let up = PodStatus { ip: "10.87.0.16".into(), spans: spans.into(), ..status("Running", "") };
        let told = |stages| {
            let mut printer = StatusPrinter::new("default/web".into(), stages);
            let mut lines = printer.lines(&status("ContainerCreating", ""));
            lines.extend(printer.lines(&up));
            assert_eq!(printer.lines(&up), Vec::<String>::new(), "nothing is told twice");
            lines
        };
        let sentences = [
            "default/web: ContainerCreating",
            "default/web: Running at 10.87.0.16",
            "default/web: ready after 120.0 ms",
        ];
        assert_eq!(told(false), sentences);
        let all = told(true);
        assert!(all.contains(&"default/web sandbox 49.0 ms".to_owned()), "{all:?}");
        assert!(!all.iter().any(|line| line.contains("netns")), "{all:?}");
        assert!(sentences.iter().all(|line| all.contains(&(*line).to_owned())), "{all:?}");
    }

    #[test]
    fn restarts_are_told_from_the_first_look_on() {
        let exit =
            Exit { code: 3, reason: "Error".into(), message: String::new(), started_at: 1, finished_at: 2 };
        let at = |restart_count| PodStatus {
            containers: vec![ContainerStatus {
                name: "c".into(),
                restart_count,
                last_exit: Some(exit.clone()),
                ..ContainerStatus::default()
            }],
            ..PodStatus::default()
        };
        let mut printer = StatusPrinter::new("default/web".into(), false);
        assert_eq!(printer.lines(&at(4)), Vec::<String>::new(), "a pod that is taken up has a past");
        let line = "default/web: container c has restarted 5 times: it ended with exit code 3 (Error)";
        assert_eq!(printer.lines(&at(5)), [line]);
        assert_eq!(printer.lines(&at(5)), Vec::<String>::new());
    }

    #[test]
    fn a_pod_that_is_stuck_is_pointed_at_once_and_foreign_words_stay_on_their_line() {
        let mut printer = StatusPrinter::new("default/web".into(), false);
        let lines = printer.lines(&status("Init:ErrImagePull", "no\nsuch\u{1b}[1m image"));
        assert_eq!(
            lines,
            ["default/web: Init:ErrImagePull: no such [1m image", "→ gantry explain default/web"]
        );
        assert_eq!(printer.lines(&status("ImagePullBackOff", "")), ["default/web: ImagePullBackOff"]);
    }
}
