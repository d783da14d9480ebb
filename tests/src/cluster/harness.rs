//! The command line and the lines of libtest, for harnesses of our own. Owns the words; never a spec. Called by the
//! programs `cluster` and `disruption`; xtask reads what they print.

/// Options of libtest that take the next word.
const WITH_VALUE: [&str; 1] = ["--skip"];

/// The filter, a part of a spec's name: the first word that is neither an option nor an option's value. `words` are those of
/// the command line, without the program.
#[must_use]
pub fn filter(words: impl IntoIterator<Item = String>) -> Option<String> {
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(&word.as_str()) {
            words.next();
        } else if !word.starts_with('-') {
            return Some(word);
        }
    }
    None
}

/// The line of a spec that failed, and what it said, so that xtask can run it once more, alone.
#[must_use]
pub fn failed(name: &str, seconds: u64, said: &str) -> String {
    format!("test {name} ... FAILED ({seconds} s)\n---- {name} stdout ----\n{said}\nfailures:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_skipped_is_no_filter() {
        let of = |line: &str| filter(line.split_whitespace().map(str::to_owned));
        assert_eq!(of("--test-threads=1 --skip only_in_the_vm"), None);
        assert_eq!(of("--test-threads=1 smoke --skip only_in_the_vm").as_deref(), Some("smoke"));
        assert_eq!(of("--skip only_in_the_vm exec").as_deref(), Some("exec"));
        assert_eq!(of(""), None);
    }
}
