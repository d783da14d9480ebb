//! One variable out of a file of variables that an init container has left (fileKeyRef). Pure: owns the
//! kubelet's strict reading of it, `NAME='value'` and nothing else; never reads a file. Called by
//! [`super::environment`].

/// The value; empty when it is not there, or is written as nothing.
///
/// # Errors
/// When a line up to the variable is not of that form.
pub(super) fn value(text: &str, key: &str) -> Result<String, String> {
    let mut lines = (1_usize..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bad = |why: &str| format!("invalid environment variable format at line {number}: {why}");
        let (name, rest) = line.split_once('=').ok_or_else(|| bad("missing '='"))?;
        if name.trim_end_matches([' ', '\t']).is_empty() {
            return Err(bad("empty variable name"));
        }
        if name.ends_with([' ', '\t']) {
            return Err(bad("whitespace before '=' is not allowed"));
        }
        if rest.starts_with([' ', '\t']) {
            // As in a shell: the variable is empty, and what follows is something else.
            if name == key {
                return Ok(String::new());
            }
            continue;
        }
        let Some(quoted) = rest.strip_prefix('\'') else {
            return Err(bad("value must be enclosed in single quotes"));
        };
        let mut value = String::new();
        let mut rest = quoted;
        let after = loop {
            if let Some((head, after)) = rest.split_once('\'') {
                value.push_str(head);
                break after;
            }
            value.push_str(rest);
            value.push('\n');
            let Some((_, next)) = lines.next() else {
                let what = "invalid environment variable format starting at line";
                return Err(format!("{what} {number}: unclosed single quote"));
            };
            rest = next;
        };
        let after = after.trim_start_matches([' ', '\t']);
        if !after.is_empty() && !after.starts_with('#') {
            return Err(bad("unexpected content after closing quote"));
        }
        if name == key {
            return Ok(value);
        }
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_variables_is_read_as_the_kubelet_reads_it() {
        let text = "# made by init\n\n  A='1'\nB='two\nlines' # why\nC= 'x'\nD=''\nE='$HOME\\n'\n";
        for (key, expected) in
            [("A", "1"), ("B", "two\nlines"), ("C", ""), ("D", ""), ("E", "$HOME\\n"), ("F", "")]
        {
            assert_eq!(value(text, key), Ok(expected.to_owned()), "{key}");
        }
        for (text, part) in [
            ("A", "line 1: missing '='"),
            ("='x'", "line 1: empty variable name"),
            ("\nA ='x'", "line 2: whitespace before '='"),
            ("A=x", "must be enclosed in single quotes"),
            ("A='x", "starting at line 1: unclosed single quote"),
            ("A='x'y", "unexpected content after closing quote"),
        ] {
            let error = value(text, "Z").unwrap_err();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
