//! SELinux labels: what a request asks for, what the node's policy has for containers, and the two labels that
//! follow. Pure. The rules are those of opencontainers/selinux and containerd. Called by `selinux`, `sandbox::run`
//! and `container::create`.

use gantry_base::selinux::SelinuxContext;
use gantry_proto::cri;

use super::Error;

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

    /// Part by part.
    pub(crate) fn parts(&self) -> &SelinuxContext {
        &self.0
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

#[cfg(test)]
mod tests {
    use gantry_base::selinux::SelinuxPolicy;

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
        SelinuxPolicy::parse(FILE).labels(wanted.parts(), || "s0:c1,c2".to_owned())
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
            flat.labels(&SelinuxContext::default(), || unreachable!()),
            ("u:r:t".into(), "u:o:f".into())
        );
        assert_eq!(
            SelinuxPolicy::parse("").labels(&SelinuxContext::default(), String::new),
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
