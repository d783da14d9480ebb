//! Which of a log's rotated files are kept, and their names. Pure. Called by [`super`].

/// Of a file that is being written.
pub(super) const TMP: &str = "tmp";
/// Of a compressed one.
pub(super) const GZ: &str = "gz";

/// What is to be done with the files beside a log, by suffix.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tidy {
    pub(super) remove: Vec<String>,
    pub(super) compress: Vec<String>,
}

/// The suffix by which a rotated file differs from its log: what is behind the dot.
pub(super) fn suffix<'a>(file: &'a str, log: &str) -> Option<&'a str> {
    file.strip_prefix(log)?.strip_prefix('.').filter(|suffix| !suffix.is_empty())
}

/// The newest are kept, as many as leave room for the current log and the one that it becomes.
pub(super) fn tidy(mut suffixes: Vec<String>, most: usize) -> Tidy {
    suffixes.sort();
    let packed = |suffix: &str| suffix.ends_with(".gz");
    let unused = |suffix: &String| {
        // What a crash left, and what was compressed already.
        suffix.ends_with(".tmp") || (!packed(suffix) && suffixes.contains(&format!("{suffix}.{GZ}")))
    };
    let (mut remove, kept): (Vec<String>, Vec<String>) = suffixes.iter().cloned().partition(unused);
    let excess = kept.len().saturating_sub(most.saturating_sub(2));
    remove.extend(kept.iter().take(excess).cloned());
    let compress = kept.into_iter().skip(excess).filter(|suffix| !packed(suffix)).collect();
    Tidy { remove, compress }
}

/// `20261121-101112`, in the node's time zone.
pub(super) fn stamp(wall_nanos: i64, zone: jiff::tz::TimeZone) -> String {
    let now = jiff::Timestamp::from_nanosecond(wall_nanos.into()).unwrap_or_default();
    now.to_zoned(zone).strftime("%Y%m%d-%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(suffixes: &[&str], most: usize) -> (Vec<String>, Vec<String>) {
        let Tidy { mut remove, compress } = tidy(suffixes.iter().map(|s| (*s).to_owned()).collect(), most);
        remove.sort();
        (remove, compress)
    }

    #[test]
    fn the_newest_are_kept_and_compressed() {
        let all = ["20260101-000003", "20260101-000001.gz", "20260101-000002.gz"];
        let (remove, compress) = of(&all, 5);
        assert_eq!((remove.len(), compress), (0, vec!["20260101-000003".to_owned()]));
        let (remove, compress) = of(&all, 3);
        assert_eq!(remove, ["20260101-000001.gz", "20260101-000002.gz"]);
        assert_eq!(compress, ["20260101-000003"]);
        let (remove, compress) = of(&all, 2);
        assert_eq!((remove.len(), compress.len()), (3, 0));
    }

    #[test]
    fn what_a_crash_left_goes() {
        let (remove, compress) = of(&["1.tmp", "2", "2.gz", "3"], 9);
        assert_eq!(remove, ["1.tmp", "2"]);
        assert_eq!(compress, ["3"]);
    }

    #[test]
    fn only_files_of_this_very_log_count() {
        assert_eq!(suffix("0.log.20260101-000000", "0.log"), Some("20260101-000000"));
        for other in ["0.log", "0.log.", "10.log.x", "0.logs.x", "1.log.x"] {
            assert_eq!(suffix(other, "0.log"), None, "{other}");
        }
        let at = |hours| stamp(1_800_000_000_000_000_000, jiff::tz::TimeZone::fixed(jiff::tz::offset(hours)));
        assert_eq!((at(0), at(9)), ("20270115-080000".to_owned(), "20270115-170000".to_owned()));
    }
}
