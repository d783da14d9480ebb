//! The part of kubectl's JSONPath that a wait needs: keys, numbers, `[*]` and filters by equality. Pure. Called by
//! [`crate::wait`].

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// A path from an object's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JsonPath {
    /// As it was given.
    text: String,
    steps: Vec<PathStep>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    Key(String),
    /// Below zero from the end.
    Index(i64),
    All,
    /// Items in which these keys lead to this value.
    Filter(Vec<PathStep>, bool, String),
}

impl FromStr for JsonPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let inner = match text.strip_prefix('{') {
            Some(inner) => inner.strip_suffix('}').ok_or_else(|| bad(text, "`}` is missing"))?,
            None => text,
        };
        let inner = inner.trim();
        let steps = steps(inner.strip_prefix('$').unwrap_or(inner)).map_err(|why| bad(text, &why))?;
        if steps.is_empty() {
            Err(bad(text, "it leads nowhere"))
        } else {
            Ok(Self { text: text.to_owned(), steps })
        }
    }
}

fn bad(text: &str, why: &str) -> String {
    format!("expected a JSONPath such as '{{.status.phase}}', not {text:?}: {why}")
}

/// `.a.b[0]['c'][?(@.d=="e")]`; the first dot may be left out.
fn steps(text: &str) -> Result<Vec<PathStep>, String> {
    let (mut steps, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = closing(inner).ok_or("`]` is missing")?;
            let (within, after) = inner.split_at(end);
            steps.push(parse_bracket(within.trim())?);
            rest = after.get(1..).unwrap_or_default();
            continue;
        }
        if !steps.is_empty() && !rest.starts_with('.') {
            return Err(format!("{rest:?} follows no dot"));
        }
        let (key, after) = key(rest.strip_prefix('.').unwrap_or(rest));
        match key.as_str() {
            "" if after.is_empty() || !after.starts_with('[') => return Err("a name is missing".to_owned()),
            "" => {}
            "*" => steps.push(PathStep::All),
            _ => steps.push(PathStep::Key(key)),
        }
        rest = after;
    }
    Ok(steps)
}

/// Where the bracket ends that was open before `text`, quotes left out.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (None, ']') => return Some(at),
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), letter) if open == letter => quote = None,
            _ => {}
        }
    }
    None
}

/// The name at the beginning, with `\.` for a dot in it, and what follows.
fn key(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '.' | '[' => return (name, text.get(at..).unwrap_or_default()),
            '\\' => name.extend(letters.next().map(|(_, escaped)| escaped)),
            letter => name.push(letter),
        }
    }
    (name, "")
}

fn parse_bracket(text: &str) -> Result<PathStep, String> {
    if text == "*" {
        return Ok(PathStep::All);
    }
    if let Some(name) = parse_quoted(text) {
        return Ok(PathStep::Key(name.to_owned()));
    }
    if let Ok(index) = text.parse() {
        return Ok(PathStep::Index(index));
    }
    let filter = text.strip_prefix("?(").and_then(|inner| inner.strip_suffix(')'));
    let filter = filter.ok_or_else(|| format!("[{text}] is no number, name or filter"))?;
    let (path, equal, value) = match (filter.split_once("=="), filter.split_once("!=")) {
        (Some((path, value)), _) => (path, true, value),
        (None, Some((path, value))) => (path, false, value),
        (None, None) => return Err(format!("[{text}] compares nothing by == or !=")),
    };
    let path = path.trim().strip_prefix('@').ok_or_else(|| format!("[{text}] does not begin with @"))?;
    let value = value.trim();
    Ok(PathStep::Filter(steps(path)?, equal, parse_quoted(value).unwrap_or(value).to_owned()))
}

fn parse_quoted(text: &str) -> Option<&str> {
    ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
}

impl JsonPath {
    /// All that it leads to.
    pub(crate) fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        walk(&self.steps, root)
    }
}

fn walk<'a>(steps: &[PathStep], root: &'a Value) -> Vec<&'a Value> {
    steps.iter().fold(vec![root], |at, step| at.into_iter().flat_map(|value| next(step, value)).collect())
}

fn next<'a>(step: &PathStep, value: &'a Value) -> Vec<&'a Value> {
    let children = || match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(map) => map.values().collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    match step {
        PathStep::Key(key) => value.get(key).into_iter().collect(),
        PathStep::Index(index) => {
            let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let from_end = || items.len().checked_sub(usize::try_from(index.unsigned_abs()).ok()?);
            let at = usize::try_from(*index).ok().or_else(from_end);
            at.and_then(|at| items.get(at)).into_iter().collect()
        }
        PathStep::All => children(),
        PathStep::Filter(path, equal, wanted) => {
            let fits =
                |child: &&Value| walk(path, child).iter().any(|found| text(found) == *wanted) == *equal;
            children().into_iter().filter(fits).collect()
        }
    }
}

/// A value as kubectl compares it.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_where_kubectls_do() {
        let pod = json!({ "status": { "phase": "Running", "n": 3, "conditions": [
            { "type": "Ready", "status": "True" }, { "type": "Initialized", "status": "False" },
        ] }, "metadata": { "annotations": { "a.b/c": "x" } } });
        let found = |path: &str| {
            let path: JsonPath = path.parse().unwrap();
            path.find(&pod).into_iter().map(text).collect::<Vec<_>>().join(",")
        };
        for (path, want) in [
            ("{.status.phase}", "Running"),
            ("status.phase", "Running"),
            ("{$.status.n}", "3"),
            ("{.status.conditions[0].type}", "Ready"),
            ("{.status.conditions[-1].type}", "Initialized"),
            ("{.status.conditions[*].status}", "True,False"),
            ("{.status.conditions[?(@.type==\"Ready\")].status}", "True"),
            ("{.status.conditions[?(@.type!='Ready')].status}", "False"),
            ("{.metadata.annotations.a\\.b/c}", "x"),
            ("{.metadata.annotations['a.b/c']}", "x"),
            ("{.status.none}", ""),
            ("{.status.conditions[7]}", ""),
        ] {
            assert_eq!(found(path), want, "{path}");
        }
        for bad in
            ["", "{}", "{.a", "{.a[}", "{.a[x]}", "{.a..b}", "{.a[?(type==1)]}", "{.a[?(@.b)]}", "{.a[0]b}"]
        {
            assert!(bad.parse::<JsonPath>().is_err(), "{bad}");
        }
    }
}
