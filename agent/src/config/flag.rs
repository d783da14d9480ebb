//! The kubelet's command line, as upstream's flag library reads it. Pure: owns the table of flags,
//! how arguments become values, and the texts of what is wrong; never acts on a value. Called by
//! [`super`].

mod help;
mod table;
mod value;
mod words;

use std::collections::BTreeMap;

use serde_json::Value;

pub use self::help::usage;
pub use self::table::{Flag, all};
pub use self::words::words;

/// What a command line says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParsedFlags {
    /// By flag, in the order they came.
    values: BTreeMap<&'static str, Vec<String>>,
    /// What is not a flag.
    pub rest: Vec<String>,
    /// Lines for flags that are on their way out, as they came.
    pub deprecated: Vec<String>,
}

/// An argument that nothing can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("unknown flag: --{0}")]
    Unknown(String),
    #[error("unknown shorthand flag: {letter:?} in -{letters}")]
    UnknownLetter { letter: char, letters: String },
    #[error("flag needs an argument: --{0}")]
    NoValue(String),
    #[error("flag needs an argument: {letter:?} in -{letters}")]
    NoValueLetter { letter: char, letters: String },
    #[error("invalid argument {value:?} for {flag:?} flag: {reason}")]
    Invalid { value: String, flag: String, reason: String },
}

/// Reads arguments, without the name of the program.
///
/// # Errors
/// At the first argument that is wrong.
pub fn parse(arguments: &[String]) -> Result<ParsedFlags, Error> {
    let mut given = ParsedFlags::default();
    given.read(arguments).map(|()| given)
}

impl ParsedFlags {
    /// The same; what stands before a wrong argument has been read.
    ///
    /// # Errors
    /// As [`parse`].
    pub fn read(&mut self, arguments: &[String]) -> Result<(), Error> {
        let mut left = arguments.iter();
        while let Some(argument) = left.next() {
            if argument == "--" {
                self.rest.extend(left.by_ref().cloned());
            } else if let Some(long) = argument.strip_prefix("--") {
                self.long(long, argument, &mut left)?;
            } else if argument.len() > 1 && argument.starts_with('-') {
                self.letters(&argument[1..], &mut left)?;
            } else {
                self.rest.push(argument.clone());
            }
        }
        Ok(())
    }

    fn long<'a>(
        &mut self,
        text: &str,
        argument: &str,
        left: &mut impl Iterator<Item = &'a String>,
    ) -> Result<(), Error> {
        if text.starts_with(['-', '=']) {
            return Err(Error::Syntax(argument.to_owned()));
        }
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let flag = table::find_by_name(name).ok_or_else(|| Error::Unknown(name.to_owned()))?;
        match (value, flag.alone) {
            (Some(value), _) => self.set(flag, value),
            (None, "") => match left.next() {
                Some(value) => self.set(flag, value),
                None => Err(Error::NoValue(name.to_owned())),
            },
            (None, alone) => self.set(flag, alone),
        }
    }

    /// Several letters may stand together; what follows one that takes a value is its value.
    fn letters<'a>(
        &mut self,
        letters: &str,
        left: &mut impl Iterator<Item = &'a String>,
    ) -> Result<(), Error> {
        let mut rest = letters;
        while let Some(letter) = rest.chars().next() {
            let flag = table::find_by_letter(letter)
                .ok_or_else(|| Error::UnknownLetter { letter, letters: rest.to_owned() })?;
            let after = &rest[letter.len_utf8()..];
            if after.len() > 1
                && let Some(value) = after.strip_prefix('=')
            {
                return self.set(flag, value);
            }
            if !flag.alone.is_empty() {
                self.set(flag, flag.alone)?;
                rest = after;
            } else if !after.is_empty() {
                return self.set(flag, after);
            } else {
                return match left.next() {
                    Some(value) => self.set(flag, value),
                    None => Err(Error::NoValueLetter { letter, letters: rest.to_owned() }),
                };
            }
        }
        Ok(())
    }

    fn set(&mut self, flag: &'static Flag, value: &str) -> Result<(), Error> {
        value::check(flag, value).map_err(|reason| Error::Invalid {
            value: value.to_owned(),
            flag: if flag.letter.is_empty() {
                format!("--{}", flag.name)
            } else {
                format!("-{}, --{}", flag.letter, flag.name)
            },
            reason,
        })?;
        if !flag.deprecated.is_empty() {
            self.deprecated.push(format!("Flag --{} has been deprecated, {}", flag.name, flag.deprecated));
        }
        self.values.entry(flag.name).or_default().push(value.to_owned());
        Ok(())
    }

    /// The flags that were given.
    pub fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.values.keys().filter_map(|name| table::find_by_name(name))
    }

    /// What a flag has in the end, if it was given: the last value, or all where they add up.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<Value> {
        let values = self.values.get(name)?;
        value::json(table::find_by_name(name)?, values).ok()
    }

    /// A flag's text, or its default.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        let last = self.values.get(name).and_then(|values| values.last());
        last.cloned().unwrap_or_else(|| table::find_by_name(name).map_or("", |flag| flag.default).to_owned())
    }

    /// A flag that is on or off.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        self.value(name).and_then(|value| value.as_bool()).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests;
