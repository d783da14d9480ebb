//! Small files and folders of the kernel. Reads no more than such a file can have. Used by every part of the look.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::str::FromStr;

use super::MachineError;
use crate::cpuset::CpuSet;

/// Bytes of a file. The longest, /proc/meminfo, has less than 2000.
const MOST_BYTES: u64 = 64 * 1024;
/// Entries of a folder. That of the CPUs has one for each.
const MOST_ENTRIES: usize = 64 * 1024;
/// Characters of a text in an error.
const SHOWN: usize = 80;

/// What a file should have.
#[derive(Clone, Copy)]
pub(super) enum Expected {
    Number,
    Cpus,
    Memory,
    Distances,
    CacheSize,
    Text,
}

pub(super) fn wrong(path: &Path, text: &str, expected: Expected) -> MachineError {
    let expected = match expected {
        Expected::Number => "a number",
        Expected::Cpus => "a list of CPUs such as 0-3,8",
        Expected::Memory => "a line such as MemTotal: 16384 kB",
        Expected::Distances => "numbers with one space between them, such as 10 21",
        Expected::CacheSize => "a size such as 32768K",
        Expected::Text => "text in UTF-8",
    };
    MachineError::Content { path: path.to_owned(), text: text.chars().take(SHOWN).collect(), expected }
}

fn failed(path: &Path, error: std::io::Error) -> MachineError {
    MachineError::Read { path: path.to_owned(), error }
}

/// Without white space around it. None: there is no such file.
pub(super) fn text(path: &Path) -> Result<Option<String>, MachineError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| failed(path, error))?,
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| failed(path, error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(MachineError::TooLong { path: path.to_owned(), most: MOST_BYTES });
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(_) => Err(wrong(path, &String::from_utf8_lossy(&bytes), Expected::Text)),
    }
}

/// None: there is no such file.
pub(super) fn number<T: FromStr>(path: &Path) -> Result<Option<T>, MachineError> {
    let Some(text) = text(path)? else { return Ok(None) };
    text.parse().map(Some).map_err(|_| wrong(path, &text, Expected::Number))
}

pub(super) fn list(path: &Path, text: &str) -> Result<CpuSet, MachineError> {
    text.parse().map_err(|_| wrong(path, text, Expected::Cpus))
}

/// The names in a folder that are a number between `before` and `after`, by that number. None if there is no such folder.
pub(super) fn numbered<N: FromStr + Ord>(
    folder: &Path,
    before: &str,
    after: &str,
) -> Result<BTreeMap<N, String>, MachineError> {
    let mut found = BTreeMap::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(|error| failed(folder, error))?,
    };
    for (index, entry) in entries.enumerate() {
        if index >= MOST_ENTRIES {
            return Err(MachineError::TooMany { path: folder.to_owned(), most: MOST_ENTRIES });
        }
        let name = entry.map_err(|error| failed(folder, error))?.file_name();
        let Some(name) = name.to_str() else { continue };
        let digits = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let Some(digits) = digits.filter(is_number) else { continue };
        let number = digits.parse().map_err(|_| wrong(&folder.join(name), digits, Expected::Number))?;
        found.insert(number, name.to_owned());
    }
    Ok(found)
}
