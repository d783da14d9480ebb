//! `$(VAR)` in env values, command and args. Pure: owns the expansion; never reads the
//! agent's own environment. Called by the manifest converter.

use std::collections::BTreeMap;

/// Replaces `$(NAME)` by its value; `$$` stands for one `$`; a reference to an unknown
/// name, and any other `$`, stays as written.
#[must_use]
pub fn expand(text: &str, known: &BTreeMap<&str, &str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, dollar) = rest.split_at(at);
        out.push_str(before);
        if let Some(after) = dollar.strip_prefix("$$") {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = dollar.strip_prefix("$(").and_then(|r| r.split_once(')')) {
            match known.get(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
            rest = dollar.get(1..).unwrap_or_default();
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_escapes_and_leftovers() {
        let known = BTreeMap::from([("A", "1"), ("B", "$(A)")]);
        for (text, want) in [
            ("x$(A)y", "x1y"),
            ("$(A)$(A)", "11"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(NOPE)", "$(NOPE)"),
            ("$(B)", "$(A)"),
            ("$", "$"),
            ("$A $(A", "$A $(A"),
            ("é$(A)é", "é1é"),
        ] {
            assert_eq!(expand(text, &known), want, "{text}");
        }
    }
}
