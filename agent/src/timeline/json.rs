//! Spans as JSON, for `gantry timeline --json`. Owns the field names; never draws. Called
//! by the command line.

use serde::{Deserialize, Serialize};

use super::Span;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonSpan<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    container: &'a str,
    start_unix_nanos: i64,
    /// Absent while the stage goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    end_unix_nanos: Option<i64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    detail: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnedSpan {
    name: String,
    #[serde(default)]
    container: String,
    start_unix_nanos: i64,
    #[serde(default)]
    end_unix_nanos: i64,
    #[serde(default)]
    detail: String,
}

/// Reads what [`to_json`] wrote.
///
/// # Errors
/// When the text is something else.
pub fn from_json(text: &str) -> Result<Vec<Span>, serde_json::Error> {
    let list: Vec<OwnedSpan> = serde_json::from_str(text)?;
    let spans = list.into_iter().map(|s| Span {
        name: s.name,
        container: s.container,
        start: s.start_unix_nanos,
        end: s.end_unix_nanos,
        detail: s.detail,
    });
    Ok(spans.collect())
}

/// An indented JSON array, in the given order.
///
/// # Errors
/// When JSON cannot hold a value, which no span has.
pub fn to_json(spans: &[Span]) -> Result<String, serde_json::Error> {
    let list: Vec<JsonSpan<'_>> = spans
        .iter()
        .map(|s| JsonSpan {
            name: &s.name,
            container: &s.container,
            start_unix_nanos: s.start,
            end_unix_nanos: (s.end != 0).then_some(s.end),
            detail: &s.detail,
        })
        .collect();
    serde_json::to_string_pretty(&list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_span_has_no_end_and_all_is_read_again() {
        let span =
            Span { name: "image".into(), container: "web".into(), start: 5, end: 0, detail: String::new() };
        let spans = [span];
        let text = to_json(&spans).unwrap();
        assert_eq!(from_json(&text).unwrap(), spans);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value, serde_json::json!([{"name": "image", "container": "web", "startUnixNanos": 5}]));
    }
}
