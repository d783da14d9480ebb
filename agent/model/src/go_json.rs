//! JSON as Go's encoding/json writes it, for texts that others compare or hash. Pure. Called where
//! upstream's exact bytes count.

use serde::Serialize;

/// Escaped though they need not be. JSON has them within strings alone.
const ESCAPED: [(&str, &str); 5] =
    [("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u{2028}", "\\u2028"), ("\u{2029}", "\\u2029")];

/// In the order of the fields, without spaces.
///
/// # Errors
/// serde's.
pub fn text(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string(value)?;
    for (character, escaped) in ESCAPED {
        text = text.replace(character, escaped);
    }
    Ok(text)
}
