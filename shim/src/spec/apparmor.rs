//! Which AppArmor profile a container gets. Pure. The rules and words are containerd's (sputil); whether the
//! node has AppArmor comes in as an argument. Called by `container::create`.

use gantry_proto::cri;
use gantry_proto::cri::security_profile::ProfileType;

use super::Error;

/// The profile of containers that ask for the runtime's own, and where there is AppArmor for those that ask for
/// none. By containerd's name: tools and tests look for it, and a node that swaps runtimes has one, not two.
pub(crate) const DEFAULT: &str = "cri-containerd.apparmor.d";

/// What to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Profile {
    /// None.
    Unconfined,
    /// `DEFAULT`, to be loaded when it is not.
    Default,
    /// One that must be loaded already.
    Named(String),
}

/// The profile of a container. The old field counts where the new one is not set.
///
/// # Errors
/// A profile that is none, and any where the node has no AppArmor.
pub(crate) fn profile(
    security: &cri::LinuxContainerSecurityContext,
    enabled: bool,
) -> Result<Profile, Error> {
    let wanted = match &security.apparmor {
        Some(profile) => Some(profile.clone()),
        None => old(security)?,
    };
    if !enabled {
        return match wanted {
            Some(profile) if profile.profile_type() != ProfileType::Unconfined => {
                Err(refusal("apparmor is not supported"))
            }
            _ => Ok(Profile::Unconfined),
        };
    }
    // kubernetes#51746: the default profile when nobody names one.
    let wanted = wanted.unwrap_or_default();
    let kind =
        ProfileType::try_from(wanted.profile_type).map_err(|_| refusal("apparmor unknown ProfileType"))?;
    if kind != ProfileType::Localhost && !wanted.localhost_ref.is_empty() {
        return Err(refusal(
            "apparmor config invalid LocalhostRef must only be set if ProfileType is Localhost",
        ));
    }
    match kind {
        ProfileType::Unconfined => Ok(Profile::Unconfined),
        ProfileType::RuntimeDefault if security.privileged => Ok(Profile::Unconfined),
        ProfileType::RuntimeDefault => Ok(Profile::Default),
        ProfileType::Localhost => {
            let name = wanted.localhost_ref.strip_prefix("localhost/").unwrap_or(&wanted.localhost_ref);
            match name {
                "" => Err(refusal(
                    "failed to generate apparmor spec opts: nil apparmor profile is not supported",
                )),
                // What the kernel's interface and list are parted by.
                _ if name.contains(['\0', '\n']) => Err(refusal("a profile's name is one line")),
                _ => Ok(Profile::Named(name.to_owned())),
            }
        }
    }
}

/// The words are wrapped as containerd wraps them.
pub(crate) fn refusal(why: &str) -> Error {
    Error::AppArmor(why.to_owned())
}

#[expect(deprecated, reason = "clients still set the old field, and containerd honours it")]
fn old(security: &cri::LinuxContainerSecurityContext) -> Result<Option<cri::SecurityProfile>, Error> {
    let of = |kind: ProfileType, path: &str| {
        Some(cri::SecurityProfile { profile_type: kind.into(), localhost_ref: path.to_owned() })
    };
    match security.apparmor_profile.as_str() {
        "" => Ok(None),
        "runtime/default" | "docker/default" => Ok(of(ProfileType::RuntimeDefault, "")),
        "unconfined" => Ok(of(ProfileType::Unconfined, "")),
        name => match name.strip_prefix("localhost/") {
            Some(path) => Ok(of(ProfileType::Localhost, path)),
            None => Err(refusal(&format!("invalid profile {name:?}"))),
        },
    }
}

/// Whether the kernel's list (`NAME (MODE)`, a line each) has the profile.
pub(crate) fn is_listed(list: &str, profile: &str) -> bool {
    list.lines().any(|line| line.strip_prefix(profile).is_some_and(|rest| rest.starts_with(" (")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(deprecated, reason = "the old field is what is tested")]
    fn asks(
        new: Option<(ProfileType, &str)>,
        old: &str,
        privileged: bool,
    ) -> cri::LinuxContainerSecurityContext {
        cri::LinuxContainerSecurityContext {
            apparmor: new.map(|(kind, path)| cri::SecurityProfile {
                profile_type: kind.into(),
                localhost_ref: path.into(),
            }),
            apparmor_profile: old.into(),
            privileged,
            ..cri::LinuxContainerSecurityContext::default()
        }
    }

    #[test]
    fn a_node_without_apparmor_refuses_profiles_and_nothing_else() {
        use ProfileType::{Localhost, RuntimeDefault, Unconfined};
        for (new, old, fine) in [
            (None, "", true),
            (Some((Unconfined, "")), "", true),
            (None, "unconfined", true),
            (Some((RuntimeDefault, "")), "", false),
            (Some((Localhost, "p")), "", false),
            (None, "runtime/default", false),
            (None, "localhost/p", false),
        ] {
            let found = profile(&asks(new, old, false), false);
            let words = "failed to generate apparmor spec opts: apparmor is not supported";
            match fine {
                true => assert_eq!(found, Ok(Profile::Unconfined)),
                false => assert_eq!(found.unwrap_err().to_string(), words),
            }
        }
    }

    #[test]
    fn a_node_with_apparmor_confines_whoever_does_not_say_otherwise() {
        use ProfileType::{Localhost, RuntimeDefault, Unconfined};
        let named = || Profile::Named("p".into());
        for (new, old, privileged, expected) in [
            (None, "", false, Profile::Default),
            (None, "", true, Profile::Unconfined),
            (Some((RuntimeDefault, "")), "", true, Profile::Unconfined),
            (Some((Unconfined, "")), "runtime/default", false, Profile::Unconfined),
            (None, "docker/default", false, Profile::Default),
            // A profile by name holds also for a privileged container.
            (Some((Localhost, "localhost/p")), "", true, named()),
            (None, "localhost/p", false, named()),
        ] {
            assert_eq!(profile(&asks(new, old, privileged), true), Ok(expected), "{new:?} {old}");
        }
        for (new, old, words) in [
            (Some((RuntimeDefault, "p")), "", "invalid LocalhostRef must only be set"),
            (Some((Localhost, "")), "", "nil apparmor profile is not supported"),
            (Some((Localhost, "a\nb")), "", "one line"),
            (None, "strict", "invalid profile \"strict\""),
        ] {
            let error = profile(&asks(new, old, false), true).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_profile_is_in_the_kernels_list_by_its_whole_name() {
        let list = "/usr/bin/man (enforce)\nmine (complain)\nmine-too (enforce)\n";
        assert!(is_listed(list, "mine") && is_listed(list, "/usr/bin/man"));
        assert!(!is_listed(list, "min") && !is_listed(list, "too") && !is_listed("", "mine"));
    }
}
