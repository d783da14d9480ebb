//! What is wrong with a text that is no YAML, as people read it: where, why, and the lines around. Pure.
//! Called by [`super`].

use std::fmt;

/// Lines before the faulty one that are shown.
const BEFORE: usize = 2;
/// Of a line.
const CHARS: usize = 120;

/// The first fault of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlFault {
    /// Line and column, from 1; none when nobody knows.
    place: Option<(u64, u64)>,
    why: String,
    /// The faulty line and those before it, each with its number.
    excerpt: Vec<(usize, String)>,
}

impl YamlFault {
    pub(super) fn new(error: &serde_saphyr::Error, text: &str) -> Self {
        let place = error.location().map(|at| (at.line(), at.column())).filter(|(line, _)| *line > 0);
        let told = error.render_with_options(serde_saphyr::render_options! {
            snippets: serde_saphyr::SnippetMode::Off,
        });
        let why = match place {
            Some((line, column)) => {
                told.strip_suffix(&format!(" at line {line}, column {column}")).unwrap_or(&told).to_owned()
            }
            None => told,
        };
        let excerpt = match place.and_then(|(line, _)| usize::try_from(line).ok()) {
            Some(line) => excerpt(text, line),
            None => Vec::new(),
        };
        Self { place, why: clean(&why), excerpt }
    }

    /// `line 8, column 4: not valid YAML: did not find expected key`.
    pub(super) fn on_one_line(&self) -> String {
        match self.place {
            Some((line, column)) => format!("line {line}, column {column}: not valid YAML: {}", self.why),
            None => format!("not valid YAML: {}", self.why),
        }
    }
}

/// What follows the file's name.
impl fmt::Display for YamlFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": not valid YAML: {}", self.why)?;
        let Some((last, _)) = self.excerpt.last() else { return Ok(()) };
        let margin = last.to_string().len();
        for (number, line) in &self.excerpt {
            write!(f, "\n{number:>margin$} | {line}")?;
        }
        match self.place.and_then(|(_, column)| usize::try_from(column).ok()) {
            Some(column) if column <= CHARS => write!(f, "\n{:margin$} | {:>column$}", "", "^"),
            _ => Ok(()),
        }
    }
}

fn excerpt(text: &str, line: usize) -> Vec<(usize, String)> {
    let cut = |text: &str| clean(text).chars().take(CHARS).collect::<String>();
    let first = line.saturating_sub(BEFORE).max(1);
    let lines = text.lines().enumerate().skip(first - 1).take(line + 1 - first);
    lines.map(|(index, text)| (index + 1, cut(text).trim_end().to_owned())).collect()
}

/// A tab counts as one column, as where the fault is told.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse_text;

    #[test]
    fn a_fault_is_told_once_with_its_place_and_its_line() {
        let text = "kind: Pod\nspec:\n  containers:\n  - name: x\n   image: y\n";
        let error = parse_text(Path::new("m/typo.yaml"), text).unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with("m/typo.yaml:5:"), "{said}");
        assert_eq!(said.matches("not valid YAML").count(), 1, "{said}");
        assert_eq!(said.matches("did not find expected").count(), 1, "{said}");
        assert!(!said.contains("<input>") && !said.contains("at line"), "{said}");
        assert!(said.contains("\n5 |    image: y\n"), "{said}");
        assert!(std::error::Error::source(&error).is_none());
        let within = error.within_file();
        assert!(within.starts_with("line 5, column ") && !within.contains('\n'), "{within}");
        assert!(!within.contains("typo.yaml"), "{within}");
    }

    #[test]
    fn other_faults_of_a_file_do_not_name_it_twice() {
        let error = parse_text(Path::new("m/a.yaml"), "kind: Job\napiVersion: batch/v1\n").unwrap_err();
        assert!(error.to_string().starts_with("m/a.yaml: document 1: kind Job"), "{error}");
        assert!(error.within_file().starts_with("document 1: kind Job"), "{}", error.within_file());
        let text = "kind: Pod\napiVersion: v1\nspec: {contaners: []}\n";
        let within = parse_text(Path::new("m/a.yaml"), text).unwrap_err().within_file();
        assert!(within.starts_with("line 3, column 8: spec.contaners: unknown field"), "{within}");
    }

    #[test]
    fn control_characters_of_a_file_do_not_reach_the_terminal() {
        let said = parse_text(Path::new("x"), "a: [\u{1b}[2J\n").unwrap_err().to_string();
        assert!(!said.contains('\u{1b}'), "{said}");
    }
}
