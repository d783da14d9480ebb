//! A URL's query as pairs. Pure: owns the decoding; knows no parameter. Called by the handlers.

use super::route::decode;

/// All pairs, in order; what cannot be decoded is left out, as upstream does.
pub(super) fn pairs(query: &str) -> Vec<(String, String)> {
    let parts = query.split('&').filter(|part| !part.is_empty() && !part.contains(';'));
    let pairs = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
    let plain = |text: &str| decode(&text.replace('+', " "));
    pairs.filter_map(|(key, value)| Some((plain(key)?, plain(value)?))).collect()
}

/// All values of one key.
pub(super) fn all<'a>(pairs: &'a [(String, String)], key: &'a str) -> impl Iterator<Item = &'a str> {
    pairs.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
}

/// The first value of one key.
pub(super) fn first<'a>(pairs: &'a [(String, String)], key: &'a str) -> Option<&'a str> {
    all(pairs, key).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_with_blanks_and_signs() {
        let found = pairs("command=sh&command=-c&command=echo+a%2Bb%26&tty=1&bare&x=%zz&=");
        assert_eq!(all(&found, "command").collect::<Vec<_>>(), ["sh", "-c", "echo a+b&"]);
        assert_eq!(first(&found, "tty"), Some("1"));
        assert_eq!(first(&found, "bare"), Some(""));
        assert_eq!(first(&found, "x"), None);
    }
}
