//! The waterfall as a picture: one self-contained SVG, no scripts, no fonts from elsewhere. Pure:
//! a chart in, text out. Called by `gantry timeline --svg`.

use std::fmt::Write;

use super::chart::{Chart, ChartRow, Kind, ticks};
use super::render::millis;

const ROW: i64 = 22;
const LABELS: i64 = 300;
const BARS: i64 = 660;
const RIGHT: i64 = 40;
const TOP: i64 = 84;
const BOTTOM: i64 = 44;
const WIDTH: i64 = LABELS + BARS + RIGHT;
/// Names and details are cut to what fits.
const LABEL_CHARS: usize = 40;
const DETAIL_CHARS: usize = 56;

/// Light and dark: the reader's setting decides.
const STYLE: &str = "\
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#24292f}\
.title{font-size:15px;font-weight:600}.dim{fill:#656d76}.bg{fill:#ffffff}.grid{stroke:#d0d7de;stroke-width:1}\
.stripe{fill:#f6f8fa}.ready{stroke:#1a7f37;stroke-width:1.5;stroke-dasharray:4 3}\
.agent{fill:#8c959f}.volumes{fill:#bf8700}.image{fill:#0969da}.sandbox{fill:#8250df}.network{fill:#bf3989}\
.container{fill:#1a7f37}.probe{fill:#e16f24}.failed{fill:#cf222e}.inner{opacity:.55}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.bg{fill:#0d1117}.grid{stroke:#30363d}\
.stripe{fill:#151b23}.image{fill:#4493f8}.sandbox{fill:#ab7df8}.network{fill:#db61a2}.container{fill:#3fb950}\
.probe{fill:#f0883e}.failed{fill:#f85149}.volumes{fill:#d29922}.ready{stroke:#3fb950}}";

/// In the order of the legend.
pub(super) const KINDS: [Kind; 8] = [
    Kind::Agent,
    Kind::Volumes,
    Kind::Image,
    Kind::Sandbox,
    Kind::Network,
    Kind::Container,
    Kind::Probe,
    Kind::Failed,
];

/// The whole document.
#[must_use]
pub fn svg(title: &str, chart: &Chart) -> String {
    let total = chart.total.max(1);
    let rows = i64::try_from(chart.rows.len()).unwrap_or(i64::MAX / ROW);
    let height = TOP + rows * ROW + BOTTOM;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\
         <title>{}</title><style>{STYLE}</style><rect class=\"bg\" width=\"{WIDTH}\" height=\"{height}\"/>",
        escape(title)
    );
    header(&mut out, title, chart);
    axis(&mut out, total, TOP + rows * ROW);
    for (row, index) in chart.rows.iter().zip(0..) {
        bar(&mut out, row, TOP + index * ROW, total, index % 2 == 1);
    }
    if let Some(ready) = chart.ready {
        let x = column(ready, total);
        let _ = write!(
            out,
            "<line class=\"ready\" x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{0}\"/><text class=\"dim\" x=\"{x}\" y=\"{1}\" text-anchor=\"middle\">ready</text>",
            TOP + rows * ROW,
            TOP + rows * ROW + 16
        );
    }
    out.push_str("</svg>\n");
    out
}

fn header(out: &mut String, title: &str, chart: &Chart) {
    let verdict = match chart.ready {
        Some(ready) => format!("ready after {}", millis(ready)),
        None => format!("not ready after {}", millis(chart.total)),
    };
    let _ = write!(
        out,
        "<text class=\"title\" x=\"16\" y=\"28\">{}</text><text class=\"dim\" x=\"16\" y=\"48\">{verdict} · {} % of it explained by the stages below</text>",
        escape(title),
        chart.covered_percent()
    );
    let mut x = LABELS;
    for kind in KINDS.into_iter().filter(|kind| chart.rows.iter().any(|row| row.kind == *kind)) {
        let _ = write!(
            out,
            "<rect class=\"{0}\" x=\"{x}\" y=\"18\" width=\"11\" height=\"11\" rx=\"2\"/><text class=\"dim\" x=\"{1}\" y=\"28\">{0}</text>",
            kind.word(),
            x + 16
        );
        x += 30 + i64::try_from(kind.word().len()).unwrap_or(0) * 8;
    }
}

fn axis(out: &mut String, total: i64, bottom: i64) {
    for at in ticks(total, 8) {
        let x = column(at, total);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{bottom}\"/><text class=\"dim\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            TOP - 8,
            round(at, total)
        );
    }
}

fn bar(out: &mut String, row: &ChartRow, y: i64, total: i64, striped: bool) {
    if striped {
        let _ = write!(out, "<rect class=\"stripe\" x=\"0\" y=\"{y}\" width=\"{WIDTH}\" height=\"{ROW}\"/>");
    }
    let middle = y + 15;
    let text =
        if row.container.is_empty() { row.name.clone() } else { format!("[{}] {}", row.container, row.name) };
    let indent = if row.inner { 32 } else { 16 };
    let took = if row.open { format!("{}…", millis(row.took())) } else { millis(row.took()) };
    let hover = format!("{text}: {took}, from {} on{}{}", millis(row.from), sep(row), row.detail);
    let _ = write!(
        out,
        "<g><title>{}</title><text x=\"{indent}\" y=\"{middle}\">{}</text>",
        escape(&hover),
        escape(&cut(&text, LABEL_CHARS))
    );
    let (from, to) = (column(row.from, total), column(row.to, total));
    let class = row.kind.word();
    if row.mark {
        let _ =
            write!(out, "<path class=\"{class}\" d=\"M{from} {} l5 5 l-5 5 l-5 -5 z\"/>", y + ROW / 2 - 5);
    } else {
        let inner = if row.inner { " inner" } else { "" };
        for (from, to) in row.pieces.iter().map(|(from, to)| (column(*from, total), column(*to, total))) {
            let _ = write!(
                out,
                "<rect class=\"{class}{inner}\" x=\"{from}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"/>",
                y + 4,
                (to - from).max(2),
                ROW - 8
            );
        }
    }
    beside(out, row, &took, (from, to), total, middle);
    out.push_str("</g>");
}

/// Duration and detail: right of the bar when there is room, else left of it, else within it or between its parts; cut where
/// none of them has room.
fn beside(out: &mut String, row: &ChartRow, took: &str, (from, to): (i64, i64), total: i64, y: i64) {
    let note = match (row.mark, row.detail.is_empty()) {
        (true, true) => return,
        (true, false) => row.detail.clone(),
        (false, true) => took.to_owned(),
        (false, false) => format!("{took} · {}", row.detail),
    };
    let note = cut(&note, DETAIL_CHARS);
    // 12 px monospace is a little over 7 px a character.
    let needed = i64::try_from(note.chars().count()).unwrap_or(0) * 73 / 10;
    let dim = " class=\"dim\"";
    let mut places = vec![
        LabelPosition { room: WIDTH - 16 - to, x: to + 8, anchor: "start", class: dim },
        LabelPosition { room: from - 8 - LABELS, x: from - 8, anchor: "end", class: dim },
    ];
    if row.pieces.len() < 2 {
        places.push(LabelPosition { room: to - from - 16, x: from + 8, anchor: "start", class: "" });
    }
    for pair in row.pieces.windows(2) {
        let [(_, before), (after, _)] = pair else { continue };
        let (before, after) = (column(*before, total), column(*after, total));
        places.push(LabelPosition { room: after - before - 16, x: before + 8, anchor: "start", class: dim });
    }
    let fits = places.iter().find(|place| place.room >= needed);
    let Some(LabelPosition { room, x, anchor, class }) =
        fits.or(places.iter().max_by_key(|place| place.room))
    else {
        return;
    };
    let chars = usize::try_from(room * 10 / 73).unwrap_or(0);
    let note = escape(&cut(&note, chars));
    let _ = write!(out, "<text{class} x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{note}</text>");
}

/// Where a note may stand.
struct LabelPosition {
    /// Pixels.
    room: i64,
    x: i64,
    anchor: &'static str,
    class: &'static str,
}

fn sep(row: &ChartRow) -> &'static str {
    if row.detail.is_empty() { "" } else { "; " }
}

fn column(at: i64, total: i64) -> i64 {
    let scaled = i128::from(at) * i128::from(BARS) / i128::from(total);
    LABELS + i64::try_from(scaled).unwrap_or(BARS).clamp(0, BARS)
}

/// One unit for the whole axis.
pub(super) fn round(nanos: i64, total: i64) -> String {
    if nanos == 0 {
        "0".to_owned()
    } else if total >= 1_000_000_000 && nanos % 1_000_000_000 != 0 && nanos % 100_000_000 == 0 {
        format!("{}.{} s", nanos / 1_000_000_000, nanos / 100_000_000 % 10)
    } else if nanos % 1_000_000_000 == 0 {
        format!("{} s", nanos / 1_000_000_000)
    } else if nanos % 1_000_000 == 0 {
        format!("{} ms", nanos / 1_000_000)
    } else {
        format!("{} µs", nanos / 1000)
    }
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// For XML text and attributes. Names come from manifests and registries.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML 1.0 has no way to write these.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Span;

    fn span(name: &str, container: &str, start: i64, end: i64, detail: &str) -> Span {
        Span { name: name.into(), container: container.into(), start, end, detail: detail.into() }
    }

    #[test]
    fn hostile_names_stay_text() {
        let spans = [span("image", "a</text><script>", 1, 9, "x\u{1b}\"&<b>")];
        let text = svg("t<i>\u{0}", &Chart::new(&spans, 0));
        assert!(!text.contains("<script>") && !text.contains("<i>") && !text.contains('\u{1b}'), "{text}");
        assert!(text.contains("a&lt;/text&gt;&lt;script&gt;"), "{text}");
    }

    /// Where each text ends on the right, and where it begins.
    fn extents(svg: &str) -> Vec<(i64, i64)> {
        let number = |tag: &str, name: &str| -> i64 {
            let rest = tag.split_once(&format!(" {name}=\"")).unwrap().1;
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let texts =
            svg.split("<text").skip(1).filter_map(|rest| rest.split_once("</text>")).map(|(text, _)| text);
        texts
            .map(|text| {
                let (tag, content) = text.split_once('>').unwrap();
                let (x, wide) = (number(tag, "x"), i64::try_from(content.chars().count()).unwrap() * 73 / 10);
                match tag {
                    tag if tag.contains("\"end\"") => (x - wide, x),
                    tag if tag.contains("\"middle\"") => (x - wide / 2, x + wide / 2),
                    _ => (x, x + wide),
                }
            })
            .collect()
    }

    #[test]
    fn no_text_leaves_the_picture() {
        let ms = 1_000_000;
        let long = "looked for 1.7 ms; and then some words more than fit anywhere";
        let spans: Vec<Span> = (0..10)
            .map(|n| span(&format!("stage{n}"), "", n * 10 * ms, (n * 10 + 1 + n) * ms, long))
            .chain([span("wide", "", 0, 100 * ms, long)])
            .collect();
        let text = svg("t", &Chart::new(&spans, 0));
        for (from, to) in extents(&text) {
            assert!(from >= 0 && to <= WIDTH, "{from}..{to} of {WIDTH}: {text}");
        }
    }

    #[test]
    fn turns_are_one_row_and_sizes_are_for_people() {
        let ms = 1_000_000;
        let mut spans: Vec<Span> =
            (0..13).map(|n| span("agent.turn", "", n * 2 * ms, (n * 2 + 1) * ms, "to image")).collect();
        spans.push(span("image.layer.0.download", "web", 0, 90 * ms, "1982352 bytes"));
        let text = svg("t", &Chart::new(&spans, 0));
        assert_eq!(text.matches(">agent.turn</text>").count(), 1, "{text}");
        assert_eq!(text.matches("<rect class=\"agent\"").count(), 13 + 1, "a bar for each, and the legend's");
        assert!(text.contains("13.0 ms · 13 times, the longest 1.0 ms to image"), "{text}");
        assert!(text.contains("1.9MB") && !text.contains("1982352"), "{text}");
    }

    #[test]
    fn an_axis_has_one_unit() {
        let ticks = |total| ticks(total, 8).into_iter().map(|at| round(at, total)).collect::<Vec<_>>();
        assert_eq!(ticks(1_200_000_000), ["0", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1 s", "1.2 s"]);
        assert_eq!(ticks(80_000_000).last().unwrap(), "80 ms");
    }

    #[test]
    fn each_stage_has_a_bar_and_ready_a_line() {
        let ms = 1_000_000;
        let spans = [
            span("seen", "", 0, 0, ""),
            span("sandbox", "", 0, 50 * ms, ""),
            span("image", "web", 10 * ms, 80 * ms, "reg/web:1"),
            span("ready", "", 100 * ms, 100 * ms, ""),
        ];
        let text = svg("pod default/web", &Chart::new(&spans, 0));
        assert!(text.contains("class=\"sandbox\" x=\"300\" y=\"110\" width=\"330\""), "{text}");
        assert!(text.contains("class=\"image\" x=\"366\" y=\"132\" width=\"462\""), "{text}");
        assert!(text.contains("class=\"ready\" x1=\"960\""), "{text}");
        assert!(text.contains("ready after 100.0 ms · 80 % of it explained"), "{text}");
        assert_eq!(text.matches("<g>").count(), text.matches("</g>").count());
    }
}
