//! Rust as words and marks, each with its line; comments are left out, and literals without what they say. Only as much
//! as `imports` needs: it never fails, since what it reads has been through the compiler.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// An identifier or a keyword.
    Word(&'a str),
    Mark(char),
    /// Text, a character, a number or a lifetime.
    Other,
}

/// All tokens of `text`, with lines that count from 1.
pub(crate) fn tokens(text: &str) -> Vec<(Token<'_>, usize)> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (token, length) = next(rest, first);
        let (taken, behind) = rest.split_at(length);
        if let Some(token) = token {
            found.push((token, line));
        }
        line += taken.matches('\n').count();
        rest = behind;
    }
    found
}

/// What `rest` begins with, and how many bytes that is. No token: blanks and comments.
fn next(rest: &str, first: char) -> (Option<Token<'_>>, usize) {
    if rest.starts_with("//") {
        return (None, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (None, comment(rest));
    }
    if let Some(length) = literal(rest) {
        return (Some(Token::Other), length);
    }
    if first.is_whitespace() {
        return (None, first.len_utf8());
    }
    let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    match word {
        0 => (Some(Token::Mark(first)), first.len_utf8()),
        _ if first.is_ascii_digit() => (Some(Token::Other), word),
        _ => (Some(Token::Word(&rest[..word])), word),
    }
}

/// Comments in comments count.
fn comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of the text, character or lifetime that `rest` begins with.
fn literal(rest: &str) -> Option<usize> {
    let prefix = rest.find(|c| !matches!(c, 'b' | 'c' | 'r')).unwrap_or(rest.len());
    let (letters, behind) = rest.split_at(prefix.min(2));
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    if letters.ends_with('r') && behind[hashes..].starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let open = letters.len() + hashes + 1;
        return Some(rest[open..].find(&end).map_or(rest.len(), |at| open + at + end.len()));
    }
    if behind.starts_with('"') {
        return Some(letters.len() + quoted(behind, '"'));
    }
    if behind.starts_with('\'') {
        let mut chars = behind.char_indices().skip(1);
        let (_, second) = chars.next()?;
        let third = chars.next();
        let character = second == '\\' || third.is_some_and(|(_, third)| third == '\'');
        // A lifetime: the mark alone, the name is a word that nobody asks for.
        return Some(if character { letters.len() + quoted(behind, '\'') } else { 1 });
    }
    None
}

/// From one quote to the next that no backslash stands before.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_marks_are_parted_from_what_is_only_said() {
        let text =
            "use a; // b\n/* c /* d */ e */ f(\"g\\\"h\", 'i', '\\'', r#\"j\"k\"#, b\"l\", 1_u8) -> &'m n";
        let words: Vec<(&str, usize)> = tokens(text)
            .into_iter()
            .filter_map(|(token, line)| match token {
                Token::Word(word) => Some((word, line)),
                _ => None,
            })
            .collect();
        assert_eq!(words, [("use", 1), ("a", 1), ("f", 2), ("m", 2), ("n", 2)]);
    }
}
