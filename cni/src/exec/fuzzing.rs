//! What must hold for anything that a plugin's program prints. Called by `crate::fuzzing`.

use super::{ErrorAnswer, stderr_suffix, text};

/// An error object, or words that are none.
pub(crate) fn check_result(stdout: &[u8]) {
    if let Ok(ErrorAnswer { code, msg, details }) = serde_json::from_slice(stdout) {
        assert!(msg.len() + details.len() <= 3 * stdout.len() && code.to_string().len() <= 10);
    }
    let words = stderr_suffix(&text(stdout));
    assert!(words.is_empty() || words.starts_with("; on stderr: "));
}
