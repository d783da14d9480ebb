//! Paths in a container, by their text alone. Pure; owns that none leads above where it begins. Called by [`super`].

/// Without `.`, `//` and what `..` takes back, as Go's path.Clean.
pub(super) fn clean(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if absolute => {}
            part => parts.push(part),
        }
    }
    match (absolute, parts.is_empty()) {
        (true, _) => format!("/{}", parts.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => parts.join("/"),
    }
}

/// Folder and name of a clean path.
pub(super) fn split(path: &str) -> (String, String) {
    let or = |text: &str, or: &str| if text.is_empty() { or.to_owned() } else { text.to_owned() };
    match path.rsplit_once('/') {
        Some((folder, name)) => (or(folder, "/"), or(name, ".")),
        None => (".".to_owned(), path.to_owned()),
    }
}

/// What a path of this machine is called in a folder that it is copied into; a folder that is named by `.` gives its
/// content alone.
pub(super) fn base(path: &str) -> &str {
    match path.trim_end_matches('/').rsplit('/').next() {
        None | Some("" | "..") => ".",
        Some(name) => name,
    }
}

/// How tar names what was asked for: relative, and with nothing that leads up.
pub(super) fn within(path: &str) -> String {
    let clean = clean(path.trim_start_matches('/'));
    let parts = clean.split('/').skip_while(|part| matches!(*part, ".." | "." | ""));
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_split_and_kept_within() {
        for (path, want) in [
            ("/a/./b//c/..", "/a/b"),
            ("/..", "/"),
            ("a/../..", ".."),
            ("", "."),
            ("a/b/", "a/b"),
            ("/", "/"),
        ] {
            assert_eq!(clean(path), want, "{path}");
        }
        let split = |path: &str| {
            let (folder, name) = super::split(path);
            format!("{folder} {name}")
        };
        assert_eq!([split("/a/b"), split("/a"), split("a"), split("/")], ["/a b", "/ a", ". a", "/ ."]);
        assert_eq!(["a/b", "a/b/", "a/.", "/", ".."].map(base), ["b", "b", ".", ".", "."]);
        let all = ["/etc/hosts", "../../x", "..", ".", "/", "a/../../b"].map(within);
        assert_eq!(all, ["etc/hosts", "x", "", "", "", "b"]);
    }
}
