//! Durations as Go prints them. Pure. Parsed by [`crate::main`].

/// Numbers with the units h, m, s and ms, as Go prints durations.
pub(super) fn duration(text: &str) -> Result<std::time::Duration, String> {
    let bad = || format!("expected a duration such as 10s, 5m or 1h30m, not {text:?}");
    let mut rest = text;
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit);
        let factor = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1000,
            "ms" => 1,
            _ => return Err(bad()),
        };
        let part = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(bad)?;
        millis = millis.checked_add(part).ok_or_else(bad)?;
        rest = next;
    }
    if text.is_empty() { Err(bad()) } else { Ok(std::time::Duration::from_millis(millis)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_in_go() {
        let millis = |text| duration(text).map(|d| d.as_millis()).ok();
        assert_eq!(millis("10s"), Some(10_000));
        assert_eq!(millis("1h30m5s250ms"), Some(5_405_250));
        for bad in ["", "10", "s", "1x", "-1s", "99999999999999999999s", "1h-"] {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }
}
