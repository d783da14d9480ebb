//! Two starts beside each other, stage by stage. Pure: charts in, text out. Called by
//! `gantry timeline --compare`.

use super::chart::Chart;
use super::pair::pairs;
use super::render::millis;

/// One line for each stage of either pod: how long it took there, how long here, and the factor
/// between them.
#[must_use]
pub fn table(a: (&str, &Chart), b: (&str, &Chart)) -> String {
    let mut lines = vec![[String::from("STAGE"), a.0.to_owned(), b.0.to_owned(), String::from("B/A")]];
    for pair in pairs(a.1, b.1) {
        let label = format!("{}{}", if pair.inner { "  " } else { "" }, pair.label);
        lines.push(line(label, pair.took(0), pair.took(1)));
    }
    lines.push(line("ready".to_owned(), a.1.ready, b.1.ready));
    let width = |column: usize| {
        lines.iter().filter_map(|l| l.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2), width(3)];
    let mut out = String::new();
    for [stage, left, right, factor] in &lines {
        let text = format!(
            "{stage:<0$}  {left:>1$}  {right:>2$}  {factor:>3$}",
            widths[0], widths[1], widths[2], widths[3]
        );
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

fn line(stage: String, a: Option<i64>, b: Option<i64>) -> [String; 4] {
    let show = |took: Option<i64>| took.map_or_else(|| "-".to_owned(), millis);
    [stage, show(a), show(b), factor(a, b)]
}

/// `0.50x`: how much longer the second took; empty where one of both is missing.
pub(super) fn factor(a: Option<i64>, b: Option<i64>) -> String {
    match (a, b) {
        (Some(a), Some(b)) if a > 0 => {
            let hundredths = i128::from(b) * 100 / i128::from(a);
            format!("{}.{:02}x", hundredths / 100, hundredths % 100)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Span;

    fn span(name: &str, container: &str, start: i64, end: i64) -> Span {
        let ms = 1_000_000;
        Span {
            name: name.into(),
            container: container.into(),
            start: start * ms,
            end: end * ms,
            detail: String::new(),
        }
    }

    #[test]
    fn stages_are_matched_though_containers_have_other_names() {
        let a = [span("image", "web", 0, 100), span("sandbox", "", 0, 40), span("ready", "", 120, 120)];
        let b = [span("image", "nginx", 5, 55), span("volumes", "", 5, 6), span("ready", "", 65, 65)];
        let text = table(("a", &Chart::new(&a, 0)), ("b", &Chart::new(&b, 0)));
        let want = "\
STAGE                       a        b    B/A
[web | nginx] image  100.0 ms  50.0 ms  0.50x
sandbox               40.0 ms        -
volumes                     -   1.0 ms
ready                120.0 ms  60.0 ms  0.50x
";
        assert_eq!(text, want);
    }
}
