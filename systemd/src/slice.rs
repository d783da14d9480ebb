//! Names of slices and the paths they stand for: systemd.slice(5) reads each dash as a step down. Pure.
//! Owns both directions; never asks systemd. Called by whoever names a pod's cgroup.

const SUFFIX: &str = ".slice";

/// A name that no slice can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid slice name: {0}")]
pub struct BadSlice(pub String);

/// Where a slice's cgroup is: `a-b.slice` is at `/a.slice/a-b.slice`, and `-.slice` at `/`.
///
/// # Errors
/// When it does not end in `.slice`, or has a slash, an empty step or a character that units can't have.
pub fn expand(slice: &str) -> Result<String, BadSlice> {
    let bad = || BadSlice(slice.to_owned());
    let stem = slice.strip_suffix(SUFFIX).ok_or_else(bad)?;
    if stem == "-" {
        return Ok("/".to_owned());
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '\\' | '-' | '@');
    // A unit's name has 255 bytes.
    if slice.len() > 255 || !stem.chars().all(plain) {
        return Err(bad());
    }
    let (mut path, mut prefix) = (String::new(), String::new());
    for step in stem.split('-') {
        if step.is_empty() {
            return Err(bad());
        }
        prefix.push_str(step);
        path.push('/');
        path.push_str(&prefix);
        path.push_str(SUFFIX);
        prefix.push('-');
    }
    Ok(path)
}

/// The slice that a client means by `a-b.slice` or by its whole path; the steps before the last are
/// what the name says already.
///
/// # Errors
/// As [`expand`], or when a path is not the one that its last step has.
pub fn of_path(text: &str) -> Result<&str, BadSlice> {
    let name = text.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let path = expand(name)?;
    if text.contains('/') && text.trim_end_matches('/') != path {
        return Err(BadSlice(text.to_owned()));
    }
    Ok(name)
}

/// A step's name within a slice's name: a dash would be another step.
#[must_use]
pub fn escape(step: &str) -> String {
    step.replace('-', "_")
}

/// The step that was escaped, as the kubelet reads it: it has no underscores of its own.
#[must_use]
pub fn unescape(step: &str) -> String {
    step.replace('_', "-")
}

/// The slice of these steps from the root, escaped; `-.slice` for none.
#[must_use]
pub fn name<'a>(steps: impl IntoIterator<Item = &'a str>) -> String {
    let steps: Vec<String> = steps.into_iter().filter(|step| !step.is_empty()).map(escape).collect();
    if steps.is_empty() { format!("-{SUFFIX}") } else { format!("{}{SUFFIX}", steps.join("-")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_a_step_down() {
        for (slice, path) in [
            ("-.slice", "/"),
            ("system.slice", "/system.slice"),
            ("kubepods-burstable.slice", "/kubepods.slice/kubepods-burstable.slice"),
            (
                "kubepods-besteffort-pod12ab_34.slice",
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12ab_34.slice",
            ),
        ] {
            assert_eq!(expand(slice).unwrap(), path);
            assert_eq!(of_path(slice).unwrap(), slice);
        }
    }

    #[test]
    fn what_is_no_slice_is_refused() {
        let long = format!("{}.slice", "a".repeat(250));
        for bad in [
            "",
            ".slice",
            "a",
            "a.scope",
            "-a.slice",
            "a-.slice",
            "a--b.slice",
            "a/b.slice",
            "a b.slice",
            &long,
        ] {
            assert_eq!(expand(bad), Err(BadSlice(bad.to_owned())));
        }
    }

    #[test]
    fn a_whole_path_must_be_the_one_of_its_name() {
        assert_eq!(of_path("/a.slice/a-b.slice/").unwrap(), "a-b.slice");
        for bad in
            ["/a-b.slice", "/x.slice/a-b.slice", "a.slice/a-b.slice", "/kubepods/podx", "/", "/../a.slice"]
        {
            assert!(of_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn steps_are_escaped_as_the_kubelet_does() {
        assert_eq!(name(["kubepods", "burstable", "pod1-2-3"]), "kubepods-burstable-pod1_2_3.slice");
        assert_eq!(name([]), "-.slice");
        assert_eq!(unescape("pod1_2_3"), "pod1-2-3");
    }
}
