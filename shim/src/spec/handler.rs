//! Which runtime handler a request names. Pure. Owns the refusal of one that nobody has configured. Called by
//! `spec::container`, `sandbox::run` and the calls that name an image.

use super::Error;
use crate::config::handlers::{HandlerConfig, Handlers};

/// The handler of a request; None for the default one, which has no name.
///
/// # Errors
/// A name that is not known.
pub(crate) fn of<'a>(
    known: &'a Handlers,
    field: &'static str,
    name: &str,
) -> Result<Option<&'a HandlerConfig>, Error> {
    match known.get(name) {
        None if name.is_empty() => Ok(None),
        None => Err(Error::Invalid {
            field,
            value: name.to_owned(),
            expected: "no runtime for it is configured: add it to [handlers], use a name that Status tells, or leave it empty",
        }),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::handlers::parse_all;

    #[test]
    fn a_name_that_is_not_known_is_refused_and_no_name_is_the_default() {
        let known = parse_all(["a:type=gantry"]).unwrap();
        assert_eq!(of(&known, "runtime_handler", ""), Ok(None));
        assert!(of(&known, "runtime_handler", "a").unwrap().is_some());
        assert!(of(&known, "runtime_handler", "b").unwrap_err().to_string().contains("\"b\""));
    }
}
