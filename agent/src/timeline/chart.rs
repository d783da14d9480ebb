//! Where each stage stands on a chart: rows, columns, colours' names and how much of the start is
//! explained. Pure: spans and the time in, numbers out; never a markup language. Called by
//! [`super::svg`] and [`super::compare`].

use super::{Span, TURN, as_tree, fold_turns, readable};

/// What a stage spends its time on; one colour each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The pod's own bookkeeping: seen, admitted, cgroup.
    Agent,
    /// Volumes.
    Volumes,
    /// Images: resolving, downloading, unpacking.
    Image,
    /// The sandbox but for its network.
    Sandbox,
    /// CNI.
    Network,
    /// Creating and starting containers, hooks.
    Container,
    /// Waiting for probes.
    Probe,
    /// What does not succeed, and the waiting until it is tried again.
    Failed,
}

impl Kind {
    /// By the stage's name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let within = |prefix: &str| name == prefix || name.starts_with(&format!("{prefix}."));
        if name.ends_with(".failed") || name.ends_with(".backoff") {
            Self::Failed
        } else if name.split('.').any(|part| part == "cni") {
            Self::Network
        } else if within("image") {
            Self::Image
        } else if within("sandbox") {
            Self::Sandbox
        } else if within("volumes") {
            Self::Volumes
        } else if within("container") || within("postStart") {
            Self::Container
        } else if name.contains("probe") || name.contains("Probe") {
            Self::Probe
        } else {
            Self::Agent
        }
    }

    /// As a word, for legends and class names.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Volumes => "volumes",
            Self::Image => "image",
            Self::Sandbox => "sandbox",
            Self::Network => "network",
            Self::Container => "container",
            Self::Probe => "probe",
            Self::Failed => "failed",
        }
    }
}

/// One row of the chart. Times are nanoseconds after the chart's origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartRow {
    /// The stage, without its container.
    pub name: String,
    /// Empty for the pod's own stages.
    pub container: String,
    /// A stage within a stage.
    pub inner: bool,
    /// What it is about.
    pub kind: Kind,
    /// When it began.
    pub from: i64,
    /// When it ended; now, when it goes on.
    pub to: i64,
    /// When something of it was under way: several times, for stages that are drawn as one.
    pub pieces: Vec<(i64, i64)>,
    /// It goes on.
    pub open: bool,
    /// A moment rather than a stage.
    pub mark: bool,
    /// Bytes, an address, an image name; without control characters.
    pub detail: String,
}

impl ChartRow {
    /// How long it took, or has taken by now.
    #[must_use]
    pub fn took(&self) -> i64 {
        self.pieces.iter().map(|(from, to)| to - from).sum()
    }
}

/// Everything there is to draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// By start, stages within a stage right below it.
    pub rows: Vec<ChartRow>,
    /// Nanoseconds from the first stage's begin to the last one's end.
    pub total: i64,
    /// Nanoseconds from the first stage's begin to `ready`; none while the pod is not.
    pub ready: Option<i64>,
    /// Nanoseconds of that (or of the total) in which some stage was under way.
    pub covered: i64,
}

impl Chart {
    /// Lays the spans out; an open one goes on to `now` (unix nanoseconds).
    #[must_use]
    pub fn new(spans: &[Span], now: i64) -> Self {
        let origin = spans.iter().map(|s| s.start).min().unwrap_or(0);
        let end_of = |s: &Span| if s.end == 0 { now.max(s.start) } else { s.end.max(s.start) };
        let total = spans.iter().map(end_of).max().unwrap_or(origin) - origin;
        let (spans, turns) = fold_turns(spans);
        let pieces = |span: &Span| match span.name == TURN && !turns.is_empty() {
            true => turns.iter().map(|(from, to)| (from - origin, to - origin)).collect(),
            false => vec![(span.start - origin, end_of(span) - origin)],
        };
        let rows: Vec<ChartRow> = as_tree(&spans)
            .into_iter()
            .map(|(span, inner)| ChartRow {
                name: span.name.clone(),
                container: span.container.clone(),
                inner,
                kind: Kind::of(&span.name),
                from: span.start - origin,
                to: end_of(span) - origin,
                pieces: pieces(span),
                open: span.end == 0,
                mark: span.end == span.start,
                detail: readable(&span.detail)
                    .chars()
                    .map(|c| if c.is_control() { '?' } else { c })
                    .collect(),
            })
            .collect();
        let ready = rows.iter().find(|row| row.name == "ready" && row.mark).map(|row| row.from);
        let covered = covered_time(&rows, ready.unwrap_or(total));
        Self { rows, total, ready, covered }
    }

    /// How much of the start the stages explain, in percent; 100 for a start that took no time.
    #[must_use]
    pub fn covered_percent(&self) -> i64 {
        let whole = self.ready.unwrap_or(self.total);
        if whole <= 0 { 100 } else { self.covered.saturating_mul(100) / whole }
    }
}

/// The length of the union of all stages, up to `until`.
fn covered_time(rows: &[ChartRow], until: i64) -> i64 {
    let pieces = rows.iter().filter(|row| !row.mark).flat_map(|row| &row.pieces);
    let mut stages: Vec<(i64, i64)> = pieces.map(|(from, to)| (*from.min(&until), *to.min(&until))).collect();
    stages.sort_unstable();
    let (mut sum, mut reached) = (0, 0);
    for (from, to) in stages {
        sum += (to - from.max(reached)).max(0);
        reached = reached.max(to);
    }
    sum
}

/// Round steps for an axis of `total` nanoseconds: at most `most` of them, each 1, 2 or 5 times a
/// power of ten.
#[must_use]
pub fn ticks(total: i64, most: i64) -> Vec<i64> {
    let mut step = 1_000;
    for factor in [2, 5, 2].into_iter().cycle() {
        if total / step <= most {
            break;
        }
        // 1 → 2 → 5 → 10
        step = match factor {
            5 => step / 2 * 5,
            _ => step * 2,
        };
    }
    (0..=total / step).map(|n| n * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn span(name: &str, start: i64, end: i64) -> Span {
        Span {
            name: name.into(),
            container: String::new(),
            start: start * MS,
            end: end * MS,
            detail: String::new(),
        }
    }

    #[test]
    fn overlapping_stages_count_once_and_nothing_after_ready_counts() {
        let spans = [
            span("seen", 100, 100),
            span("image", 100, 150),
            span("sandbox", 120, 160),
            span("container.start", 180, 190),
            span("ready", 200, 200),
            span("late", 190, 400),
        ];
        let chart = Chart::new(&spans, 0);
        assert_eq!(chart.ready, Some(100 * MS));
        assert_eq!(chart.covered, (60 + 10 + 10) * MS);
        assert_eq!(chart.covered_percent(), 80);
        assert_eq!(chart.total, 300 * MS);
        assert_eq!(Chart::new(&[], 5).covered_percent(), 100);
    }

    #[test]
    fn turns_are_one_row_that_took_what_they_took_together() {
        let spans = [
            span("agent.turn", 0, 10),
            span("image", 20, 80),
            span("agent.turn", 90, 100),
            span("ready", 100, 100),
        ];
        let chart = Chart::new(&spans, 0);
        let turns = chart.rows.iter().find(|row| row.name == "agent.turn").unwrap();
        assert_eq!(chart.rows.len(), 3);
        assert_eq!((turns.from, turns.to, turns.took()), (0, 100 * MS, 20 * MS));
        // What lies between them is explained by nothing.
        assert_eq!(chart.covered_percent(), 80);
    }

    #[test]
    fn an_open_stage_goes_on_until_now() {
        let chart = Chart::new(&[span("image", 10, 0)], 30 * MS);
        let row = chart.rows.first().unwrap();
        assert_eq!((row.to, row.open), (20 * MS, true));
        assert_eq!(chart.ready, None);
    }

    #[test]
    fn kinds_by_name() {
        for (name, kind) in [
            ("seen", Kind::Agent),
            ("image.layer.1.download", Kind::Image),
            ("sandbox.monitor", Kind::Sandbox),
            ("sandbox.cni.bridge", Kind::Network),
            ("container.start.clone", Kind::Container),
            ("startupProbe", Kind::Probe),
            ("volumes", Kind::Volumes),
            ("image.failed", Kind::Failed),
            ("container.backoff", Kind::Failed),
        ] {
            assert_eq!(Kind::of(name), kind, "{name}");
        }
    }

    #[test]
    fn axes_have_round_steps() {
        assert_eq!(ticks(84 * MS, 10), (0..=8).map(|n| n * 10 * MS).collect::<Vec<_>>());
        assert_eq!(ticks(7000 * MS, 8), (0..=7).map(|n| n * 1000 * MS).collect::<Vec<_>>());
        assert_eq!(ticks(0, 8), [0]);
        for total in [1, 999, 12_345, 77 * MS, 3_600_000 * MS] {
            assert!(ticks(total, 10).len() <= 11, "{total}");
        }
    }
}
