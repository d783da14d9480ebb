//! The waterfall as a web page: pictures, a table of every stage, nothing loaded from elsewhere.
//! Pure: charts in, text out. Called by `gantry timeline --html`.

use std::fmt::Write;

use super::chart::Chart;
use super::render::millis;
use super::svg::{escape, render_scaled};

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1080px;padding:0 1rem}\
svg{max-width:100%;height:auto}table{border-collapse:collapse;margin:1rem 0 2rem;width:100%}\
th,td{text-align:left;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8884;font-variant-numeric:tabular-nums}\
td.n,th.n{text-align:right}code{font-family:ui-monospace,monospace}td.i{padding-left:1.5rem}";

/// One page with all of `charts`, each under its title, on one time axis.
#[must_use]
pub fn page(charts: &[(String, Chart)]) -> String {
    let total = charts.iter().map(|(_, chart)| chart.total).max().unwrap_or(0);
    let titles: Vec<&str> = charts.iter().map(|(title, _)| title.as_str()).collect();
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title><style>{STYLE}</style></head><body>\n",
        escape(&format!("Gantry timeline: {}", titles.join(", ")))
    );
    for (title, chart) in charts {
        let _ = write!(out, "<section>{}", render_scaled(title, chart, total));
        table(&mut out, chart);
        out.push_str("</section>\n");
    }
    out.push_str("</body></html>\n");
    out
}

fn table(out: &mut String, chart: &Chart) {
    out.push_str("<details><summary>All stages</summary><table><thead><tr><th>Stage</th><th>Container</th><th class=\"n\">Start</th><th class=\"n\">Took</th><th>Detail</th></tr></thead><tbody>");
    for row in &chart.rows {
        let took = match (row.mark, row.open) {
            (true, _) => String::new(),
            (false, true) => format!("{}…", millis(row.took())),
            (false, false) => millis(row.took()),
        };
        let _ = write!(
            out,
            "<tr><td{}><code>{}</code></td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{took}</td><td>{}</td></tr>",
            if row.inner { " class=\"i\"" } else { "" },
            escape(&row.name),
            escape(&row.container),
            millis(row.from),
            escape(&row.detail)
        );
    }
    out.push_str("</tbody></table></details>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Span;

    #[test]
    fn two_pods_share_one_axis_and_hostile_text_stays_text() {
        let span = |end, detail: &str| Span {
            name: "image".into(),
            container: "web".into(),
            start: 1,
            end,
            detail: detail.into(),
        };
        let chart = |end| Chart::new(&[span(end, "<img src=x>")], 0);
        let text = page(&[("a".into(), chart(101)), ("b".into(), chart(51))]);
        assert!(!text.contains("<img"), "{text}");
        assert!(text.contains("width=\"660\"") && text.contains("width=\"330\""), "{text}");
        assert_eq!(text.matches("<section>").count(), 2);
    }
}
