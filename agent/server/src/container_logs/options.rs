//! What part of a log is wanted, as PodLogOptions. Pure: owns the parsing and upstream's validation;
//! never reads a log. Called by [`super`].

use super::query;

/// What part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Options {
    pub(super) follow: bool,
    pub(super) previous: bool,
    pub(super) timestamps: bool,
    /// Unix nanoseconds.
    pub(super) since: Option<i64>,
    pub(super) tail: Option<u64>,
    pub(super) limit: Option<u64>,
    /// One of the two alone.
    pub(super) stream: Option<&'static str>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bad {
    /// A value cannot be read: 400.
    Query,
    /// A value, or two together, make no sense: 422.
    Value,
}

impl Options {
    /// From a query at `now`, Unix nanoseconds.
    pub(super) fn parse(pairs: &[(String, String)], now: i64) -> Result<Self, Bad> {
        let flag = |key| {
            query::first(pairs, key).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
        };
        let number = |key| -> Result<Option<i64>, Bad> {
            query::first(pairs, key).map(|value| value.parse().map_err(|_| Bad::Query)).transpose()
        };
        // An old name, where "all" is as good as nothing.
        let tail = match query::first(pairs, "tail").filter(|tail| !tail.is_empty()) {
            Some("all") => None,
            Some(tail) => Some(tail.parse().map_err(|_| Bad::Query)?),
            None => number("tailLines")?,
        };
        let (limit, seconds) = (number("limitBytes")?, number("sinceSeconds")?);
        let time = query::first(pairs, "sinceTime").filter(|time| !time.is_empty()).map(nanos);
        let time = time.map(|time| time.ok_or(Bad::Query)).transpose()?;
        let stream = match query::first(pairs, "stream") {
            None | Some("" | "All") => None,
            Some("Stdout") => Some("Stdout"),
            Some("Stderr") => Some("Stderr"),
            Some(_) => return Err(Bad::Value),
        };
        let too_small = tail.is_some_and(|tail| tail < 0)
            || limit.is_some_and(|limit| limit < 1)
            || seconds.is_some_and(|seconds| seconds < 1);
        if too_small || (seconds.is_some() && time.is_some()) || (stream.is_some() && tail.is_some()) {
            return Err(Bad::Value);
        }
        let ago = seconds.map(|seconds| now.saturating_sub(seconds.saturating_mul(1_000_000_000)));
        Ok(Self {
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            since: ago.or(time),
            tail: tail.and_then(|tail| u64::try_from(tail).ok()),
            limit: limit.and_then(|limit| u64::try_from(limit).ok()),
            stream,
        })
    }
}

/// Unix nanoseconds of an RFC 3339 time; those out of reach are as far as one can see.
pub(super) fn nanos(time: &str) -> Option<i64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Some(i64::try_from(time.as_nanosecond()).unwrap_or(if time.as_second() < 0 {
        i64::MIN
    } else {
        i64::MAX
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000_000_000;

    fn parse(query: &str) -> Result<Options, Bad> {
        Options::parse(&query::pairs(query), NOW)
    }

    #[test]
    fn parameters() {
        assert_eq!(parse(""), Ok(Options::default()));
        let all =
            parse("follow=true&previous=1&timestamps&tailLines=5&limitBytes=9&sinceSeconds=10").unwrap();
        assert!(all.follow && all.previous && all.timestamps);
        assert_eq!((all.tail, all.limit, all.since), (Some(5), Some(9), Some(NOW - 10_000_000_000)));
        assert!(!parse("follow=false&timestamps=0").unwrap().follow);
        assert_eq!(parse("sinceTime=2023-11-14T22:13:20Z").unwrap().since, Some(NOW));
        assert_eq!(parse("tail=3&tailLines=9").unwrap().tail, Some(3));
        assert_eq!(parse("tail=all&tailLines=9").unwrap().tail, None);
        assert_eq!(parse("stream=Stderr").unwrap().stream, Some("Stderr"));
    }

    #[test]
    fn what_makes_no_sense() {
        for bad in ["tailLines=x", "limitBytes=1.5", "sinceSeconds=a", "sinceTime=now", "tail=x"] {
            assert_eq!(parse(bad), Err(Bad::Query), "{bad}");
        }
        for bad in [
            "tailLines=-1",
            "limitBytes=0",
            "sinceSeconds=0",
            "stream=Both",
            "stream=Stdout&tailLines=1",
            "sinceSeconds=1&sinceTime=2023-11-14T22:13:20Z",
        ] {
            assert_eq!(parse(bad), Err(Bad::Value), "{bad}");
        }
    }
}
