//! What is wrong with a field, in the words of Kubernetes' validation. Owns the error and short
//! ways to make one; never reads a manifest. Called by every converter of [`super`]. Pure.

use std::fmt::Display;

use gantry_model::quantity::QuantityError;

/// What is wrong with a field; each starts with its path from the document's root.
#[derive(Debug, thiserror::Error)]
pub enum FieldError {
    #[error("{field}: unknown field{hint}")]
    Unknown { field: String, hint: String },
    #[error("{field}: wrong type")]
    Type {
        field: String,
        #[source]
        source: serde_json::Error,
    },
    /// Known to Kubernetes, but it would not be honoured here.
    #[error("{field} is not supported yet: remove it")]
    Unsupported { field: String },
    /// Like `Unsupported`, with what to do instead.
    #[error("{field} is not supported yet: {remedy}")]
    UnsupportedBut { field: String, remedy: &'static str },
    #[error("{field}: Required value{detail}")]
    Required { field: String, detail: String },
    #[error("{field}: Invalid value: {value}: {detail}")]
    Invalid { field: String, value: String, detail: String },
    #[error("{field}: Unsupported value: {value:?}: supported values: {supported}")]
    Value { field: String, value: String, supported: String },
    #[error("{field}: Not found: {value:?}")]
    NotFound { field: String, value: String },
    #[error("{field}: Forbidden: {detail}")]
    Forbidden { field: String, detail: String },
    #[error("{field}: Too long: may not be more than {max} bytes")]
    TooLong { field: String, max: usize },
    #[error("{field}: Duplicate value: {value:?}")]
    Duplicate { field: String, value: String },
    #[error("{field}")]
    Quantity {
        field: String,
        #[source]
        source: QuantityError,
    },
}

impl FieldError {
    /// Its path from the document's root.
    pub(super) fn field(&self) -> &str {
        match self {
            Self::Unknown { field, .. }
            | Self::Type { field, .. }
            | Self::Unsupported { field }
            | Self::UnsupportedBut { field, .. }
            | Self::Required { field, .. }
            | Self::Invalid { field, .. }
            | Self::Value { field, .. }
            | Self::NotFound { field, .. }
            | Self::Forbidden { field, .. }
            | Self::TooLong { field, .. }
            | Self::Duplicate { field, .. }
            | Self::Quantity { field, .. } => field,
        }
    }

    pub(super) fn field_mut(&mut self) -> &mut String {
        match self {
            Self::Unknown { field, .. }
            | Self::Type { field, .. }
            | Self::Unsupported { field }
            | Self::UnsupportedBut { field, .. }
            | Self::Required { field, .. }
            | Self::Invalid { field, .. }
            | Self::Value { field, .. }
            | Self::NotFound { field, .. }
            | Self::Forbidden { field, .. }
            | Self::TooLong { field, .. }
            | Self::Duplicate { field, .. }
            | Self::Quantity { field, .. } => field,
        }
    }
}

/// Who has written what is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ManifestSource {
    /// A person: all of it is checked, and what needs an API server is refused.
    #[default]
    File,
    /// An API server: it has checked everything and filled in its defaults.
    Api,
}

impl ManifestSource {
    pub(super) fn is_file(self) -> bool {
        self == Self::File
    }
}

pub(super) type Result<T> = std::result::Result<T, FieldError>;

pub(super) fn required(field: impl Display) -> FieldError {
    FieldError::Required { field: field.to_string(), detail: String::new() }
}

pub(super) fn required_because(field: impl Display, detail: &str) -> FieldError {
    FieldError::Required { field: field.to_string(), detail: format!(": {detail}") }
}

/// A text that breaks a rule; it is shown in quotes.
pub(super) fn invalid(field: impl Display, value: &str, detail: impl Display) -> FieldError {
    FieldError::Invalid { field: field.to_string(), value: format!("{value:?}"), detail: detail.to_string() }
}

/// A number or boolean that breaks a rule; it is shown as it is.
pub(super) fn invalid_plain(field: impl Display, value: impl Display, detail: impl Display) -> FieldError {
    FieldError::Invalid { field: field.to_string(), value: value.to_string(), detail: detail.to_string() }
}

pub(super) fn forbidden(field: impl Display, detail: &str) -> FieldError {
    FieldError::Forbidden { field: field.to_string(), detail: detail.to_owned() }
}

pub(super) fn not_found(field: impl Display, value: &str) -> FieldError {
    FieldError::NotFound { field: field.to_string(), value: value.to_owned() }
}

pub(super) fn duplicate(field: impl Display, value: &str) -> FieldError {
    FieldError::Duplicate { field: field.to_string(), value: value.to_owned() }
}

/// One of a fixed list of values.
pub(super) fn one_of<T: Copy>(field: impl Display, value: &str, all: &[(&str, T)]) -> Result<T> {
    if let Some((_, found)) = all.iter().find(|(name, _)| *name == value) {
        return Ok(*found);
    }
    let mut names: Vec<String> = all.iter().map(|(name, _)| format!("{name:?}")).collect();
    names.sort();
    Err(FieldError::Value { field: field.to_string(), value: value.to_owned(), supported: names.join(", ") })
}

/// A rule that an API server does not have: what it lets through is the runtime's to judge.
pub(super) fn check_file(
    source: ManifestSource,
    field: impl Display,
    value: &str,
    rule: impl Fn(&str) -> bool,
    detail: &str,
) -> Result<()> {
    if source.is_file() { check(field, value, rule, detail) } else { Ok(()) }
}

/// A field that would not be honoured.
pub(super) fn refuse_set(field: impl Display, set: bool) -> Result<()> {
    if set { Err(FieldError::Unsupported { field: field.to_string() }) } else { Ok(()) }
}

pub(super) fn check(
    field: impl Display,
    value: &str,
    rule: impl Fn(&str) -> bool,
    detail: &str,
) -> Result<()> {
    if rule(value) { Ok(()) } else { Err(invalid(field, value, detail)) }
}

/// Zero or more.
pub(super) fn not_negative(field: impl Display, value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| invalid_plain(field, value, "must be greater than or equal to 0"))
}

/// User and group IDs are 31 bits wide in the API.
pub(super) fn id_of(field: impl Display, id: Option<i64>) -> Result<Option<i64>> {
    match id {
        Some(id) if !(0..=i64::from(i32::MAX)).contains(&id) => {
            Err(invalid_plain(field, id, "must be between 0 and 2147483647, inclusive"))
        }
        id => Ok(id),
    }
}

/// Relative and without `..`.
pub(super) fn descending_path(field: impl Display, path: &str) -> Result<()> {
    if path.starts_with('/') {
        return Err(invalid(field, path, "must be a relative path"));
    }
    no_backsteps(field, path)
}

pub(super) fn no_backsteps(field: impl Display, path: &str) -> Result<()> {
    check(&field, path, |p| !p.split('/').any(|part| part == ".."), "must not contain '..'")?;
    check(field, path, |p| !p.contains('\0'), "must not contain NUL")
}

/// DNS label, in upstream's words.
pub(super) const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
/// DNS subdomain, in upstream's words.
pub(super) const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
/// A key of a ConfigMap or Secret, in upstream's words.
pub(super) const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
/// A label's or annotation's key, in upstream's words.
pub(super) const QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
/// A label's value, in upstream's words.
pub(super) const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
