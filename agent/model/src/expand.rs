//! `$(VAR)` in env values, command and args. Pure: owns the expansion; never reads the
//! agent's own environment. Called by the manifest converter.

use std::collections::{BTreeMap, BTreeSet};

/// Replaces `$(NAME)` by its value; `$$` stands for one `$`; a reference to an unknown
/// name, and any other `$`, stays as written.
#[must_use]
pub fn expand(text: &str, known: &BTreeMap<&str, &str>) -> String {
    let known = known.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    // Text put together from text.
    String::from_utf8_lossy(&expand_bytes(text, &known)).into_owned()
}

/// The same with values that need not be text.
#[must_use]
pub fn expand_bytes(text: &str, known: &BTreeMap<&str, &[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
            Piece::Reference(name) => match known.get(name) {
                Some(value) => out.extend_from_slice(value),
                None => out.extend_from_slice(format!("$({name})").as_bytes()),
            },
        }
    }
    out
}

/// The names that the text refers to and nobody knows.
#[must_use]
pub fn unknown<'a>(text: &'a str, known: &BTreeMap<&str, &str>) -> BTreeSet<&'a str> {
    let names = pieces(text).into_iter().filter_map(|piece| match piece {
        Piece::Reference(name) => Some(name),
        Piece::Text(_) => None,
    });
    names.filter(|name| !known.contains_key(name)).collect()
}

enum Piece<'a> {
    Text(&'a str),
    Reference(&'a str),
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, dollar) = rest.split_at(at);
        pieces.push(Piece::Text(before));
        if let Some(after) = dollar.strip_prefix("$$") {
            pieces.push(Piece::Text("$"));
            rest = after;
        } else if let Some((name, after)) = dollar.strip_prefix("$(").and_then(|r| r.split_once(')')) {
            pieces.push(Piece::Reference(name));
            rest = after;
        } else {
            pieces.push(Piece::Text("$"));
            rest = dollar.get(1..).unwrap_or_default();
        }
    }
    pieces.push(Piece::Text(rest));
    pieces
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
