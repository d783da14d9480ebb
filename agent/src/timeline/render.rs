//! The waterfall in a terminal. Pure: spans, a width and the time in, text out; never asks the
//! terminal anything. Called by `gantry timeline` and `gantry run`.

use super::{Span, TURN, as_tree, fold_turns, readable};

const MIN_BAR: usize = 20;
/// Where nothing says how much a line may hold.
const WIDTH: usize = 100;

/// One line for each span: name, when it began after the first one, how long it took, and
/// a bar. `width` is the terminal's, to which lines are cut; an open span's bar goes on to `now` and ends
/// with `>`.
#[must_use]
pub fn waterfall(spans: &[Span], width: Option<usize>, now: i64) -> String {
    let Some(origin) = spans.iter().map(|s| s.start).min() else {
        return "no stages yet\n".to_owned();
    };
    let end = spans
        .iter()
        .map(|s| if s.end == 0 { now.max(s.start) } else { s.end.max(s.start) })
        .max()
        .unwrap_or(origin);
    let total = (end - origin).max(1);
    let (spans, turns) = fold_turns(spans);
    let rows = as_tree(&spans);
    let labels: Vec<String> = rows.iter().map(|(span, inner)| label(span, *inner)).collect();
    let label_width = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0).max("STAGE".len());
    let fixed = label_width + 24;
    let room = width.unwrap_or(WIDTH).saturating_sub(fixed);
    let details = spans.iter().map(|span| span.detail.chars().count()).max().filter(|chars| *chars > 0);
    // Where lines are cut, a third at most is for what is said of the stages.
    let kept = details.filter(|_| width.is_some()).map_or(0, |chars| (chars + 2).min(room / 3));
    let bar = (room - kept).max(MIN_BAR);

    let mut out = format!("{:label_width$}  {:>9}  {:>9}\n", "STAGE", "START", "TOOK");
    for ((span, _), label) in rows.iter().zip(&labels) {
        let is_folded = span.name == TURN && !turns.is_empty();
        let took = match (span.end, is_folded) {
            (0, _) => "...".to_owned(),
            (_, true) => millis(turns.iter().map(|(from, to)| to - from).sum()),
            (end, false) => millis(end - span.start),
        };
        let bar = match is_folded {
            true => several(&turns, origin, total, bar),
            false => draw(span, origin, total, bar),
        };
        let mut line = format!("{label:label_width$}  {:>9}  {took:>9}  {bar}", millis(span.start - origin),);
        line.truncate(line.trim_end().len());
        if !span.detail.is_empty() {
            line.push_str("  ");
            line.extend(readable(&span.detail).chars().map(|c| if c.is_control() { '?' } else { c }));
        }
        out.push_str(&cut(&line, width));
        out.push('\n');
    }
    out.push_str(&format!("{:label_width$}  {:>9}  {:>9}\n", "total", "", millis(end - origin)));
    out
}

/// What fits; an ellipsis stands for the rest.
fn cut(line: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width => {
            line.chars().take(width.saturating_sub(1)).chain(['…']).collect()
        }
        _ => line.to_owned(),
    }
}

/// Indented when it is a stage within a stage, the container in front.
fn label(span: &Span, inner: bool) -> String {
    let indent = if inner { "  " } else { "" };
    format!("{indent}{}", span.label())
}

/// Those of one line, on one bar.
fn several(pieces: &[(i64, i64)], origin: i64, total: i64, width: usize) -> String {
    let mut bar = vec![' '; width.saturating_add(1)];
    for (start, end) in pieces {
        let (name, container, detail) = (String::new(), String::new(), String::new());
        let own = draw(&Span { name, container, start: *start, end: *end, detail }, origin, total, width);
        for (at, drawn) in bar.iter_mut().zip(own.chars()).filter(|(_, drawn)| *drawn != ' ') {
            *at = drawn;
        }
    }
    bar.into_iter().collect()
}

/// The span's place on a bar of `width` columns.
fn draw(span: &Span, origin: i64, total: i64, width: usize) -> String {
    let column = |at: i64| {
        let scaled = i128::from(at - origin) * i128::try_from(width).unwrap_or(0) / i128::from(total);
        usize::try_from(scaled).unwrap_or(0).min(width)
    };
    let open = span.end == 0;
    let from = column(span.start).min(width.saturating_sub(1));
    let to = if open { width } else { column(span.end) };
    let mark = match (open, span.end == span.start) {
        (true, _) => format!("{}>", "=".repeat(to.saturating_sub(from + 1))),
        (false, true) => "|".to_owned(),
        (false, false) => "=".repeat((to.saturating_sub(from)).max(1)),
    };
    format!("{}{mark}", " ".repeat(from))
}

/// `12.3 ms`, or `1.234 s` from a second on.
#[must_use]
pub fn millis(nanos: i64) -> String {
    let tenths = (nanos.max(0) + 50_000) / 100_000;
    if tenths < 10_000 {
        format!("{}.{} ms", tenths / 10, tenths % 10)
    } else {
        let millis = (nanos + 500_000) / 1_000_000;
        format!("{}.{:03} s", millis / 1000, millis % 1000)
    }
}

/// `12.3MB`, decimal as crictl and docker print sizes.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes}B");
    }
    let mut tenths = u128::from(bytes) * 10 / 1000;
    for (index, unit) in UNITS.iter().enumerate() {
        if tenths < 10_000 || index + 1 == UNITS.len() {
            return format!("{}.{}{unit}", tenths / 10, tenths % 10);
        }
        tenths /= 1000;
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &str, container: &str, start: i64, end: i64) -> Span {
        Span { name: name.into(), container: container.into(), start, end, detail: String::new() }
    }

    #[test]
    fn bars_stand_where_the_time_went() {
        let ms = 1_000_000;
        let spans = [
            span("seen", "", 1000 * ms, 1000 * ms),
            span("sandbox", "", 1000 * ms, 1050 * ms),
            span("sandbox.cni", "", 1010 * ms, 1020 * ms),
            span("image", "web", 1000 * ms, 1090 * ms),
            span("ready", "", 1100 * ms, 1100 * ms),
        ];
        let text = waterfall(&spans, Some(57), 0);
        let want = "\
STAGE              START       TOOK
seen              0.0 ms     0.0 ms  |
sandbox           0.0 ms    50.0 ms  ==========
  sandbox.cni    10.0 ms    10.0 ms    ==
[web] image       0.0 ms    90.0 ms  ==================
ready           100.0 ms     0.0 ms                     |
total                      100.0 ms
";
        assert_eq!(text, want);
    }

    #[test]
    fn turns_are_one_line() {
        let ms = 1_000_000;
        let turn =
            |start, end| Span { detail: "to image".into(), ..span("agent.turn", "", start * ms, end * ms) };
        let spans = [turn(0, 10), span("image", "", 10 * ms, 90 * ms), turn(90, 100)];
        let text = waterfall(&spans, None, 0);
        let line = text.lines().find(|line| line.starts_with("agent.turn")).unwrap();
        assert_eq!(text.matches("agent.turn").count(), 1, "{text}");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.get(1..5).unwrap(), ["0.0", "ms", "20.0", "ms"], "{line}");
        assert_eq!(
            words.get(5..7).unwrap().iter().map(|bar| bar.contains('=')).collect::<Vec<_>>(),
            [true; 2]
        );
        assert!(line.ends_with("2 times, the longest 10.0 ms to image"), "{line}");
    }

    #[test]
    fn open_spans_and_nothing_at_all() {
        assert_eq!(waterfall(&[], Some(80), 0), "no stages yet\n");
        let text = waterfall(
            &[span("image", "web", 5, 0), span("sandbox", "", 5, 900_000_005)],
            None,
            1_000_000_005,
        );
        assert!(text.contains("===>"), "{text}");
        assert!(text.contains("1.000 s"), "{text}");
        assert!(text.contains("..."), "{text}");
    }

    #[test]
    fn control_characters_of_a_detail_do_not_reach_the_terminal() {
        let mut hostile = span("image", "", 0, 1);
        hostile.detail = "a\u{1b}[2Jb".into();
        assert!(waterfall(&[hostile], Some(80), 0).contains("a?[2Jb"));
    }

    #[test]
    fn no_line_is_longer_than_the_terminal_is_wide() {
        let mut long = span("image", "web", 0, 5);
        long.detail = "registry.example/with/a/long/name".repeat(3);
        let spans = [span("agent.turn", "", 0, 1), long];
        for width in [40, 80] {
            let text = waterfall(&spans, Some(width), 0);
            let bars = text.lines().filter(|line| line.contains('='));
            assert!(bars.clone().all(|line| line.chars().count() <= width), "{text}");
            assert!(bars.clone().nth(1).unwrap().ends_with('…'), "{text}");
        }
        assert!(waterfall(&spans, None, 0).contains(&spans[1].detail), "a file has no width");
    }
}
