//! The seccomp profile of a request. Pure. The rules are containerd's (sputil). Called by `spec::container` and `spec::sandbox`.

use gantry_proto::cri;
use gantry_proto::cri::security_profile::ProfileType;

use super::Error;
use crate::config::RuntimeConfig;
use crate::seccomp::SeccompChoice;

const SECCOMP: &str = "security_context.seccomp";

/// The profile behind the configuration's `unset_seccomp_profile`, or behind the handler's in its place. The runtime's
/// start has checked both.
pub(crate) fn unset_seccomp_profile(config: &RuntimeConfig, of_handler: Option<&str>) -> SeccompChoice {
    seccomp_by_name("unset_seccomp_profile", of_handler.unwrap_or(&config.unset_seccomp_profile))
        .unwrap_or(SeccompChoice::RuntimeDefault)
}

/// The seccomp profile of a container or sandbox. `old` is the field that clients set before there
/// was `new`, `unset` what the node's configuration says for those that set neither.
///
/// # Errors
/// A profile that is none.
pub(crate) fn seccomp(
    new: Option<&cri::SecurityProfile>,
    old: &str,
    privileged: bool,
    unset: &SeccompChoice,
) -> Result<SeccompChoice, Error> {
    // A privileged container has no profile, whatever it asks for.
    if privileged {
        return Ok(SeccompChoice::Unconfined);
    }
    let Some(profile) = new else {
        return if old.is_empty() {
            Ok(unset.clone())
        } else {
            seccomp_by_name("security_context.seccomp_profile_path", old)
        };
    };
    let kind = ProfileType::try_from(profile.profile_type).map_err(|_| Error::Invalid {
        field: SECCOMP,
        value: profile.profile_type.to_string(),
        expected: "a known profile_type",
    })?;
    if kind != ProfileType::Localhost && !profile.localhost_ref.is_empty() {
        return Err(Error::Invalid {
            field: "security_context.seccomp.localhost_ref",
            value: profile.localhost_ref.clone(),
            expected: "set with profile_type Localhost only",
        });
    }
    match kind {
        ProfileType::Unconfined => Ok(SeccompChoice::Unconfined),
        ProfileType::RuntimeDefault => Ok(SeccompChoice::RuntimeDefault),
        ProfileType::Localhost => file(
            "security_context.seccomp.localhost_ref",
            profile.localhost_ref.strip_prefix("localhost/").unwrap_or(&profile.localhost_ref),
        ),
    }
}

/// A profile by the names of the old field, which the configuration uses, too.
///
/// # Errors
/// Any other name.
pub(crate) fn seccomp_by_name(field: &'static str, name: &str) -> Result<SeccompChoice, Error> {
    match name {
        "" | "unconfined" => Ok(SeccompChoice::Unconfined),
        "runtime/default" | "docker/default" => Ok(SeccompChoice::RuntimeDefault),
        _ => match name.strip_prefix("localhost/") {
            Some(path) => file(field, path),
            None => Err(Error::Invalid {
                field,
                value: name.to_owned(),
                expected: "runtime/default, unconfined or localhost//path",
            }),
        },
    }
}

fn file(field: &'static str, path: &str) -> Result<SeccompChoice, Error> {
    if path.starts_with('/') && !path.contains('\0') {
        Ok(SeccompChoice::Localhost(path.into()))
    } else {
        Err(Error::Invalid { field, value: path.to_owned(), expected: "an absolute path" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(kind: ProfileType, path: &str) -> cri::SecurityProfile {
        cri::SecurityProfile { profile_type: kind.into(), localhost_ref: path.into() }
    }

    #[test]
    fn none_means_what_the_node_says_and_the_zero_value_is_the_default_profile() {
        let seccomp = |new: Option<cri::SecurityProfile>, old: &str, privileged| {
            seccomp(new.as_ref(), old, privileged, &SeccompChoice::Unconfined).unwrap()
        };
        assert_eq!(seccomp(None, "", false), SeccompChoice::Unconfined);
        assert_eq!(seccomp(Some(cri::SecurityProfile::default()), "", false), SeccompChoice::RuntimeDefault);
        assert_eq!(seccomp(Some(cri::SecurityProfile::default()), "", true), SeccompChoice::Unconfined);
        assert_eq!(seccomp(None, "docker/default", false), SeccompChoice::RuntimeDefault);
        assert_eq!(seccomp(None, "localhost//a/b.json", false), SeccompChoice::Localhost("/a/b.json".into()));
        let path = profile(ProfileType::Localhost, "/a/b.json");
        assert_eq!(seccomp(Some(path), "unconfined", false), SeccompChoice::Localhost("/a/b.json".into()));
    }

    #[test]
    fn half_a_profile_is_refused() {
        for (kind, path) in [
            (ProfileType::Localhost, ""),
            (ProfileType::Localhost, "relative.json"),
            (ProfileType::RuntimeDefault, "/a/b.json"),
        ] {
            assert!(
                seccomp(Some(&profile(kind, path)), "", false, &SeccompChoice::Unconfined).is_err(),
                "{path:?}"
            );
        }
        assert!(seccomp_by_name("x", "strict").is_err());
    }
}
