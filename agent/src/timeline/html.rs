//! The waterfall as a web page: one file, nothing loaded from elsewhere. Stages fold, say what they are where one points
//! at them, and can be zoomed into; folding and words need no script. Two starts stand on one axis, stage beside stage.
//! Pure: charts in, text out. Called by `gantry timeline --html`.

mod describe;

use std::fmt::Write;

use super::chart::{Chart, ChartRow, Kind, ticks};
use super::compare::factor;
use super::pair::{StagePair, pairs};
use super::render::millis;
use super::svg::{escape, round};
use describe::describe;

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");
/// Nothing but what stands in the page itself.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
const TOOLS: &str = "<div class=\"tools\" hidden><button data-act=\"fold\">Fold all</button>\
    <button data-act=\"unfold\">Unfold all</button><button data-act=\"in\">Zoom in (+)</button>\
    <button data-act=\"out\">Zoom out (−)</button><button data-act=\"left\">←</button>\
    <button data-act=\"right\">→</button><button data-act=\"all\">Whole start (0)</button></div>";

/// One line of the page.
struct Stage {
    label: String,
    name: String,
    inner: bool,
    kind: Kind,
    /// Once, or for each of two starts.
    sides: Vec<Side>,
    /// What stands between name and bars, as HTML.
    took: String,
    /// Beside the bar, and with the words.
    detail: String,
    /// What stands with the words on times.
    times: Vec<String>,
}

/// What one start has of it.
struct Side {
    pieces: Vec<(i64, i64)>,
    open: bool,
    mark: bool,
}

/// The page of one start.
#[must_use]
pub fn page(title: &str, chart: &Chart) -> String {
    let verdict =
        format!("{} · {} % of it explained by the stages below", verdict(chart), chart.covered_percent());
    let stages: Vec<Stage> = chart.rows.iter().map(stage).collect();
    let intro = format!("<h1>{}</h1><p>{verdict}</p>", escape(title));
    let drawn = Drawn { total: chart.total.max(1), ready: chart.ready, stages };
    document(title, &intro, &drawn)
}

/// The page of two starts.
#[must_use]
pub fn compare(a: (&str, &Chart), b: (&str, &Chart)) -> String {
    let line = |side: &str, (title, chart): (&str, &Chart)| {
        format!("<span class=\"key {side}\"></span>{}: {}<br>", escape(title), verdict(chart))
    };
    let title = format!("{} and {}", a.0, b.0);
    let times = factor(a.1.ready, b.1.ready);
    let times = if times.is_empty() { times } else { format!("The second took {times} of the first.") };
    let intro = format!("<h1>{}</h1><p>{}{}{times}</p>", escape(&title), line("a", a), line("b", b));
    let stages = pairs(a.1, b.1).iter().map(|pair| stage_of_pair(pair, [a.0, b.0])).collect();
    document(&title, &intro, &Drawn { total: a.1.total.max(b.1.total).max(1), ready: None, stages })
}

fn verdict(chart: &Chart) -> String {
    match chart.ready {
        Some(ready) => format!("ready after {}", millis(ready)),
        None => format!("not ready after {}", millis(chart.total)),
    }
}

fn stage(row: &ChartRow) -> Stage {
    let took = if row.open { format!("{}…", millis(row.took())) } else { millis(row.took()) };
    let label =
        if row.container.is_empty() { row.name.clone() } else { format!("[{}] {}", row.container, row.name) };
    Stage {
        label,
        name: row.name.clone(),
        inner: row.inner,
        kind: row.kind,
        sides: vec![Side { pieces: row.pieces.clone(), open: row.open, mark: row.mark }],
        took: if row.mark { String::new() } else { took.clone() },
        detail: row.detail.clone(),
        times: vec![match row.mark {
            true => format!("after {}", millis(row.from)),
            false => format!("{took}, from {} to {}", millis(row.from), millis(row.to)),
        }],
    }
}

fn stage_of_pair(pair: &StagePair, titles: [&str; 2]) -> Stage {
    let took = [pair.took(0), pair.took(1)];
    let show = |took: Option<i64>| took.map_or_else(|| "–".to_owned(), millis);
    let side = |pieces: &Option<Vec<(i64, i64)>>| Side {
        pieces: pieces.clone().unwrap_or_default(),
        open: false,
        mark: false,
    };
    let times = titles.iter().zip(took).map(|(title, took)| format!("{title}: {}", show(took))).collect();
    Stage {
        label: pair.label.clone(),
        name: pair.name.clone(),
        inner: pair.inner,
        kind: pair.kind,
        sides: pair.sides.iter().map(side).collect(),
        took: format!("{}<small>{} {}</small>", show(took[0]), show(took[1]), factor(took[0], took[1])),
        detail: String::new(),
        times,
    }
}

/// What is drawn, on an axis of `total` nanoseconds.
struct Drawn {
    total: i64,
    ready: Option<i64>,
    stages: Vec<Stage>,
}

fn document(title: &str, intro: &str, drawn: &Drawn) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
         <title>{}</title><style>{STYLE}</style></head><body>\n{intro}\n",
        escape(&format!("Gantry timeline: {title}"))
    );
    legend(&mut out, &drawn.stages);
    let _ = write!(out, "{TOOLS}\n<div class=\"chart\" data-total=\"{}\">\n", drawn.total);
    grid(&mut out, drawn);
    let mut stages = drawn.stages.iter().peekable();
    while let Some(stage) = stages.next() {
        let folds = stages.peek().is_some_and(|next| next.inner);
        if !folds {
            row(&mut out, stage, "div", drawn.total);
            continue;
        }
        out.push_str("<details open>");
        row(&mut out, stage, "summary", drawn.total);
        while let Some(inner) = stages.next_if(|next| next.inner) {
            row(&mut out, inner, "div", drawn.total);
        }
        out.push_str("</details>\n");
    }
    let _ = write!(out, "</div>\n<script>{SCRIPT}</script>\n</body></html>\n");
    out
}

fn legend(out: &mut String, stages: &[Stage]) {
    out.push_str("<div class=\"legend\">");
    for kind in super::svg::KINDS.into_iter().filter(|kind| stages.iter().any(|stage| stage.kind == *kind)) {
        let _ = write!(out, "<span><i class=\"{0}\"></i>{0}</span>", kind.word());
    }
    out.push_str("</div>\n");
}

/// The lines behind the bars.
fn grid(out: &mut String, drawn: &Drawn) {
    out.push_str("<div class=\"grid\" aria-hidden=\"true\">");
    for at in ticks(drawn.total, 7) {
        let part = part(at, drawn.total);
        let _ = write!(out, "<span style=\"--f:{part}\">{}</span>", round(at, drawn.total));
    }
    if let Some(ready) = drawn.ready {
        let part = part(ready, drawn.total);
        let _ = write!(out, "<span class=\"ready\" style=\"--f:{part}\"><b>ready</b></span>");
    }
    out.push_str("</div>\n");
}

fn row(out: &mut String, stage: &Stage, tag: &str, total: i64) {
    let (inner, focus) =
        (if stage.inner { " inner" } else { "" }, if tag == "div" { " tabindex=\"0\"" } else { "" });
    let open = if stage.sides.iter().any(|side| side.open) { " open" } else { "" };
    let two = if stage.sides.len() > 1 { " two" } else { "" };
    let _ = write!(
        out,
        "<{tag} class=\"row{inner}{open}\"{focus}><span class=\"name\">{}</span><span class=\"took\">{}</span><span class=\"track{two}\">",
        escape(&stage.label),
        stage.took
    );
    for (side, class) in stage.sides.iter().zip(["a", "b"]) {
        for (from, to) in &side.pieces {
            let (kind, from, wide) = (stage.kind.word(), part(*from, total), part(to - from, total));
            let _ = match side.mark {
                true => write!(out, "<i class=\"mark {kind}\" style=\"--f:{from}\"></i>"),
                false => write!(out, "<i class=\"bar {class} {kind}\" style=\"--f:{from};--w:{wide}\"></i>"),
            };
        }
    }
    note(out, stage, total);
    let _ =
        write!(out, "</span><span class=\"tip\"><b>{}</b>{}", escape(&stage.label), describe(&stage.name));
    for line in stage.times.iter().chain((!stage.detail.is_empty()).then_some(&stage.detail)) {
        let _ = write!(out, "<em>{}</em>", escape(line));
    }
    let _ = writeln!(out, "</span></{tag}>");
}

/// The detail, on the side of the bar that has more room; nowhere when neither has any.
fn note(out: &mut String, stage: &Stage, total: i64) {
    let begin = stage.sides.iter().flat_map(|side| &side.pieces).map(|piece| piece.0).min();
    let end = stage.sides.iter().flat_map(|side| &side.pieces).map(|piece| piece.1).max();
    let (Some(begin), Some(end), false) = (begin, end, stage.detail.is_empty()) else { return };
    let (before, behind) = (begin, total - end);
    if before.max(behind).saturating_mul(8) < total {
        return;
    }
    let place = if behind >= before {
        format!("left:calc({}*100% + 8px);right:0", part(end, total))
    } else {
        format!("right:calc({}*100% + 8px);left:0;text-align:right", part(total - begin, total))
    };
    let _ = write!(out, "<span class=\"note\" style=\"{place}\">{}</span>", escape(&stage.detail));
}

/// Of the whole, with six digits: a microsecond of a second.
fn part(at: i64, total: i64) -> String {
    let millionths = i128::from(at) * 1_000_000 / i128::from(total.max(1));
    format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Span;

    const MS: i64 = 1_000_000;

    fn span(name: &str, container: &str, (start, end): (i64, i64), detail: &str) -> Span {
        let (start, end) = (start * MS, end * MS);
        Span { name: name.into(), container: container.into(), start, end, detail: detail.into() }
    }

    #[test]
    fn hostile_text_stays_text_and_nothing_comes_from_elsewhere() {
        let spans = [span("image", "a<script>x", (1, 101), "<img src=x onerror=y>")];
        let chart = Chart::new(&spans, 0);
        for text in [page("<b>", &chart), compare(("<b>", &chart), ("\"x", &chart))] {
            assert!(
                !text.contains("<img") && !text.contains("<script>x") && !text.contains("<b>&"),
                "{text}"
            );
            assert_eq!(text.matches("<script>").count(), 1);
            for foreign in ["http://", "https://", "src=\"", "@import", "url("] {
                assert!(!text.contains(foreign), "{foreign}: {text}");
            }
        }
    }

    #[test]
    fn stages_within_a_stage_fold_and_say_what_they_are() {
        let spans = [
            span("sandbox", "", (0, 50), ""),
            span("sandbox.cni", "", (10, 20), "10.0.0.7"),
            span("volumes", "", (60, 70), ""),
            span("ready", "", (100, 100), ""),
        ];
        let text = page("default/web", &Chart::new(&spans, 0));
        assert_eq!(text.matches("<details open><summary").count(), 1, "{text}");
        let folded = text.split("</summary>").nth(1).unwrap().split("</details>").next().unwrap();
        assert!(folded.contains("sandbox.cni</span>") && !folded.contains("volumes</span>"), "{folded}");
        assert!(
            folded.contains(
                "Running the network plugins.<em>10.0 ms, from 10.0 ms to 20.0 ms</em><em>10.0.0.7"
            )
        );
        assert!(text.contains("ready after 100.0 ms · 60 % of it explained"), "{text}");
        assert!(text.contains("<span class=\"ready\" style=\"--f:1.000000\">"), "{text}");
    }

    #[test]
    fn two_starts_stand_side_by_side_on_one_axis() {
        let chart =
            |end| Chart::new(&[span("image", "web", (0, end), ""), span("ready", "", (end, end), "")], 0);
        let text = compare(("a", &chart(100)), ("b", &chart(50)));
        assert_eq!(text.matches("class=\"row").count(), 1, "{text}");
        assert!(text.contains("class=\"bar a image\" style=\"--f:0.000000;--w:1.000000\""), "{text}");
        assert!(text.contains("class=\"bar b image\" style=\"--f:0.000000;--w:0.500000\""), "{text}");
        assert!(text.contains("100.0 ms<small>50.0 ms 0.50x</small>"), "{text}");
        assert!(text.contains("The second took 0.50x of the first."), "{text}");
    }
}
