//! Two starts, stage by stage. Owns which stages of both belong together; never draws. Pure: charts in, pairs out.
//! Called by [`super::compare`] and [`super::html`].

use super::chart::{Chart, Kind};

/// A stage of one start or of both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePair {
    /// The stage, with its container: `[web] image`, `[web | nginx] image` where they have other names.
    pub label: String,
    /// The stage alone.
    pub name: String,
    /// A stage within the one above.
    pub inner: bool,
    /// What it is about.
    pub kind: Kind,
    /// When it was under way in either start; none where there is no such stage. What occurs twice is one.
    pub sides: [Option<Vec<(i64, i64)>>; 2],
}

impl StagePair {
    /// How long it took there.
    #[must_use]
    pub fn took(&self, side: usize) -> Option<i64> {
        let pieces = self.sides.get(side)?.as_ref()?;
        Some(pieces.iter().map(|(from, to)| to - from).sum())
    }
}

/// Stages are matched by name and container. Containers that have no namesake in the other pod are matched by their place
/// among those. Stages of the second start alone stand behind the others, those within a stage behind the others within it.
#[must_use]
pub fn pairs(a: &Chart, b: &Chart) -> Vec<StagePair> {
    let names = containers(a, b);
    let mut groups: Vec<Vec<StagePair>> = Vec::new();
    for (side, chart) in [a, b].into_iter().enumerate() {
        let mut at = None;
        for row in chart.rows.iter().filter(|row| !row.mark) {
            let container = names.iter().find(|pair| pair[side] == Some(row.container.as_str()));
            let label = match container {
                Some([Some(a), Some(b)]) if a != b => format!("[{a} | {b}] {}", row.name),
                _ if row.container.is_empty() => row.name.clone(),
                _ => format!("[{}] {}", row.container, row.name),
            };
            let new = || StagePair {
                label: label.clone(),
                name: row.name.clone(),
                inner: row.inner,
                kind: row.kind,
                sides: [None, None],
            };
            if !row.inner || at.is_none() {
                let known = groups.iter().position(|group| group.first().is_some_and(|p| p.label == label));
                at = Some(known.unwrap_or_else(|| {
                    groups.push(Vec::new());
                    groups.len() - 1
                }));
            }
            let Some(group) = at.and_then(|at| groups.get_mut(at)) else { continue };
            let index = group.iter().position(|pair| pair.label == label).unwrap_or_else(|| {
                group.push(new());
                group.len() - 1
            });
            if let Some(pieces) = group.get_mut(index).and_then(|pair| pair.sides.get_mut(side)) {
                pieces.get_or_insert_default().extend(&row.pieces);
            }
        }
    }
    groups.into_iter().flatten().collect()
}

/// Whose stages belong together: the container of one pod and that of the other.
fn containers<'a>(a: &'a Chart, b: &'a Chart) -> Vec<[Option<&'a str>; 2]> {
    let of = |chart: &'a Chart| {
        let mut names: Vec<&str> = Vec::new();
        for row in chart.rows.iter().filter(|row| !row.container.is_empty()) {
            if !names.contains(&row.container.as_str()) {
                names.push(&row.container);
            }
        }
        names
    };
    let (left, right) = (of(a), of(b));
    let mut others = right.iter().filter(|name| !left.contains(name));
    let mut pairs: Vec<[Option<&str>; 2]> = Vec::new();
    for name in &left {
        let partner = if right.contains(name) { Some(name) } else { others.next() };
        pairs.push([Some(*name), partner.copied()]);
    }
    pairs.extend(others.map(|name| [None, Some(*name)]));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Span;

    fn span(name: &str, container: &str, start: i64, end: i64) -> Span {
        Span { name: name.into(), container: container.into(), start, end, detail: String::new() }
    }

    fn labels(a: &[Span], b: &[Span]) -> Vec<String> {
        let pairs = pairs(&Chart::new(a, 0), &Chart::new(b, 0));
        let side = |pair: &StagePair| match pair.sides {
            [Some(_), Some(_)] => "both",
            [Some(_), None] => "a",
            _ => "b",
        };
        pairs.iter().map(|pair| format!("{} {}", pair.label, side(pair))).collect()
    }

    #[test]
    fn containers_keep_their_names() {
        let a = [span("image", "web", 0, 9), span("image", "side", 1, 9)];
        let b = [span("image", "side", 0, 9), span("image", "web", 1, 9)];
        assert_eq!(labels(&a, &b), ["[web] image both", "[side] image both"]);
        let c = [span("image", "nginx", 0, 9), span("image", "side", 1, 9), span("image", "more", 2, 9)];
        assert_eq!(labels(&a, &c), ["[web | nginx] image both", "[side] image both", "[more] image b"]);
    }

    #[test]
    fn stages_within_a_stage_stay_there() {
        let a = [span("sandbox", "", 0, 50), span("sandbox.cni", "", 1, 9), span("volumes", "", 60, 70)];
        let b = [span("sandbox", "", 0, 50), span("sandbox.netns", "", 1, 9), span("cgroup", "", 55, 57)];
        assert_eq!(
            labels(&a, &b),
            ["sandbox both", "sandbox.cni a", "sandbox.netns b", "volumes a", "cgroup b"]
        );
    }

    #[test]
    fn what_occurs_twice_is_one() {
        let a = [span("container.start", "c", 0, 5), span("container.start", "c", 10, 12)];
        let pairs = pairs(&Chart::new(&a, 0), &Chart::new(&a[..1], 0));
        let [pair] = pairs.as_slice() else { panic!("{pairs:?}") };
        assert_eq!((pair.took(0), pair.took(1)), (Some(7), Some(5)));
    }
}
