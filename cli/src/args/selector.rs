//! `-l`: which labels a pod must have, in kubectl's form. Owns equality and existence; sets (`in`, `notin`) are refused.
//! Parsed by [`crate::main`].

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Every rule must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selector {
    /// As it was given.
    text: String,
    rules: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Is(String, String),
    /// Also when there is no such label.
    IsNot(String, String),
    Has(String),
    Lacks(String),
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("expected KEY=VALUE, KEY!=VALUE, KEY or !KEY, with commas between, not {text:?}");
        let rule = |part: &str| {
            let part = part.trim();
            let owned = |key: &str, value: &str| (key.trim().to_owned(), value.trim().to_owned());
            let (rule, key) = if let Some((key, value)) = part.split_once("!=") {
                let (key, value) = owned(key, value);
                (Requirement::IsNot(key.clone(), value), key)
            } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                let (key, value) = owned(key, value);
                (Requirement::Is(key.clone(), value), key)
            } else if let Some(key) = part.strip_prefix('!') {
                (Requirement::Lacks(key.trim().to_owned()), key.trim().to_owned())
            } else {
                (Requirement::Has(part.to_owned()), part.to_owned())
            };
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
            if key.is_empty() || !key.chars().all(plain) { Err(bad()) } else { Ok(rule) }
        };
        let rules = text.split(',').map(rule).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), rules })
    }
}

impl Selector {
    /// Whether a pod of these labels is meant.
    pub(crate) fn fits(&self, labels: &BTreeMap<String, String>) -> bool {
        self.rules.iter().all(|rule| match rule {
            Requirement::Is(key, value) => labels.get(key) == Some(value),
            Requirement::IsNot(key, value) => labels.get(key) != Some(value),
            Requirement::Has(key) => labels.contains_key(key),
            Requirement::Lacks(key) => !labels.contains_key(key),
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_fit_as_with_kubectl() {
        let labels = [("app".to_owned(), "web".to_owned()), ("tier".to_owned(), String::new())].into();
        let fits = |text: &str| text.parse::<Selector>().unwrap().fits(&labels);
        for text in
            ["app=web", "app==web", "app", "tier=", "app=web, !db", "app!=db", "none!=x", "tier,app=web"]
        {
            assert!(fits(text), "{text}");
        }
        for text in ["app=db", "!app", "db", "app=web,app!=web", "tier=x"] {
            assert!(!fits(text), "{text}");
        }
        for bad in ["", "=x", "app in (a)", "a,,b", "!", "app notin (a"] {
            assert!(bad.parse::<Selector>().is_err(), "{bad}");
        }
    }
}
