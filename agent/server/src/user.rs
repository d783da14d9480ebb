//! Who asks. Owns the type; never decides what somebody may do. Made by [`super::authn`], judged by
//! [`super::authz`].

use std::collections::BTreeMap;

/// Everybody who showed a credential.
const AUTHENTICATED: &str = "system:authenticated";
/// Where an API server notes which credential it was.
pub(super) const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A user as a SubjectAccessReview names one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct User {
    /// The only part that is always there.
    pub name: String,
    /// Mostly empty.
    pub uid: String,
    /// In the order given.
    pub groups: Vec<String>,
    /// Whatever else is known.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Somebody without a credential, where that is allowed.
    pub(super) fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// With the group of those who showed a credential; the anonymous are not made more of.
    pub(super) fn with_authenticated_group(mut self) -> Self {
        let special = [AUTHENTICATED, "system:unauthenticated"];
        if self.name != "system:anonymous"
            && !self.groups.iter().any(|group| special.contains(&group.as_str()))
        {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}
