//! Where apt on this host gets Debian from. Owns the question to apt; downloads nothing. Called by the
//! clean room and by the VM's kernel.

use std::process::Command;

use anyhow::{Context, Result};

use crate::sh;

/// Debian's keys, in the package debian-archive-keyring.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A repository of Debian's own packages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    pub(crate) uri: String,
    pub(crate) suite: String,
}

impl Repository {
    /// A line of sources.list(5).
    pub(crate) fn line(&self) -> String {
        format!("deb {} {} main\n", self.uri, self.suite)
    }
}

/// The first one that apt names.
///
/// # Errors
/// When apt has no lists: they come by `apt-get update`.
pub(crate) fn find() -> Result<Repository> {
    let format = "$(ORIGIN)\t$(COMPONENT)\t$(REPO_URI)\t$(CODENAME)";
    let mut asked = Command::new("apt-get");
    let text = sh::output(asked.args(["indextargets", "--format", format, "Created-By: Packages"]))?;
    first(&String::from_utf8_lossy(&text)).context("apt knows no repository of Debian's: apt-get update")
}

fn first(text: &str) -> Option<Repository> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[origin, component, uri, suite] = &fields[..] else { return None };
        // Updates and security are no whole Debian.
        let whole = origin == "Debian" && component == "main" && !suite.contains('-');
        whole.then(|| Repository { uri: uri.to_owned(), suite: suite.to_owned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_debian_itself() {
        let text = "Other\tmain\thttp://a/\tbookworm\nDebian\tmain\thttp://b/\tbookworm-updates\n\
                    Debian\tmain\thttp://c/debian/\tbookworm\n";
        let expected = Repository { uri: "http://c/debian/".to_owned(), suite: "bookworm".to_owned() };
        assert_eq!(first(text), Some(expected));
        assert_eq!(first(""), None);
    }
}
