//! Named spans of a pod's start: where did the time go? Owns the span type and the
//! recorder each worker keeps; never draws ([`render`] does). Called by the workers, the
//! operator API and the command line.

pub mod chart;
pub mod compare;
pub mod html;
pub mod json;
pub mod otlp;
pub mod pair;
pub mod render;
pub mod svg;

use serde::Deserialize;

use crate::timeline::render::size;

/// One stage. Times are unix nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Dotted for a stage within a stage: `sandbox`, `sandbox.cni.bridge`.
    pub name: String,
    /// Container the stage belongs to; empty for the pod's own.
    pub container: String,
    /// When it began.
    pub start: i64,
    /// When it ended; 0 while it goes on.
    pub end: i64,
    /// Bytes, an address, an image name; may be empty.
    pub detail: String,
}

impl Span {
    /// `sandbox`, `[web] image`.
    #[must_use]
    pub fn label(&self) -> String {
        match self.container.as_str() {
            "" => self.name.clone(),
            container => format!("[{container}] {}", self.name),
        }
    }
}

/// Spans as they are read: each stage by start, those within it right below it, by start as well. With
/// each, whether it is a stage within another one that is there.
#[must_use]
pub fn as_tree(spans: &[Span]) -> Vec<(&Span, bool)> {
    let within = |inner: &Span, outer: &Span| {
        let rest = inner.name.strip_prefix(outer.name.as_str());
        inner.container == outer.container && rest.is_some_and(|rest| rest.starts_with('.'))
    };
    let (mut inner, mut outer): (Vec<&Span>, Vec<&Span>) =
        spans.iter().partition(|span| spans.iter().any(|other| within(span, other)));
    inner.sort_by_key(|span| span.start);
    outer.sort_by_key(|span| span.start);
    // Of several of one name the last that had begun by then; the first for what begins before all of them, by another
    // clock.
    let owner = |span: &Span| {
        let begun = outer.iter().rposition(|stage| within(span, stage) && stage.start <= span.start);
        begun.or_else(|| outer.iter().position(|stage| within(span, stage)))
    };
    let owners: Vec<Option<usize>> = inner.iter().map(|span| owner(span)).collect();
    let mut rows = Vec::with_capacity(spans.len());
    for (index, stage) in outer.iter().enumerate() {
        rows.push((*stage, false));
        let own = inner.iter().zip(&owners).filter(|(_, owner)| **owner == Some(index));
        rows.extend(own.map(|(span, _)| (*span, true)));
    }
    rows
}

/// The agent's own share between two stages; a pod's start has many, and most are short.
const TURN: &str = "agent.turn";

/// Spans as they are drawn: the agent's turns are one, which lasts from the first to the last. With it, when each of
/// them was; none where there is one turn at most.
#[must_use]
pub fn fold_turns(spans: &[Span]) -> (Vec<Span>, Vec<(i64, i64)>) {
    let (turns, others): (Vec<&Span>, Vec<&Span>) = spans.iter().partition(|span| span.name == TURN);
    let pieces: Vec<(i64, i64)> = turns.iter().map(|turn| (turn.start, turn.end)).collect();
    let longest = turns.iter().max_by_key(|turn| turn.end - turn.start).copied();
    let (start, end) = (pieces.iter().map(|piece| piece.0).min(), pieces.iter().map(|piece| piece.1).max());
    let (Some(longest), Some(start), Some(end), 2..) = (longest, start, end, turns.len()) else {
        return (spans.to_vec(), Vec::new());
    };
    let mut kept: Vec<Span> = others.into_iter().cloned().collect();
    let took = render::millis(longest.end - longest.start);
    let detail = format!("{} times, the longest {took} {}", turns.len(), longest.detail);
    kept.push(Span { start, end, detail, ..longest.clone() });
    (kept, pieces)
}

/// A detail as people read it: `1982352 bytes` are 1.9MB.
#[must_use]
pub fn readable(detail: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in detail.split(' ') {
        let end = word.strip_prefix("bytes").filter(|end| matches!(*end, "" | "," | ";"));
        let bytes = end.and_then(|_| words.last()?.parse::<u64>().ok());
        match (end, bytes) {
            (Some(end), Some(bytes)) => {
                words.pop();
                words.push(size(bytes) + end);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

/// The stage of a runtime's own list, as its verbose `info["timeline"]` has it.
#[derive(Deserialize)]
struct RuntimeSpan {
    name: String,
    start: i64,
    end: i64,
    #[serde(default)]
    detail: String,
}

/// Reads a runtime's list; one that is not understood is no reason to fail a pod, so it
/// counts as empty.
#[must_use]
pub fn parse_runtime_spans(json: &str) -> Vec<Span> {
    let spans: Vec<RuntimeSpan> = match serde_json::from_str(json) {
        Ok(spans) => spans,
        Err(error) => {
            tracing::debug!(%error, "the runtime's timeline is not understood");
            return Vec::new();
        }
    };
    spans
        .into_iter()
        .map(|RuntimeSpan { name, start, end, detail }| Span {
            name,
            container: String::new(),
            start,
            end,
            detail,
        })
        .collect()
}

/// The spans of one pod, in the order they began.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    spans: Vec<Span>,
}

impl Timeline {
    /// All spans, by start.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Adds a span.
    pub fn add(&mut self, span: Span) {
        let at = self.spans.partition_point(|s| (s.start, s.end) <= (span.start, span.end));
        self.spans.insert(at, span);
    }

    /// Adds those of the runtime's stages `inner` that lie within `span`, named below it. Older ones
    /// belong to an earlier pull or start and are left out.
    pub fn add_within(&mut self, span: &Span, inner: &[Span]) {
        let within = inner.iter().filter(|s| s.start >= span.start && s.start <= span.end.max(span.start));
        let nested = within.map(|s| Span {
            name: format!("{}.{}", span.name, s.name),
            container: span.container.clone(),
            ..s.clone()
        });
        nested.for_each(|s| self.add(s));
    }

    /// A moment rather than a stage.
    pub fn mark(&mut self, name: &str, at: i64) {
        self.add(Span {
            name: name.to_owned(),
            container: String::new(),
            start: at,
            end: at,
            detail: String::new(),
        });
    }

    /// Whether this stage of this container (or of the pod) is there.
    #[must_use]
    pub fn has_stage(&self, name: &str, container: &str) -> bool {
        self.spans.iter().any(|s| s.name == name && s.container == container)
    }

    /// Whether a span of that name is there.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.spans.iter().any(|s| s.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(start: i64, end: i64, detail: &str) -> Span {
        let (name, container) = (TURN.to_owned(), String::new());
        Span { name, container, start, end, detail: detail.to_owned() }
    }

    #[test]
    fn the_agents_turns_are_one_line_and_one_turn_stays_as_it_is() {
        let ms = 1_000_000;
        let image = Span { name: "image".into(), ..turn(0, 5 * ms, "x") };
        let all = [turn(0, ms, "to image"), image.clone(), turn(5 * ms, 9 * ms, "to [c] container.create")];
        let (spans, pieces) = fold_turns(&all);
        assert_eq!(pieces, [(0, ms), (5 * ms, 9 * ms)]);
        let detail = "2 times, the longest 4.0 ms to [c] container.create";
        assert_eq!(spans, [image.clone(), turn(0, 9 * ms, detail)]);
        let one = [image, turn(0, 1, "to image")];
        assert_eq!(fold_turns(&one), (one.to_vec(), Vec::new()));
        assert_eq!(fold_turns(&[]), (Vec::new(), Vec::new()));
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(readable("1982352 bytes"), "1.9MB");
        assert_eq!(readable("999 bytes, 12 entries"), "999B, 12 entries");
        assert_eq!(readable("1500 bytes, 12 entries"), "1.5kB, 12 entries");
        assert_eq!(readable("reg/bytes:1 of bytes"), "reg/bytes:1 of bytes");
        assert_eq!(readable(""), "");
    }

    fn span(name: &str, start: i64, end: i64) -> Span {
        Span { name: name.into(), container: String::new(), start, end, detail: String::new() }
    }

    #[test]
    fn stages_stand_below_the_one_they_belong_to() {
        let of = |container: &str, name: &str, start| Span {
            container: container.into(),
            ..span(name, start, 90)
        };
        let spans = [
            of("", "sandbox", 1),
            of("web", "image", 2),
            of("", "sandbox.netns", 3),
            of("web", "image.layer.0.download", 4),
            of("", "agent.turn", 5),
            of("web", "container.start", 6),
            of("web", "container.start.clone", 7),
        ];
        let rows: Vec<(&str, bool)> =
            as_tree(&spans).into_iter().map(|(span, inner)| (span.name.as_str(), inner)).collect();
        let want = [
            ("sandbox", false),
            ("sandbox.netns", true),
            ("image", false),
            ("image.layer.0.download", true),
            ("agent.turn", false),
            ("container.start", false),
            ("container.start.clone", true),
        ];
        assert_eq!(rows, want);
    }

    #[test]
    fn b10_what_happens_again_has_its_own_stages_below_it() {
        let of = |name: &str, start, end| Span { container: "web".into(), ..span(name, start, end) };
        let spans = [
            of("container.start", 10, 20),
            of("container.start.clone", 11, 12),
            of("container.start", 50, 60),
            of("container.start.clone", 51, 52),
            // By the runtime's clock, a little before the call.
            of("container.start.exec", 9, 12),
        ];
        let tree: Vec<(&str, i64)> =
            as_tree(&spans).into_iter().map(|(span, _)| (span.name.as_str(), span.start)).collect();
        let want = [
            ("container.start", 10),
            ("container.start.exec", 9),
            ("container.start.clone", 11),
            ("container.start", 50),
            ("container.start.clone", 51),
        ];
        assert_eq!(tree, want);
    }

    #[test]
    fn spans_are_kept_by_start_and_old_inner_ones_are_dropped() {
        let mut timeline = Timeline::default();
        timeline.add(span("ready", 90, 90));
        let inner = parse_runtime_spans(
            r#"[{"name":"old","start":5,"end":8},{"name":"cni.bridge","start":20,"end":30,"detail":"10.0.0.2"}]"#,
        );
        timeline.add(span("sandbox", 10, 50));
        timeline.add_within(&span("sandbox", 10, 50), &inner);
        timeline.mark("seen", 1);
        let names: Vec<&str> = timeline.spans().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["seen", "sandbox", "sandbox.cni.bridge", "ready"]);
        assert!(timeline.has("ready"));
        assert!(parse_runtime_spans("nonsense").is_empty());
    }
}
