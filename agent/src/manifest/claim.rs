//! Claims to devices of DRA drivers to ours: what spec and status say of them together. Pure. Called by [`super::pod`] and
//! [`super::container`].

use gantry_model::pod::claim::{
    ClaimObject, ContainerClaim, ExtendedClaim, ExtendedRequest, PodResourceClaim, ResourceClaims,
};
use k8s_openapi::api::core::v1 as api;

use super::field::{ManifestSource, Result, forbidden};

/// Of a pod. A file has no API server whose claims it could name.
pub(super) fn claims(
    list: Vec<api::PodResourceClaim>,
    status: Option<&api::PodStatus>,
    source: ManifestSource,
) -> Result<ResourceClaims> {
    if source.is_file() {
        return if list.is_empty() {
            Ok(ResourceClaims::default())
        } else {
            Err(forbidden("spec.resourceClaims", "static pods may not use ResourceClaims"))
        };
    }
    let made = status.and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or_default();
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    Ok(ResourceClaims {
        listed: list.into_iter().map(|claim| listed(claim, made)).collect(),
        extended: extended.map(extended_claim),
    })
}

fn listed(claim: api::PodResourceClaim, made: &[api::PodResourceClaimStatus]) -> PodResourceClaim {
    let api::PodResourceClaim { name, resource_claim_name, resource_claim_template_name } = claim;
    let object = match (resource_claim_name, resource_claim_template_name) {
        (Some(object), _) => ClaimObject::Named(object),
        (None, Some(_)) => match made.iter().find(|status| status.name == name) {
            None => ClaimObject::NotMade,
            Some(status) => {
                status.resource_claim_name.clone().map_or(ClaimObject::Needless, ClaimObject::Made)
            }
        },
        (None, None) => ClaimObject::Unset,
    };
    PodResourceClaim { name, object }
}

fn extended_claim(status: &api::PodExtendedResourceClaimStatus) -> ExtendedClaim {
    let request = |of: &api::ContainerExtendedResourceRequest| ExtendedRequest {
        container: of.container_name.clone(),
        resource: of.resource_name.clone(),
        request: of.request_name.clone(),
    };
    ExtendedClaim {
        name: status.resource_claim_name.clone(),
        requests: status.request_mappings.iter().map(request).collect(),
    }
}

/// Of a container.
pub(super) fn of_container(resources: Option<&api::ResourceRequirements>) -> Vec<ContainerClaim> {
    let claims = resources.and_then(|resources| resources.claims.as_deref()).unwrap_or_default();
    let claim = |claim: &api::ResourceClaim| ContainerClaim {
        name: claim.name.clone(),
        request: claim.request.clone().unwrap_or_default(),
    };
    claims.iter().map(claim).collect()
}
