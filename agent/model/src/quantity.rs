//! Resource quantities (`100m`, `1.5Gi`, `2e3`), exactly. Pure: owns the parser and the printed forms; never uses
//! floating point. Called by the manifest converter.

/// Why a quantity was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QuantityError {
    /// Not a number with one of the known suffixes.
    #[error(
        "{text:?} is not a quantity: expected a number with an optional suffix such as m, k, M, G, Ki, Mi, Gi"
    )]
    Syntax {
        /// As written.
        text: String,
    },
    /// A resource cannot be negative.
    #[error("{text:?} is negative")]
    Negative {
        /// As written.
        text: String,
    },
    /// Larger than 2^63-1 units.
    #[error("{text:?} is too large")]
    TooLarge {
        /// As written.
        text: String,
    },
}

/// Thousandths, rounded up, as `Quantity.MilliValue`.
///
/// # Errors
/// When the text is no quantity, negative or too large.
pub fn parse_milli(text: &str) -> Result<i64, QuantityError> {
    parse_scaled(text, 1000)
}

/// Whole units, rounded up, as `Quantity.Value`.
///
/// # Errors
/// When the text is no quantity, negative or too large.
pub fn parse_units(text: &str) -> Result<i64, QuantityError> {
    parse_scaled(text, 1)
}

/// What Go's own parser says of a text that is no quantity.
#[must_use]
pub fn in_go(text: &str) -> &'static str {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let suffix = unsigned.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    let exponent = letters.strip_prefix(['+', '-']).unwrap_or(letters);
    if !unsigned.is_empty() && exponent.bytes().all(|b| b.is_ascii_digit()) {
        "unable to parse quantity's suffix"
    } else {
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    }
}

/// Bytes as Go prints a quantity of binary form: the largest binary suffix that divides them; below 1024 the form is
/// decimal.
#[must_use]
pub fn binary(value: i64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if value.unsigned_abs() < 1024 { plain(value) } else { format_divided(value, 1024, &suffixes) }
}

/// A plain number as Go prints it: the largest decimal suffix that divides it.
#[must_use]
pub fn plain(value: i64) -> String {
    format_divided(value, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

/// As Go prints it in the form, binary, decimal or with an exponent, that another one was written in.
#[must_use]
pub fn like(value: i64, written: &str) -> String {
    let exponent = written.split_once(['e', 'E']).is_some_and(|(_, digits)| !digits.is_empty());
    match () {
        () if written.ends_with('i') => binary(value),
        () if exponent => format_divided(value, 1000, &["", "e3", "e6", "e9", "e12", "e15", "e18"]),
        () => plain(value),
    }
}

/// By the largest suffix that divides it; the first suffix is that of `value` itself.
#[must_use]
pub fn format_divided(value: i64, by: i64, suffixes: &[&str]) -> String {
    let (mut rest, mut step) = (value, 0);
    while rest != 0 && rest % by == 0 && step + 1 < suffixes.len() {
        rest /= by;
        step += 1;
    }
    match rest {
        0 => "0".to_owned(),
        _ => format!("{rest}{}", suffixes.get(step).copied().unwrap_or_default()),
    }
}

/// One sign at most; a negative zero is a zero.
fn parse_scaled(text: &str, scale: u128) -> Result<i64, QuantityError> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match parse_unsigned(text, unsigned, scale)? {
        value if value > 0 && text.starts_with('-') => Err(QuantityError::Negative { text: text.to_owned() }),
        value => Ok(value),
    }
}

/// value × scale as numerator / denominator, both exact.
fn parse_unsigned(text: &str, unsigned: &str, scale: u128) -> Result<i64, QuantityError> {
    let syntax = || QuantityError::Syntax { text: text.to_owned() };
    let too_large = || QuantityError::TooLarge { text: text.to_owned() };
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(syntax());
    }
    let multiplier = Multiplier::parse(suffix).ok_or_else(syntax)?;

    let digits: String = [whole, fraction].concat();
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    let mut numerator: u128 = digits.parse().map_err(|_| too_large())?;
    let fraction_len = i32::try_from(fraction.len()).map_err(|_| syntax())?;
    let power = multiplier.ten.checked_sub(fraction_len).ok_or_else(syntax)?;
    numerator = numerator.checked_mul(scale).ok_or_else(too_large)?;
    numerator = numerator.checked_mul(1 << multiplier.two).ok_or_else(too_large)?;
    let ten = |exponent: u32| 10_u128.checked_pow(exponent);
    let value = if power >= 0 {
        ten(power.unsigned_abs()).and_then(|p| numerator.checked_mul(p)).ok_or_else(too_large)?
    } else {
        // A denominator beyond 10^38 leaves less than one unit, which rounds up to one.
        ten(power.unsigned_abs()).map_or(1, |p| numerator.div_ceil(p))
    };
    i64::try_from(value).map_err(|_| too_large())
}

/// A suffix as 2^two × 10^ten.
struct Multiplier {
    two: u32,
    ten: i32,
}

impl Multiplier {
    fn parse(suffix: &str) -> Option<Self> {
        let decimal = |ten| Some(Self { two: 0, ten });
        let binary = |two| Some(Self { two, ten: 0 });
        match suffix {
            "" => decimal(0),
            "n" => decimal(-9),
            "u" => decimal(-6),
            "m" => decimal(-3),
            "k" => decimal(3),
            "M" => decimal(6),
            "G" => decimal(9),
            "T" => decimal(12),
            "P" => decimal(15),
            "E" => decimal(18),
            "Ki" => binary(10),
            "Mi" => binary(20),
            "Gi" => binary(30),
            "Ti" => binary(40),
            "Pi" => binary(50),
            "Ei" => binary(60),
            exponent => {
                let digits = exponent.strip_prefix(['e', 'E'])?;
                let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
                if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                digits.parse().ok().and_then(decimal)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_printed_as_go_prints_them() {
        for (value, text) in
            [(0, "0"), (1000, "1k"), (1023, "1023"), (1536, "1536"), (3 << 29, "1536Mi"), (-5, "-5")]
        {
            assert_eq!(binary(value), text);
        }
        assert_eq!((plain(2000).as_str(), plain(1024).as_str()), ("2k", "1024"));
        for (written, text) in
            [("1024M", "1024M"), ("1000000Ki", "1000000Ki"), ("1024e6", "1024e6"), ("1E", "1024M")]
        {
            assert_eq!(like(1_024_000_000, written), text, "{written}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_told_in_gos_words() {
        for text in ["", "x", "1 Gi", "10MB"] {
            assert!(in_go(text).starts_with("quantities must match"), "{text}");
        }
        assert_eq!(in_go("1KK"), "unable to parse quantity's suffix");
    }

    #[test]
    fn suffixes_are_exact_and_round_up() {
        for (text, milli) in [
            ("0", 0),
            ("1", 1000),
            ("100m", 100),
            ("0.1", 100),
            (".5", 500),
            ("5.", 5000),
            ("1500m", 1500),
            ("0.0001", 1),
            ("1u", 1),
            ("+2", 2000),
            ("2e3", 2_000_000),
            ("2E-3", 2),
            ("1k", 1_000_000),
            ("-0", 0),
        ] {
            assert_eq!(parse_milli(text), Ok(milli), "{text}");
        }
        for (text, units) in [
            ("64Mi", 64 << 20),
            ("1.5Gi", 3 << 29),
            ("128974848", 128_974_848),
            ("129e6", 129_000_000),
            ("128974848000m", 128_974_848),
            ("7Ei", 7 << 60),
            ("1E", 1_000_000_000_000_000_000),
            ("0000000000000000000000000000000000000000000001", 1),
            ("1n", 1),
        ] {
            assert_eq!(parse_units(text), Ok(units), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "m", "1x", "1 Gi", "1.2.3", "0x10", "1e", "1e+", "e3", ".", "--1", "1mi", "1KI", "١"]
        {
            assert!(matches!(parse_milli(text), Err(QuantityError::Syntax { .. })), "{text}");
        }
        assert!(matches!(parse_units("-1"), Err(QuantityError::Negative { .. })));
        assert!(matches!(parse_units("8Ei"), Err(QuantityError::TooLarge { .. })));
        assert!(matches!(parse_units("1e99999"), Err(QuantityError::TooLarge { .. })));
        assert!(parse_units("1e-2147483649").is_err());
        assert_eq!(parse_units("1e-2147483647"), Ok(1));
    }
}
