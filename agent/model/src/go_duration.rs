//! Durations as Go reads and writes them. Pure: owns the syntax ("1h0m5s", "1.5ms"); never decides
//! which are allowed. Called by the configuration's fields and by flags.

use std::fmt;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A signed number of nanoseconds; zero where a field says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub i64);

/// From the largest; "us" has three spellings.
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl Span {
    /// Whole seconds.
    #[must_use]
    pub const fn seconds(seconds: i64) -> Self {
        Self(seconds * 1_000_000_000)
    }

    /// Nothing, when it is negative.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// What Go's `time.ParseDuration` makes of it.
    ///
    /// # Errors
    /// In Go's words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("time: invalid duration {text:?}");
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut sum: i128 = 0;
        while !rest.is_empty() {
            let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let (figure, tail) = rest.split_at(number);
            let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_end);
            rest = tail;
            if !figure.contains(|c: char| c.is_ascii_digit()) || figure.matches('.').count() > 1 {
                return Err(invalid());
            }
            if unit.is_empty() {
                return Err(format!("time: missing unit in duration {text:?}"));
            }
            let Some((_, nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
                return Err(format!("time: unknown unit {unit:?} in duration {text:?}"));
            };
            sum += scale_figure(figure, *nanos).ok_or_else(invalid)?;
            if sum > i128::from(i64::MAX) {
                return Err(invalid());
            }
        }
        let sum = if negative { -sum } else { sum };
        i64::try_from(sum).map(Self).map_err(|_| invalid())
    }
}

/// Digits after the point beyond what counts are cut off, as Go does.
fn scale_figure(figure: &str, nanos: i64) -> Option<i128> {
    let (whole, part) = figure.split_once('.').unwrap_or((figure, ""));
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut sum = whole.checked_mul(i128::from(nanos))?;
    let mut per: i128 = 1;
    for digit in part.bytes().take(18) {
        per *= 10;
        sum += i128::from(nanos) * i128::from(digit - b'0') / per;
    }
    Some(sum)
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if nanos < 1_000_000_000 {
            let (unit, per) = match nanos {
                0..1_000 => ("ns", 1),
                1_000..1_000_000 => ("µs", 1_000),
                _ => ("ms", 1_000_000),
            };
            return write!(f, "{}{unit}", decimal(nanos / per, nanos % per, per));
        }
        let seconds = nanos / 1_000_000_000;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(seconds % 60, nanos % 1_000_000_000, 1_000_000_000))
    }
}

/// Without zeros at the end.
fn decimal(whole: u64, part: u64, per: u64) -> String {
    if part == 0 {
        return whole.to_string();
    }
    let width = per.ilog10() as usize;
    let part = format!("{part:0width$}");
    format!("{whole}.{}", part.trim_end_matches('0'))
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// `10s`, `1m20s`, `5m0s`: how the kubelet's messages print a delay.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, minutes) => format!("{minutes}m{rest}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// `1.234s`, `56ms`, `1m2.5s`: as Go prints a duration of whole milliseconds.
#[must_use]
pub fn go_millis(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let decimals = format!("{:03}", rest % 1000);
    let decimals = decimals.trim_end_matches('0');
    let dot = if decimals.is_empty() { "" } else { "." };
    let seconds = format!("{}{dot}{decimals}s", rest / 1000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, nanos, again) in [
            ("0", 0, "0s"),
            ("1m", 60_000_000_000, "1m0s"),
            ("4h", 14_400_000_000_000, "4h0m0s"),
            ("1h0m5s", 3_605_000_000_000, "1h0m5s"),
            ("100ms", 100_000_000, "100ms"),
            ("1.5s", 1_500_000_000, "1.5s"),
            (".5us", 500, "500ns"),
            ("1.005ms", 1_005_000, "1.005ms"),
            ("1.25h", 4_500_000_000_000, "1h15m0s"),
            ("-1s", -1_000_000_000, "-1s"),
            ("2us", 2_000, "2µs"),
        ] {
            let span = Span::parse(text).unwrap();
            assert_eq!(span, Span(nanos), "{text}");
            assert_eq!(span.to_string(), again, "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_told_in_gos_words() {
        assert_eq!(Span::parse("").unwrap_err(), "time: invalid duration \"\"");
        assert_eq!(Span::parse("10").unwrap_err(), "time: missing unit in duration \"10\"");
        assert_eq!(Span::parse("1d").unwrap_err(), "time: unknown unit \"d\" in duration \"1d\"");
        assert_eq!(Span::parse("9999999h").unwrap_err(), "time: invalid duration \"9999999h\"");
        assert_eq!(Span::parse("1.2.3s").unwrap_err(), "time: invalid duration \"1.2.3s\"");
    }

    #[test]
    fn whole_milliseconds_print_as_in_go() {
        let printed = [0, 7, 1000, 1230, 62_500, 3_600_000].map(|n| go_millis(Duration::from_millis(n)));
        assert_eq!(printed, ["0s", "7ms", "1s", "1.23s", "1m2.5s", "1h0m0s"]);
    }

    #[test]
    fn delays_print_as_in_go() {
        let printed: Vec<String> =
            [10, 40, 80, 300, 3661].map(|n| go_duration(Duration::from_secs(n))).into();
        assert_eq!(printed, ["10s", "40s", "1m20s", "5m0s", "1h1m1s"]);
    }
}
