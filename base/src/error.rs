//! How an error is printed with its causes. Owns that form alone. Called at the edge of a program,
//! where an error becomes a line.

use std::error::Error;

/// The error and all its causes in one line, from the outermost to the innermost. A cause that its
/// error's text ends with stands there once.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let inner = cause.to_string();
        // Some libraries print the source in the error's own text.
        if !text.ends_with(&inner) {
            text.push_str(": ");
            text.push_str(&inner);
        }
        next = cause.source();
    }
    text
}

/// The innermost cause: of a library's error it is often the only one that says something.
#[must_use]
pub fn root_cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct ChainedError {
        text: &'static str,
        source: Option<Box<ChainedError>>,
    }

    fn steps(texts: &[&'static str]) -> ChainedError {
        let (first, rest) = texts.split_first().unwrap();
        ChainedError { text: first, source: (!rest.is_empty()).then(|| Box::new(steps(rest))) }
    }

    #[test]
    fn an_error_and_its_causes_are_one_line() {
        assert_eq!(chain(&steps(&["read the file"])), "read the file");
        assert_eq!(chain(&steps(&["start", "open /a", "denied"])), "start: open /a: denied");
    }

    #[test]
    fn a_cause_that_its_error_prints_stands_there_once() {
        assert_eq!(
            chain(&steps(&["connect: refused", "refused", "os error 111"])),
            "connect: refused: os error 111"
        );
    }

    #[test]
    fn the_root_cause_is_the_innermost() {
        assert_eq!(root_cause(&steps(&["start", "open /a", "denied"])).to_string(), "denied");
        assert_eq!(root_cause(&steps(&["denied"])).to_string(), "denied");
    }
}
