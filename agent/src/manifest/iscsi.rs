//! A disk of an iSCSI target as a volume of a pod. Pure: owns the API server's defaults and its rules for such names. Called
//! by [`super::volume`].

use gantry_model::pod::volume::{IscsiVolume, VolumeSource};
use k8s_openapi::api::core::v1 as api;

use super::field::{Result, invalid, invalid_plain, required};

pub(super) fn source_of(at: &str, source: api::ISCSIVolumeSource) -> Result<VolumeSource> {
    let api::ISCSIVolumeSource {
        chap_auth_discovery,
        chap_auth_session,
        fs_type,
        initiator_name,
        iqn,
        iscsi_interface,
        lun,
        portals,
        read_only,
        secret_ref,
        target_portal,
    } = source;
    if target_portal.is_empty() {
        return Err(required(format!("{at}.targetPortal")));
    }
    if iqn.is_empty() {
        return Err(required(format!("{at}.iqn")));
    }
    is_iscsi_name(format!("{at}.iqn"), &iqn)?;
    if !(0..=255).contains(&lun) {
        return Err(invalid_plain(format!("{at}.lun"), lun, "must be between 0 and 255, inclusive"));
    }
    let (discovery_chap, session_chap) =
        (chap_auth_discovery.unwrap_or(false), chap_auth_session.unwrap_or(false));
    if (discovery_chap || session_chap) && secret_ref.is_none() {
        return Err(required(format!("{at}.secretRef")));
    }
    if let Some(initiator) = &initiator_name {
        is_iscsi_name(format!("{at}.initiatorname"), initiator)?;
    }
    Ok(VolumeSource::Iscsi(IscsiVolume {
        target_portal,
        portals: portals.unwrap_or_default(),
        iqn,
        lun,
        interface: iscsi_interface.unwrap_or_else(|| "default".to_owned()),
        initiator: initiator_name,
        discovery_chap,
        session_chap,
        secret: secret_ref.map(|of| (String::new(), of.name)),
        fs_type: fs_type.unwrap_or_default(),
        read_only: read_only.unwrap_or(false),
    }))
}

/// RFC 3721 and RFC 3980, as far as upstream checks them.
fn is_iscsi_name(field: String, name: &str) -> Result<()> {
    let alphanumeric =
        |text: &str, length: usize| text.len() == length && text.chars().all(|c| c.is_ascii_alphanumeric());
    let valid = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => name.get(4..).is_some_and(|rest| alphanumeric(rest, 16)),
        Some("naa") => name.get(4..).is_some_and(|rest| alphanumeric(rest, 32)),
        _ => return Err(invalid(field, name, "must be valid format starting with iqn, eui, or naa")),
    };
    if valid { Ok(()) } else { Err(invalid(field, name, "must be valid format")) }
}

/// `iqn.YYYY-MM.DOMAIN:NAME`.
fn is_iqn(name: &str) -> bool {
    let Some((authority, own)) = name.strip_prefix("iqn.").and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let digits = |text: Option<&str>| text.is_some_and(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let date = digits(authority.get(..4)) && authority.get(4..5) == Some("-") && digits(authority.get(5..7));
    let domain = authority.get(7..).and_then(|rest| rest.strip_prefix('.')).unwrap_or_default();
    let of_domain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let of_name = |c: char| !matches!(c, ',' | ';' | '*' | '&' | '$' | '|') && !c.is_ascii_whitespace();
    date && !domain.is_empty() && domain.chars().all(of_domain) && !own.is_empty() && own.chars().all(of_name)
}
