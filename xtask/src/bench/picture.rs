//! Bars of seconds, by what was measured and by whom, as one self-contained SVG: no scripts, no fonts from elsewhere.
//! Pure: numbers in, text out. Called by `bench pull --svg`.

use std::fmt::Write;

const BAR: usize = 16;
const GAP: usize = 26;
const HEAD: usize = 30;
const TOP: usize = 46;
const LABELS: f64 = 170.0;
const BARS: f64 = 560.0;
const WIDTH: usize = 820;

/// Light and dark: the reader's setting decides.
const STYLE: &str = "\
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#24292f}\
.title{font-size:15px;font-weight:600}.head{font-weight:600}.bg{fill:#ffffff}.own{fill:#0969da}.peer{fill:#8c959f}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.bg{fill:#0d1117}.own{fill:#4493f8}.peer{fill:#6e7681}}";

/// What was measured, and seconds by side.
pub(super) type BarGroup = (String, Vec<(String, f64)>);

/// The whole document. Each group has an axis of its own, since an image of 2 GB would leave nothing of the others.
pub(super) fn bars(title: &str, groups: &[BarGroup]) -> String {
    let height = TOP + groups.iter().map(|(_, rows)| HEAD + rows.len() * BAR + GAP).sum::<usize>();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\
         <style>{STYLE}</style><rect class=\"bg\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"16\" y=\"28\">{}</text>\n",
        escape(title)
    );
    let mut y = TOP;
    for (name, rows) in groups {
        y += HEAD - BAR;
        put(&mut out, format_args!("<text class=\"head\" x=\"16\" y=\"{y}\">{}</text>\n", escape(name)));
        y += BAR;
        let most = rows.iter().map(|(_, seconds)| *seconds).fold(f64::MIN_POSITIVE, f64::max);
        for (index, (side, seconds)) in rows.iter().enumerate() {
            let class = if index == 0 { "own" } else { "peer" };
            let (width, base) = ((seconds / most * BARS).max(1.0), y + BAR - 4);
            put(
                &mut out,
                format_args!(
                    "<text x=\"16\" y=\"{base}\">{}</text><rect class=\"{class}\" x=\"{LABELS}\" y=\"{y}\" width=\"{width:.1}\" \
                     height=\"{}\"/><text x=\"{:.1}\" y=\"{base}\">{}</text>\n",
                    escape(side),
                    BAR - 3,
                    LABELS + width + 6.0,
                    shown(*seconds)
                ),
            );
            y += BAR;
        }
        y += GAP;
    }
    out.push_str("</svg>\n");
    out
}

/// Three digits that say something.
fn shown(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.1 => format!("{:.1} ms", seconds * 1e3),
        seconds if seconds < 10.0 => format!("{seconds:.2} s"),
        seconds => format!("{seconds:.1} s"),
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String can't fail.
    let _ = out.write_fmt(text);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_of_a_group_fills_its_axis() {
        let rows = vec![("gantry".to_owned(), 0.5), ("peer <1>".to_owned(), 2.0)];
        let text = bars("a & b", &[("one".to_owned(), rows), ("none".to_owned(), Vec::new())]);
        assert!(text.contains("width=\"140.0\"") && text.contains("width=\"560.0\""), "{text}");
        assert!(text.contains("a &amp; b") && text.contains("peer &lt;1&gt;"), "{text}");
        assert_eq!(text.matches("class=\"own\"").count(), 1);
    }

    #[test]
    fn seconds_keep_three_digits() {
        let all = [0.0021, 0.4567, 7.123, 12.34].map(shown);
        assert_eq!(all, ["2.1 ms", "0.46 s", "7.12 s", "12.3 s"]);
    }
}
