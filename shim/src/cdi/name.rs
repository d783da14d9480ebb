//! Names of devices: `vendor.com/class=device`. Pure. The rules and words are those of CDI's own parser.

/// A file's `kind`: vendor and class.
pub(super) fn kind(kind: &str) -> Result<(String, String), String> {
    let (vendor, class) = match kind.split_once('/') {
        Some((vendor, class)) if !vendor.is_empty() && !class.is_empty() => (vendor, class),
        // As the library has it: all of it is the class then.
        _ => ("", kind),
    };
    part(vendor).map_err(|why| format!("invalid vendor. {why}"))?;
    part(class).map_err(|why| format!("invalid class. {why}"))?;
    Ok((vendor.to_owned(), class.to_owned()))
}

fn part(name: &str) -> Result<(), String> {
    let mut letters = name.chars();
    let Some(first) = letters.next() else { return Err("empty name".to_owned()) };
    if !first.is_ascii_alphabetic() {
        return Err(format!("{name:?}, should start with letter"));
    }
    middle(name, &['_', '-', '.'])
        .map_err(|letter| format!("invalid character '{letter}' in name {name:?}"))?;
    if ends_well(name) { Ok(()) } else { Err(format!("{name:?}, should end with a letter or digit")) }
}

/// A device's own name.
pub(super) fn device(name: &str) -> Result<(), String> {
    let Some(first) = name.chars().next() else { return Err("invalid (empty) device name".to_owned()) };
    if !first.is_ascii_alphanumeric() {
        // Upstream's own words.
        return Err(format!("invalid class {name:?}, should start with a letter or digit"));
    }
    middle(name, &['_', '-', '.', ':'])
        .map_err(|letter| format!("invalid character '{letter}' in device name {name:?}"))?;
    if ends_well(name) {
        Ok(())
    } else {
        Err(format!("invalid name {name:?}, should end with a letter or digit"))
    }
}

fn middle(name: &str, also: &[char]) -> Result<(), char> {
    let odd = |letter: &char| !letter.is_ascii_alphanumeric() && !also.contains(letter);
    let count = name.chars().count();
    match name.chars().take(count.saturating_sub(1)).skip(1).find(odd) {
        Some(letter) => Err(letter),
        None => Ok(()),
    }
}

fn ends_well(name: &str) -> bool {
    name.chars().next_back().is_some_and(|letter| letter.is_ascii_alphanumeric())
}

/// Whether all three parts are there and valid.
pub(super) fn is_qualified(name: &str) -> bool {
    let Some((vendor_class, own)) = name.split_once('=') else { return false };
    !name.starts_with('/') && kind(vendor_class).is_ok() && device(own).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_vendor_a_class_and_a_device_of_few_letters() {
        for name in ["vendor.com/class=dev", "v/c=0", "a-b_c.d/e.f=x:y-z_1.2", "v/c=a"] {
            assert!(is_qualified(name), "{name}");
        }
        for name in [
            "",
            "dev",
            "vendor.com/class",
            "vendor.com/class=",
            "=dev",
            "/class=dev",
            "vendor/=dev",
            "v/c=d/e",
            "1v/c=d",
            "v/1c=d",
            "v./c=d",
            "v/c=-d",
            "v/c=d-",
            "v/c/d=e",
            "v/c=ü",
            "/v/c=d",
            "v/c=d=e",
            "v /c=d",
        ] {
            assert!(!is_qualified(name), "{name}");
        }
    }

    #[test]
    fn the_reasons_are_the_librarys() {
        assert_eq!(kind("nothing").unwrap_err(), "invalid vendor. empty name");
        assert_eq!(kind("v/1").unwrap_err(), "invalid class. \"1\", should start with letter");
        assert_eq!(kind("v/a b").unwrap_err(), "invalid class. invalid character ' ' in name \"a b\"");
        assert_eq!(device("").unwrap_err(), "invalid (empty) device name");
        assert_eq!(device("a-").unwrap_err(), "invalid name \"a-\", should end with a letter or digit");
    }
}
