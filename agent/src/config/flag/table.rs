//! All flags of the upstream kubelet. Pure: owns the list; never a value. Called by [`super`].

use std::sync::LazyLock;

/// Made by tests/go/kubelet.
const LIST: &str = include_str!("../upstream/flags.tsv");

/// One flag; every text is upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// Without dashes in front.
    pub name: &'static str,
    /// A single letter, or nothing.
    pub letter: &'static str,
    /// The name of the type of its value.
    pub kind: &'static str,
    /// What it means when it stands without a value; nothing when it needs one.
    pub alone: &'static str,
    /// Its value when it is not given.
    pub default: &'static str,
    /// The field of the configuration that it sets, by its JSON path; nothing when it is no field.
    pub field: &'static str,
    /// What is said when it is given though it should not; nothing for those that stay.
    pub deprecated: &'static str,
}

static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| LIST.lines().filter_map(read).collect());

fn read(line: &'static str) -> Option<Flag> {
    let mut cells = line.split('\t');
    let mut cell = || cells.next();
    Some(Flag {
        name: cell()?,
        letter: cell()?,
        kind: cell()?,
        alone: cell()?,
        default: cell()?,
        field: cell()?,
        deprecated: cell()?,
    })
}

/// In the order of their names.
pub fn all() -> &'static [Flag] {
    &FLAGS
}

/// `_` is `-`.
pub(super) fn find_by_name(name: &str) -> Option<&'static Flag> {
    let same = |flag: &&Flag| {
        flag.name.len() == name.len()
            && flag.name.bytes().zip(name.bytes()).all(|(a, b)| a == b || (a == b'-' && b == b'_'))
    };
    FLAGS.iter().find(same)
}

pub(super) fn find_by_letter(letter: char) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.letter.chars().eq([letter]))
}
