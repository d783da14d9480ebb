//! Which runtime handlers there are: what a pod's `runtimeClassName` ends up as. Owns the forms of a handler and how
//! one is written (docs/adr/0029). Read from the command line and the configuration file by `cli`; what a handler of
//! type `oci` does is `handler`'s.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum HandlerConfig {
    /// The monitor's own containers, with another default.
    Gantry {
        /// As the flag of that name.
        unset_seccomp_profile: Option<String>,
    },
    /// Containers made by a program with the command line of the OCI runtimes.
    Oci {
        /// Absolute.
        path: PathBuf,
        /// Where it keeps what it knows of its containers; below the state folder when not given.
        root: Option<PathBuf>,
    },
}

/// By name; the default one, `""`, is not among them.
pub type Handlers = BTreeMap<String, HandlerConfig>;

/// A handler that can't be.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("{0:?} is no handler: write NAME:type=oci,path=/PROGRAM or NAME:type=gantry")]
    Form(String),
    #[error(
        "handler {0:?}: a name has at most 63 lower-case letters, digits, - and ., and begins and ends with a letter or digit"
    )]
    Name(String),
    #[error("handler {name:?}: type {kind:?} is unknown: use oci or gantry")]
    Type { name: String, kind: String },
    #[error("handler {name:?}: {key:?} is no key of type {kind}")]
    Key { name: String, key: String, kind: &'static str },
    #[error("handler {name:?}: {key} is missing")]
    Missing { name: String, key: &'static str },
    #[error("handler {name:?}: {key} {value:?} must be an absolute path")]
    Path { name: String, key: &'static str, value: String },
    #[error("handler {0:?} is there twice")]
    Twice(String),
}

/// Reads `NAME:key=value,…`, as the flag has it.
///
/// # Errors
/// What is wrong, by handler and key.
pub fn parse(text: &str) -> Result<(String, HandlerConfig), Error> {
    let form = || Error::Form(text.to_owned());
    let (name, rest) = text.split_once(':').ok_or_else(form)?;
    check_name(name)?;
    let mut keys = BTreeMap::new();
    for pair in rest.split(',') {
        let (key, value) = pair.split_once('=').ok_or_else(form)?;
        keys.insert(key, value);
    }
    let missing = |key| Error::Missing { name: name.to_owned(), key };
    let kind = keys.remove("type").ok_or_else(|| missing("type"))?;
    let handler = match kind {
        "oci" => HandlerConfig::Oci {
            path: absolute(name, "path", keys.remove("path").ok_or_else(|| missing("path"))?)?,
            root: keys.remove("root").map(|root| absolute(name, "root", root)).transpose()?,
        },
        "gantry" => HandlerConfig::Gantry {
            unset_seccomp_profile: keys.remove("unset_seccomp_profile").map(str::to_owned),
        },
        other => return Err(Error::Type { name: name.to_owned(), kind: other.to_owned() }),
    };
    let kind = if matches!(handler, HandlerConfig::Oci { .. }) { "oci" } else { "gantry" };
    match keys.into_keys().next() {
        Some(key) => Err(Error::Key { name: name.to_owned(), key: key.to_owned(), kind }),
        None => Ok((name.to_owned(), handler)),
    }
}

/// All of a command line or file; a later one of a name does not replace the earlier.
///
/// # Errors
/// As `parse`, or a name that is there twice.
pub fn parse_all<'a>(handlers: impl IntoIterator<Item = &'a str>) -> Result<Handlers, Error> {
    let mut all = Handlers::new();
    for text in handlers {
        let (name, handler) = parse(text)?;
        if all.insert(name.clone(), handler).is_some() {
            return Err(Error::Twice(name));
        }
    }
    Ok(all)
}

/// A RuntimeClass' handler is a DNS label; dots do no harm.
fn check_name(name: &str) -> Result<(), Error> {
    let plain = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let inner = name.bytes().all(|letter| plain(letter) || matches!(letter, b'-' | b'.'));
    let ends = [name.bytes().next(), name.bytes().last()];
    if inner && name.len() <= 63 && ends.into_iter().all(|end| end.is_some_and(plain)) {
        Ok(())
    } else {
        Err(Error::Name(name.to_owned()))
    }
}

fn absolute(name: &str, key: &'static str, value: &str) -> Result<PathBuf, Error> {
    let path = Path::new(value);
    let plain = path.is_absolute() && !path.components().any(|part| part.as_os_str() == "..");
    if plain {
        Ok(path.to_owned())
    } else {
        Err(Error::Path { name: name.to_owned(), key, value: value.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_read_from_its_words() {
        let (name, handler) = parse("runc:type=oci,path=/usr/sbin/runc,root=/run/x").unwrap();
        let expected = HandlerConfig::Oci { path: "/usr/sbin/runc".into(), root: Some("/run/x".into()) };
        assert_eq!((name.as_str(), handler), ("runc", expected));
        let strict = parse("strict:type=gantry,unset_seccomp_profile=runtime/default").unwrap();
        assert_eq!(
            strict.1,
            HandlerConfig::Gantry { unset_seccomp_profile: Some("runtime/default".to_owned()) }
        );
        assert!(parse("plain:type=gantry").is_ok());
    }

    #[test]
    fn what_is_wrong_is_told_by_name_and_key() {
        for (text, words) in [
            ("runc", "is no handler"),
            ("runc:type", "is no handler"),
            ("Runc:type=gantry", "a name has"),
            (":type=gantry", "a name has"),
            ("-x:type=gantry", "a name has"),
            ("x:path=/a", "handler \"x\": type is missing"),
            ("x:type=oci", "handler \"x\": path is missing"),
            ("x:type=oci,path=runc", "path \"runc\" must be an absolute path"),
            ("x:type=oci,path=/a/../b", "must be an absolute path"),
            ("x:type=oci,path=/a,systemd_cgroup=true", "\"systemd_cgroup\" is no key of type oci"),
            ("x:type=gantry,path=/a", "\"path\" is no key of type gantry"),
            ("x:type=kata", "type \"kata\" is unknown"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert_eq!(parse_all(["a:type=gantry", "a:type=gantry"]), Err(Error::Twice("a".to_owned())));
    }
}
