//! Claims of a pod to devices of DRA drivers, as its spec and its status name them. Owns the types; what an object is called
//! that was made from a template stands in the status alone. Pure.

use std::collections::BTreeMap;

use crate::quantity;

/// All of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceClaims {
    /// In the pod's order.
    pub listed: Vec<PodResourceClaim>,
    /// Made by the scheduler for extended resources that DRA drivers give.
    pub extended: Option<ExtendedClaim>,
}

/// One claim that containers name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodResourceClaim {
    /// By which containers name it.
    pub name: String,
    /// The object that stands for it.
    pub object: ClaimObject,
}

/// The ResourceClaim that a pod's claim is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimObject {
    /// One that somebody made, by name.
    Named(String),
    /// One that was made from a template for this pod alone, by name.
    Made(String),
    /// None: the template asks for nothing.
    Needless,
    /// A template from which nothing has been made yet.
    NotMade,
    /// Neither a name nor a template.
    Unset,
}

/// The claim for extended resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendedClaim {
    /// Of the ResourceClaim.
    pub name: String,
    /// Which container has what of it.
    pub requests: Vec<ExtendedRequest>,
}

/// One extended resource of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendedRequest {
    /// By name.
    pub container: String,
    /// As in its requests.
    pub resource: String,
    /// The request of the claim that stands for it.
    pub request: String,
}

/// What a container names of the pod's claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerClaim {
    /// Of the pod's claim.
    pub name: String,
    /// One request of it, or a subrequest (`request/subrequest`); all when empty.
    pub request: String,
}

impl ResourceClaims {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.extended.is_none()
    }

    /// Whether a container's extended resource comes of a DRA driver.
    #[must_use]
    pub fn gives(&self, container: &str, resource: &str) -> bool {
        let requests = self.extended.iter().flat_map(|claim| &claim.requests);
        requests.into_iter().any(|of| of.container == container && of.resource == resource)
    }

    /// The requests of each claim that a container names, by the name of the object; `requests` are its own, by resource.
    ///
    /// # Errors
    /// When a claim has no object yet, in upstream's words; `pod` is `namespace/name`.
    pub fn of_container(
        &self,
        pod: &str,
        (container, claims): (&str, &[ContainerClaim]),
        requests: &BTreeMap<String, String>,
    ) -> Result<Vec<(String, String)>, String> {
        let mut found = Vec::new();
        for listed in &self.listed {
            let named = claims.iter().filter(|claim| claim.name == listed.name);
            for claim in named {
                if let Some((object, _)) = listed.object(pod)? {
                    found.push((object.to_owned(), claim.request.clone()));
                }
            }
        }
        if let Some(extended) = &self.extended {
            let is_some = |amount: &String| quantity::parse_units(amount).is_ok_and(|units| units > 0);
            let own = |of: &&ExtendedRequest| {
                of.container == container && requests.get(&of.resource).is_some_and(is_some)
            };
            let of = extended.requests.iter().filter(own);
            found.extend(of.map(|of| (extended.name.clone(), of.request.clone())));
        }
        Ok(found)
    }
}

impl PodResourceClaim {
    /// The name of the object, and whether it must be the pod's own; none when it needs none.
    ///
    /// # Errors
    /// When there is none yet, in upstream's words; `pod` is `namespace/name`.
    pub fn object(&self, pod: &str) -> Result<Option<(&str, bool)>, String> {
        match &self.object {
            ClaimObject::Named(name) => Ok(Some((name, false))),
            ClaimObject::Made(name) => Ok(Some((name, true))),
            ClaimObject::Needless => Ok(None),
            ClaimObject::NotMade => Err(format!("pod {pod:?}: ResourceClaim not created yet")),
            ClaimObject::Unset => Err(format!(
                "pod {pod:?}, spec.resourceClaim {:?}: none of the supported fields are set",
                self.name
            )),
        }
    }
}
