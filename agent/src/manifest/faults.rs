//! All that is wrong with a document, not only the first of it: what is wrong is taken out or filled in, and the rest is
//! read again. Pure. Called by [`super`].

use gantry_base::error::chain;
use serde_json::Value;

use super::field::FieldError;
use super::places::{self, PathSegment, Place};

/// More are nobody's to read at once.
const MOST: usize = 32;

/// How often a document is read for them.
const TRIES: usize = 4 * MOST;

/// A field that is wrong, in a file.
#[derive(Debug)]
pub struct ManifestFault {
    /// From 1.
    pub(super) document: usize,
    /// Line and column.
    pub(super) place: Option<Place>,
    /// What is wrong.
    pub error: FieldError,
}

impl ManifestFault {
    /// With its causes, on one line.
    pub(super) fn text(&self) -> String {
        chain(&self.error)
    }
}

/// What is tried in the place of a field that is wrong.
#[derive(Debug, Clone, Copy)]
enum Repair {
    Remove,
    Text,
    Number,
    RemoveItem,
}

/// The last one first.
const REPAIRS: [Repair; 4] = [Repair::RemoveItem, Repair::Number, Repair::Text, Repair::Remove];

/// What `read` makes of the document, or each error with the steps to its field.
pub(super) fn all<T>(
    value: &Value,
    read: impl Fn(&Value) -> Result<T, FieldError>,
) -> Result<T, Vec<(Vec<PathSegment>, FieldError)>> {
    let mut error = match read(value) {
        Ok(read) => return Ok(read),
        Err(error) => error,
    };
    let (mut value, mut mending) = (value.clone(), Mending::default());
    for _ in 0..TRIES {
        if !mending.mend(&mut value, error) || mending.found.len() >= MOST {
            break;
        }
        match read(&value) {
            Ok(_) => break,
            Err(next) => error = next,
        }
    }
    Err(mending.found)
}

#[derive(Default)]
struct Mending {
    found: Vec<(Vec<PathSegment>, FieldError)>,
    /// The field that is being mended, as the document names it now, and what is left to be tried.
    at: Option<(String, Vec<Repair>)>,
    /// Items that were taken out: the list, and which one it was in the file.
    removed: Vec<(Vec<PathSegment>, usize)>,
    /// A name was taken out or replaced.
    has_renamed: bool,
    filled: usize,
}

impl Mending {
    /// Takes note of an error, and changes the document so that it is not met again; false when it can't be.
    fn mend(&mut self, value: &mut Value, mut error: FieldError) -> bool {
        let field = error.field().to_owned();
        let (steps, rest) = places::steps(value, &field);
        if self.at.as_ref().is_none_or(|(at, _)| *at != field) {
            let in_file = self.in_file(&steps);
            if in_file != steps {
                *error.field_mut() = format!("{}{rest}", places::render(&in_file));
            }
            let is_known = self.found.iter().any(|(_, known)| known.field() == error.field());
            if !is_known && !self.follows(&error, &steps, rest, &in_file) {
                self.found.push((in_file, error));
            }
            self.at = Some((field.clone(), REPAIRS.to_vec()));
        }
        while let Some(repair) = self.at.as_mut().and_then(|(_, repairs)| repairs.pop()) {
            if self.repair(value, &steps, rest, repair) {
                return true;
            }
        }
        false
    }

    /// Whether the error may be of what was taken out, not of the file.
    fn follows(
        &self,
        error: &FieldError,
        steps: &[PathSegment],
        rest: &str,
        in_file: &[PathSegment],
    ) -> bool {
        let names_others = matches!(error, FieldError::NotFound { .. } | FieldError::Duplicate { .. });
        // Of something that is there: what it lacks may have been taken out of it.
        let is_missing = rest.is_empty() && matches!(error, FieldError::Required { .. });
        self.has_renamed && names_others
            || is_missing && self.found.iter().any(|(known, _)| known.starts_with(in_file))
            || self.removed.iter().any(|(list, _)| list.starts_with(steps))
    }

    fn in_file(&self, steps: &[PathSegment]) -> Vec<PathSegment> {
        let mut own: Vec<PathSegment> = Vec::with_capacity(steps.len());
        for step in steps {
            let step = match step {
                PathSegment::Index(index) => {
                    let mut gone: Vec<usize> = self
                        .removed
                        .iter()
                        .filter(|(list, _)| *list == own)
                        .map(|(_, index)| *index)
                        .collect();
                    gone.sort_unstable();
                    PathSegment::Index(
                        gone.into_iter().fold(*index, |at, gone| if gone <= at { at + 1 } else { at }),
                    )
                }
                key => key.clone(),
            };
            own.push(step);
        }
        own
    }

    fn repair(&mut self, value: &mut Value, steps: &[PathSegment], rest: &str, repair: Repair) -> bool {
        match repair {
            Repair::Remove => match steps.split_last() {
                // An item is taken out last: those after it move up.
                Some((PathSegment::Key(key), parent)) if is_named(rest) => {
                    self.has_renamed |=
                        key == "name" && parent.iter().any(|step| matches!(step, PathSegment::Index(_)));
                    object(value, parent).is_some_and(|map| map.remove(key).is_some())
                }
                _ => false,
            },
            Repair::Text => {
                self.filled += 1;
                fill(value, steps, rest, Value::from(format!("x{}", self.filled)))
            }
            Repair::Number => fill(value, steps, rest, Value::from(1)),
            Repair::RemoveItem => {
                let Some(at) = steps.iter().rposition(|step| matches!(step, PathSegment::Index(_))) else {
                    return false;
                };
                let (Some(list), Some(PathSegment::Index(index))) = (steps.get(..at), steps.get(at)) else {
                    return false;
                };
                let Some(in_file) = self.in_file(steps).get(..=at).map(<[PathSegment]>::to_vec) else {
                    return false;
                };
                let Some(Value::Array(items)) = reach(value, list) else { return false };
                if items.len() <= *index {
                    return false;
                }
                items.remove(*index);
                self.has_renamed = true;
                if let Some((PathSegment::Index(index), list)) = in_file.split_last() {
                    self.removed.push((list.to_vec(), *index));
                }
                true
            }
        }
    }
}

/// All of the name is there, or what follows it is no name: `.medium HugePages`.
fn is_named(rest: &str) -> bool {
    !rest.starts_with(['.', '['])
}

/// Puts something in the place of a key that is there, or is missing in what is there.
fn fill(value: &mut Value, steps: &[PathSegment], rest: &str, with: Value) -> bool {
    let (parent, key) = match (steps.split_last(), rest.strip_prefix('.').unwrap_or(rest)) {
        (Some((PathSegment::Key(key), parent)), "") => (parent, key.as_str()),
        (_, "") => return false,
        (_, key) if key.contains(['.', '[', ' ']) => return false,
        (_, key) => (steps, key),
    };
    object(value, parent).is_some_and(|map| {
        map.insert(key.to_owned(), with);
        true
    })
}

fn object<'a>(value: &'a mut Value, steps: &[PathSegment]) -> Option<&'a mut serde_json::Map<String, Value>> {
    reach(value, steps)?.as_object_mut()
}

fn reach<'a>(value: &'a mut Value, steps: &[PathSegment]) -> Option<&'a mut Value> {
    steps.iter().try_fold(value, |value, step| match step {
        PathSegment::Key(key) => value.get_mut(key.as_str()),
        PathSegment::Index(index) => value.get_mut(*index),
    })
}
