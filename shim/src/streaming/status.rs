//! How a command ended, for the error channel: metav1.Status as JSON for clients of version 4 and 5, a
//! sentence for older ones. Owns the wording, which is upstream's. Pure. Used by `streaming::session`.

use serde::Serialize;

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionOutcome {
    /// Code 0, or an attach that ended.
    Success,
    /// Another exit code.
    Exit(i32),
    /// It never ran, or was lost; why.
    Failed(String),
}

/// Version of the remote command protocol, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Versions 1 to 3.
    Text,
    /// Versions 4 and 5.
    Json,
}

#[derive(Serialize)]
struct Status<'a> {
    status: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(skip_serializing_if = "is_zero")]
    code: i32,
}

#[derive(Serialize)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Serialize)]
struct Cause {
    reason: &'static str,
    message: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl SessionOutcome {
    /// What goes into the error channel.
    pub(crate) fn bytes(&self, style: Style) -> Vec<u8> {
        let message = match self {
            Self::Success => String::new(),
            Self::Exit(code) => {
                format!("command terminated with non-zero exit code: exit status {code}")
            }
            Self::Failed(why) => format!("Internal error occurred: {why}"),
        };
        if style == Style::Text {
            return message.into_bytes();
        }
        let (status, reason, details, code) = match self {
            Self::Success => ("Success", "", None, 0),
            Self::Exit(code) => {
                let causes = vec![Cause { reason: "ExitCode", message: code.to_string() }];
                ("Failure", "NonZeroExitCode", Some(Details { causes }), 0)
            }
            Self::Failed(_) => ("Failure", "InternalError", None, 500),
        };
        // A struct of strings and numbers serializes.
        serde_json::to_vec(&Status { status, message: &message, reason, details, code }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_upstreams() {
        let text = |outcome: SessionOutcome, style| String::from_utf8(outcome.bytes(style)).unwrap();
        // As k8s.io/cri-streaming v0.36.3 marshals its streamStatus.
        assert_eq!(text(SessionOutcome::Success, Style::Json), r#"{"status":"Success"}"#);
        assert_eq!(
            text(SessionOutcome::Exit(3), Style::Json),
            r#"{"status":"Failure","message":"command terminated with non-zero exit code: exit status 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#
        );
        assert_eq!(
            text(SessionOutcome::Failed("error executing command in container: no".into()), Style::Json),
            r#"{"status":"Failure","message":"Internal error occurred: error executing command in container: no","reason":"InternalError","code":500}"#
        );
        assert_eq!(text(SessionOutcome::Success, Style::Text), "");
        assert!(text(SessionOutcome::Exit(3), Style::Text).ends_with("exit status 3"));
    }
}
