//! Spans as JSON, for `gantry timeline --json`. Owns the field names; never draws. Called
//! by the command line.

use serde::Serialize;

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
    fn an_open_span_has_no_end() {
        let span =
            Span { name: "image".into(), container: "web".into(), start: 5, end: 0, detail: String::new() };
        let value: serde_json::Value = serde_json::from_str(&to_json(&[span]).unwrap()).unwrap();
        assert_eq!(value, serde_json::json!([{"name": "image", "container": "web", "startUnixNanos": 5}]));
    }
}
