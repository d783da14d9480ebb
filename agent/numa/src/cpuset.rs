//! A set of CPUs, and its form as text. Pure. Used by every part of this crate.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// More than any machine has: a list that names more is no list of CPUs.
const MOST: u32 = 1 << 16;

/// CPUs by their number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

/// Text that is no list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of CPUs such as 0-3,8")]
pub struct NoCpuList(String);

impl CpuSet {
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    #[must_use]
    pub fn is_subset(&self, of: &Self) -> bool {
        self.0.is_subset(&of.0)
    }

    /// From the lowest number on.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        self.0.extend(cpus);
    }
}

/// In the list format of cpuset(7).
impl FromStr for CpuSet {
    type Err = NoCpuList;

    fn from_str(text: &str) -> Result<Self, NoCpuList> {
        let wrong = || NoCpuList(text.to_owned());
        let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu < MOST).ok_or_else(wrong);
        let mut cpus = BTreeSet::new();
        if text.is_empty() {
            return Ok(Self(cpus));
        }
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                None => (number(part)?, number(part)?),
                Some((first, last)) => (number(first)?, number(last)?),
            };
            if first > last {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if last.saturating_add(1) == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (index, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            if first == last {
                write!(to, "{comma}{first}")?;
            } else {
                write!(to, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, again) in [("", ""), ("0", "0"), ("0-3,8", "0-3,8"), ("3,1,2", "1-3"), ("5-5", "5")] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), again);
        }
        for wrong in ["a", "1-", "-1", "3-1", "1,,2", "1 2", "0-99999999", "4294967295"] {
            let error = wrong.parse::<CpuSet>().unwrap_err();
            assert_eq!(error.to_string(), format!("{wrong:?} is not a list of CPUs such as 0-3,8"));
        }
    }

    #[test]
    fn sets_are_joined_and_taken_apart() {
        let (a, b): (CpuSet, CpuSet) = ([0, 1, 2].into_iter().collect(), [2, 3].into_iter().collect());
        assert_eq!(a.union(&b).to_string(), "0-3");
        assert_eq!(a.difference(&b).to_string(), "0-1");
        assert_eq!(a.intersection(&b).to_string(), "2");
        assert!(a.intersection(&b).is_subset(&a) && a.contains(0) && !b.contains(0));
        assert_eq!((a.len(), CpuSet::new().is_empty()), (3, true));
    }
}
