//! SELinux labels: what a request asks for, what the node's policy has for containers, and the two labels that
//! follow. Pure. The rules are those of opencontainers/selinux and containerd. Called by `selinux`, `sandbox::run`
//! and `container::create`.

use std::fmt;

use gantry_proto::cri;

use super::Error;

/// `user:role:type:level`; a policy without levels has no last part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SelinuxContext {
    pub user: String,
    pub role: String,
    pub kind: String,
    pub level: String,
}

impl fmt::Display for SelinuxContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.user, self.role, self.kind)?;
        if self.level.is_empty() { Ok(()) } else { write!(f, ":{}", self.level) }
    }
}

impl SelinuxContext {
    /// None for a text that is no label.
    #[must_use]
    pub(crate) fn parse(label: &str) -> Option<Self> {
        let mut parts = label.splitn(4, ':').map(str::to_owned);
        let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { user, role, kind, level: parts.next().unwrap_or_default() })
    }
}

/// What a request says; an empty part is the policy's to fill.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SelinuxOptions(SelinuxContext);

impl SelinuxOptions {
    /// Of a request.
    ///
    /// # Errors
    /// What is no part of a label.
    pub(crate) fn new(options: Option<&cri::SeLinuxOption>) -> Result<Self, Error> {
        let Some(options) = options else { return Ok(Self::default()) };
        let cri::SeLinuxOption { user, role, r#type: kind, level } = options.clone();
        if !level.is_empty() && !is_level(&level) {
            return Err(Error::SelinuxLevel(level));
        }
        for (field, value) in [
            ("selinux_options.user", &user),
            ("selinux_options.role", &role),
            ("selinux_options.type", &kind),
        ] {
            let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
            if !value.chars().all(plain) {
                return Err(Error::Invalid {
                    field,
                    value: value.clone(),
                    expected: "letters, digits, and any of _.-",
                });
            }
        }
        Ok(Self(SelinuxContext { user, role, kind, level }))
    }

    /// As an earlier label: a container's that asks for nothing is its sandbox's.
    #[must_use]
    pub(crate) fn with_default_label(self, label: &str) -> Self {
        if self != Self::default() {
            return self;
        }
        let whole = |context: &SelinuxContext| {
            ![&context.user, &context.role, &context.kind].iter().any(|part| part.is_empty())
        };
        SelinuxContext::parse(label).filter(whole).map_or(self, Self)
    }
}

/// `s0`, `s0-s1`, `s0:c1,c5`, `s0:c1.c5,c7`: containerd's pattern.
fn is_level(level: &str) -> bool {
    let number = |text: &str, letter: char, most: usize| {
        text.strip_prefix(letter).is_some_and(|digits| {
            (1..=most).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let (sensitivity, categories) = match level.split_once(':') {
        Some((sensitivity, categories)) => (sensitivity, Some(categories)),
        None => (level, None),
    };
    let range = |text: &str, separator: char, one: &dyn Fn(&str) -> bool| match text.split_once(separator) {
        Some((low, high)) => one(low) && one(high),
        None => one(text),
    };
    let category = |text: &str| number(text, 'c', 4);
    range(sensitivity, '-', &|text| number(text, 's', 1))
        && categories.is_none_or(|all| all.split(',').all(|part| range(part, '.', &category)))
}

/// What the node's policy has for containers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SelinuxPolicy {
    pub process: String,
    pub file: String,
}

impl SelinuxPolicy {
    /// Of the file `lxc_contexts` or `contexts`: `name = "label"`, a line each.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
        let mut policy = Self::default();
        for (name, value) in pairs.filter_map(|line| line.split_once('=')) {
            let value = value.trim().trim_matches('"').to_owned();
            match name.trim() {
                "process" => policy.process = value,
                "file" => policy.file = value,
                _ => {}
            }
        }
        policy
    }

    /// The labels of a process and of what is mounted for it. `fresh` makes a level that nobody else has; it is
    /// not called for one that is asked for.
    #[must_use]
    pub(crate) fn labels(&self, wanted: &SelinuxOptions, fresh: impl FnOnce() -> String) -> (String, String) {
        let parsed = SelinuxContext::parse(&self.process).zip(SelinuxContext::parse(&self.file));
        let Some((mut process, mut file)) = parsed else { return (String::new(), self.file.clone()) };
        let SelinuxOptions(wanted) = wanted;
        if !wanted.level.is_empty() {
            process.level.clone_from(&wanted.level);
            file.level.clone_from(&wanted.level);
        } else if !process.level.is_empty() {
            process.level = fresh();
            file.level.clone_from(&process.level);
        }
        for (own, asked) in [
            (&mut process.user, &wanted.user),
            (&mut process.role, &wanted.role),
            (&mut process.kind, &wanted.kind),
            // What a process of another user makes is that user's.
            (&mut file.user, &wanted.user),
        ] {
            if !asked.is_empty() {
                own.clone_from(asked);
            }
        }
        (process.to_string(), file.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# of the policy\nprocess = \"system_u:system_r:container_t:s0\"\n\
                        file=\"system_u:object_r:container_file_t:s0\"\n;x=y\nro_file = \"ro\"\n";

    fn asks(user: &str, role: &str, kind: &str, level: &str) -> Result<SelinuxOptions, Error> {
        let option = cri::SeLinuxOption {
            user: user.into(),
            role: role.into(),
            r#type: kind.into(),
            level: level.into(),
        };
        SelinuxOptions::new(Some(&option))
    }

    fn labels(wanted: &SelinuxOptions) -> (String, String) {
        SelinuxPolicy::parse(FILE).labels(wanted, || "s0:c1,c2".to_owned())
    }

    #[test]
    fn a_container_has_the_policys_label_with_a_level_of_its_own() {
        let (process, file) = labels(&SelinuxOptions::new(None).unwrap());
        assert_eq!(process, "system_u:system_r:container_t:s0:c1,c2");
        assert_eq!(file, "system_u:object_r:container_file_t:s0:c1,c2");
    }

    #[test]
    fn what_a_request_says_replaces_part_by_part() {
        let (process, file) = labels(&asks("u", "r", "t", "s0:c5,c9").unwrap());
        assert_eq!(
            (process.as_str(), file.as_str()),
            ("u:r:t:s0:c5,c9", "u:object_r:container_file_t:s0:c5,c9")
        );
        let (process, file) = labels(&asks("", "", "spc_t", "").unwrap());
        assert_eq!(process, "system_u:system_r:spc_t:s0:c1,c2");
        assert_eq!(file, "system_u:object_r:container_file_t:s0:c1,c2");
    }

    #[test]
    fn a_container_that_asks_for_nothing_has_its_sandboxs_label() {
        let sandbox = "a:b:c:s0:c7,c8";
        assert_eq!(labels(&SelinuxOptions::default().with_default_label(sandbox)).0, sandbox);
        assert_eq!(
            labels(&asks("", "", "t", "").unwrap().with_default_label(sandbox)).0,
            "system_u:system_r:t:s0:c1,c2"
        );
        assert_eq!(
            labels(&SelinuxOptions::default().with_default_label("")).0,
            "system_u:system_r:container_t:s0:c1,c2"
        );
    }

    #[test]
    fn a_policy_without_levels_or_without_containers_is_taken_as_it_is() {
        let flat = SelinuxPolicy { process: "u:r:t".into(), file: "u:o:f".into() };
        assert_eq!(
            flat.labels(&SelinuxOptions::default(), || unreachable!()),
            ("u:r:t".into(), "u:o:f".into())
        );
        assert_eq!(
            SelinuxPolicy::parse("").labels(&SelinuxOptions::default(), String::new),
            (String::new(), String::new())
        );
    }

    #[test]
    fn levels_are_containerds() {
        for level in ["s0", "s0-s3", "s0:c1", "s0:c1,c2", "s0:c0.c1023", "s0-s1:c1.c2,c4,c6.c9"] {
            assert!(asks("", "", "", level).is_ok(), "{level}");
        }
        for level in
            ["s", "s10", "c1", "s0:", "s0:c", "s0:c12345", "s0:c1,", "s0:c1.c2.c3", "s0:1", "s0 ", "s0-"]
        {
            let error = asks("", "", "", level).unwrap_err().to_string();
            assert_eq!(error, format!("the format of 'level' {level:?} is not correct"));
        }
        for odd in ["a:b", "a,b", "a\"", "a b", "a\0"] {
            assert!(
                asks(odd, "", "", "").is_err()
                    && asks("", odd, "", "").is_err()
                    && asks("", "", odd, "").is_err()
            );
        }
    }
}
