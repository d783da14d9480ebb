//! The waterfall in a terminal. Pure: spans, a width and the time in, text out; never asks the
//! terminal anything. Called by `gantry timeline` and `gantry run`.

use super::Span;

const MIN_BAR: usize = 20;

/// One line for each span: name, when it began after the first one, how long it took, and
/// a bar. `width` is the terminal's; an open span's bar goes on to `now` and ends with `>`.
#[must_use]
pub fn waterfall(spans: &[Span], width: usize, now: i64) -> String {
    let Some(origin) = spans.iter().map(|s| s.start).min() else {
        return "no stages yet\n".to_owned();
    };
    let end = spans
        .iter()
        .map(|s| if s.end == 0 { now.max(s.start) } else { s.end.max(s.start) })
        .max()
        .unwrap_or(origin);
    let total = (end - origin).max(1);
    let labels: Vec<String> = spans.iter().map(label).collect();
    let label_width = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0).max("STAGE".len());
    let fixed = label_width + 24;
    let bar = width.saturating_sub(fixed).max(MIN_BAR);

    let mut out = format!("{:label_width$}  {:>9}  {:>9}\n", "STAGE", "START", "TOOK");
    for (span, label) in spans.iter().zip(&labels) {
        let took = if span.end == 0 { "...".to_owned() } else { millis(span.end - span.start) };
        let line = format!(
            "{label:label_width$}  {:>9}  {took:>9}  {}",
            millis(span.start - origin),
            draw(span, origin, total, bar),
        );
        out.push_str(line.trim_end());
        if !span.detail.is_empty() {
            out.push_str("  ");
            out.extend(span.detail.chars().map(|c| if c.is_control() { '?' } else { c }));
        }
        out.push('\n');
    }
    out.push_str(&format!("{:label_width$}  {:>9}  {:>9}\n", "total", "", millis(end - origin)));
    out
}

/// Indented when it is a stage within a stage, the container in front.
fn label(span: &Span) -> String {
    // `container.start` is a stage of its own, `container.start.clone` one within it.
    let inner = span.name.strip_prefix("container.").unwrap_or(&span.name).contains('.');
    let indent = if inner { "  " } else { "" };
    format!("{indent}{}", span.label())
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
        let text = waterfall(&spans, 57, 0);
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
    fn open_spans_and_nothing_at_all() {
        assert_eq!(waterfall(&[], 80, 0), "no stages yet\n");
        let text =
            waterfall(&[span("image", "web", 5, 0), span("sandbox", "", 5, 900_000_005)], 10, 1_000_000_005);
        assert!(text.contains("===>"), "{text}");
        assert!(text.contains("1.000 s"), "{text}");
        assert!(text.contains("..."), "{text}");
    }

    #[test]
    fn control_characters_of_a_detail_do_not_reach_the_terminal() {
        let mut hostile = span("image", "", 0, 1);
        hostile.detail = "a\u{1b}[2Jb".into();
        assert!(waterfall(&[hostile], 80, 0).contains("a?[2Jb"));
    }
}
