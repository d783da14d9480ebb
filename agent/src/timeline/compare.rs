//! Two starts beside each other, stage by stage. Pure: charts in, text out. Called by
//! `gantry timeline --compare`.

use super::chart::{Chart, ChartRow};
use super::render::millis;

/// One line for each stage of either pod: how long it took there, how long here, and the factor
/// between them. Stages are matched by name and by the place of their container in the pod, because
/// containers of different pods may have different names.
#[must_use]
pub fn table(a: (&str, &Chart), b: (&str, &Chart)) -> String {
    let (left, right) = (durations_by_key(a.1), durations_by_key(b.1));
    let mut keys: Vec<&Key> = left.iter().map(|(key, _)| key).collect();
    keys.extend(right.iter().map(|(key, _)| key).filter(|key| left.iter().all(|(k, _)| k != *key)));
    let find = |list: &[(Key, i64)], key: &Key| list.iter().find(|(k, _)| k == key).map(|(_, took)| *took);
    let mut lines = vec![[String::from("STAGE"), a.0.to_owned(), b.0.to_owned(), String::from("B/A")]];
    for key in keys {
        lines.push(line(key.label(), find(&left, key), find(&right, key)));
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

#[derive(Debug, PartialEq, Eq)]
struct Key {
    name: String,
    /// Which of the pod's containers, in the order they first appear; 0 for the pod itself.
    container: usize,
    inner: bool,
}

impl Key {
    fn label(&self) -> String {
        let indent = if self.inner { "  " } else { "" };
        match self.container {
            0 => format!("{indent}{}", self.name),
            n => format!("{indent}[{n}] {}", self.name),
        }
    }
}

/// Durations by key; what occurs twice is summed.
fn durations_by_key(chart: &Chart) -> Vec<(Key, i64)> {
    let mut containers: Vec<&str> = Vec::new();
    let mut list: Vec<(Key, i64)> = Vec::new();
    for row in chart.rows.iter().filter(|row| !row.mark) {
        let ChartRow { name, container, inner, .. } = row;
        let place = if container.is_empty() {
            0
        } else {
            match containers.iter().position(|known| known == container) {
                Some(index) => index + 1,
                None => {
                    containers.push(container);
                    containers.len()
                }
            }
        };
        let key = Key { name: name.clone(), container: place, inner: *inner };
        match list.iter_mut().find(|(known, _)| *known == key) {
            Some((_, took)) => *took += row.took(),
            None => list.push((key, row.took())),
        }
    }
    list
}

fn line(stage: String, a: Option<i64>, b: Option<i64>) -> [String; 4] {
    let show = |took: Option<i64>| took.map_or_else(|| "-".to_owned(), millis);
    let factor = match (a, b) {
        (Some(a), Some(b)) if a > 0 => {
            let hundredths = i128::from(b) * 100 / i128::from(a);
            format!("{}.{:02}x", hundredths / 100, hundredths % 100)
        }
        _ => String::new(),
    };
    [stage, show(a), show(b), factor]
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
STAGE             a        b    B/A
[1] image  100.0 ms  50.0 ms  0.50x
sandbox     40.0 ms        -
volumes           -   1.0 ms
ready      120.0 ms  60.0 ms  0.50x
";
        assert_eq!(text, want);
    }
}
