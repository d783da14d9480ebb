//! Security contexts of pods and containers. Pure: owns their ledger and what a container takes
//! over from its pod; never resolves a user. Called by [`super::pod`] and [`super::container`].

use std::collections::BTreeMap;

use gantry_model::names;
use gantry_model::pod::security::{AppArmor, SeLinux};
use gantry_model::pod::{Namespaces, PodSecurity, Seccomp, Security};
use k8s_openapi::api::core::v1 as api;

use super::apparmor;
use super::field::{
    ManifestSource, Result, check, check_file, descending_path, duplicate, id_of, invalid, one_of,
    refuse_set, required, required_because,
};
use crate::admission::SAFE_SYSCTLS;

/// What the pod's security context says for containers that say nothing.
#[derive(Debug, Clone, Default)]
pub(super) struct Inherited {
    run_as_user: Option<i64>,
    run_as_group: Option<i64>,
    run_as_non_root: bool,
    seccomp: Option<Seccomp>,
    app_armor: Option<AppArmor>,
    /// Of containers by name, by the annotations of old.
    annotated: BTreeMap<String, AppArmor>,
    se_linux: Option<SeLinux>,
}

pub(super) fn pod(
    context: Option<api::PodSecurityContext>,
    annotations: &BTreeMap<String, String>,
    namespaces: Namespaces,
    source: ManifestSource,
) -> Result<(PodSecurity, Inherited)> {
    let api::PodSecurityContext {
        app_armor_profile,
        fs_group,
        fs_group_change_policy,
        run_as_group,
        run_as_non_root,
        run_as_user,
        se_linux_change_policy,
        se_linux_options,
        seccomp_profile,
        supplemental_groups,
        supplemental_groups_policy,
        sysctls,
        windows_options,
    } = context.unwrap_or_default();
    let at = "spec.securityContext";
    let app_armor = apparmor::profile(&format!("{at}.appArmorProfile"), app_armor_profile, source)?;
    let se_linux = se_linux_options.map(se_linux_of);
    if source.is_file() {
        refuse_set(format!("{at}.windowsOptions"), windows_options.is_some())?;
    }
    let se_linux_recursive = opts_out(at, se_linux_change_policy)?;
    let on_root_mismatch = match fs_group_change_policy {
        None => false,
        Some(policy) => one_of(
            format!("{at}.fsGroupChangePolicy"),
            &policy,
            &[("Always", false), ("OnRootMismatch", true)],
        )?,
    };
    let strict_groups = match supplemental_groups_policy {
        None => false,
        Some(policy) => {
            one_of(format!("{at}.supplementalGroupsPolicy"), &policy, &[("Merge", false), ("Strict", true)])?
        }
    };
    let supplemental_groups = supplemental_groups.unwrap_or_default();
    for (index, group) in supplemental_groups.iter().enumerate() {
        id_of(format!("{at}.supplementalGroups[{index}]"), Some(*group))?;
    }
    let seccomp = seccomp_of(&format!("{at}.seccompProfile"), seccomp_profile)?;
    let (user, group) =
        (id_of(format!("{at}.runAsUser"), run_as_user)?, id_of(format!("{at}.runAsGroup"), run_as_group)?);
    let security = PodSecurity {
        fs_group: id_of(format!("{at}.fsGroup"), fs_group)?,
        fs_group_on_root_mismatch: on_root_mismatch,
        se_linux_recursive,
        supplemental_groups,
        strict_groups,
        sysctls: sysctls_of(&format!("{at}.sysctls"), sysctls.unwrap_or_default(), namespaces, source)?,
        se_linux: se_linux.clone(),
        app_armor: apparmor::is_required(app_armor.as_ref(), annotations),
        run_as_user: user,
        run_as_group: group,
        seccomp: seccomp.clone(),
    };
    let inherited = Inherited {
        run_as_user: user,
        run_as_group: group,
        run_as_non_root: run_as_non_root.unwrap_or(false),
        seccomp,
        app_armor,
        annotated: apparmor::parse_annotations(annotations),
        se_linux,
    };
    Ok((security, inherited))
}

pub(super) fn container(
    (at, name): (&str, &str),
    context: Option<api::SecurityContext>,
    inherited: &Inherited,
    namespaces: Namespaces,
    source: ManifestSource,
) -> Result<Security> {
    let api::SecurityContext {
        allow_privilege_escalation,
        app_armor_profile,
        capabilities,
        privileged,
        proc_mount,
        read_only_root_filesystem,
        run_as_group,
        run_as_non_root,
        run_as_user,
        se_linux_options,
        seccomp_profile,
        windows_options,
    } = context.unwrap_or_default();
    let app_armor = apparmor::profile(&format!("{at}.appArmorProfile"), app_armor_profile, source)?
        .or_else(|| inherited.annotated.get(name).cloned())
        .or_else(|| inherited.app_armor.clone());
    let se_linux = se_linux_options.map(se_linux_of);
    if source.is_file() {
        refuse_set(format!("{at}.windowsOptions"), windows_options.is_some())?;
    }
    let mut unmasked_proc = false;
    if let Some(kind) = proc_mount.filter(|k| !k.is_empty()) {
        let field = format!("{at}.procMount");
        unmasked_proc = one_of(&field, &kind, &[("Default", false), ("Unmasked", true)])?;
        if unmasked_proc && !namespaces.own_users {
            return Err(invalid(field, &kind, "`hostUsers` must be false to use `Unmasked`"));
        }
    }
    let api::Capabilities { add, drop } = capabilities.unwrap_or_default();
    let add_capabilities = capabilities_of(&format!("{at}.capabilities.add"), add, source)?;
    let privileged = privileged.unwrap_or(false);
    if allow_privilege_escalation == Some(false) {
        let both = |what: &str| {
            invalid(at, "", format!("cannot set `allowPrivilegeEscalation` to false and {what}"))
        };
        if privileged {
            return Err(both("`privileged` to true"));
        }
        if add_capabilities.iter().any(|c| c == "CAP_SYS_ADMIN") {
            return Err(both("`capabilities.Add` CAP_SYS_ADMIN"));
        }
    }
    Ok(Security {
        run_as_user: id_of(format!("{at}.runAsUser"), run_as_user)?.or(inherited.run_as_user),
        run_as_group: id_of(format!("{at}.runAsGroup"), run_as_group)?.or(inherited.run_as_group),
        run_as_non_root: run_as_non_root.unwrap_or(inherited.run_as_non_root),
        add_capabilities,
        drop_capabilities: capabilities_of(&format!("{at}.capabilities.drop"), drop, source)?,
        privileged,
        read_only_root: read_only_root_filesystem.unwrap_or(false),
        no_new_privileges: allow_privilege_escalation == Some(false),
        unmasked_proc,
        app_armor,
        se_linux: se_linux.or_else(|| inherited.se_linux.clone()),
        seccomp: seccomp_of(&format!("{at}.seccompProfile"), seccomp_profile)?
            .or_else(|| inherited.seccomp.clone()),
    })
}

/// Of mounts with its label.
fn opts_out(at: &str, policy: Option<String>) -> Result<bool> {
    let policies = [("MountOption", false), ("Recursive", true)];
    policy.map_or(Ok(false), |policy| one_of(format!("{at}.seLinuxChangePolicy"), &policy, &policies))
}

/// Labels are the runtime's to set, where the node has SELinux.
fn se_linux_of(options: api::SELinuxOptions) -> SeLinux {
    let api::SELinuxOptions { level, role, type_, user } = options;
    let text = |text: Option<String>| text.unwrap_or_default();
    SeLinux { user: text(user), role: text(role), kind: text(type_), level: text(level) }
}

fn seccomp_of(at: &str, profile: Option<api::SeccompProfile>) -> Result<Option<Seccomp>> {
    let Some(api::SeccompProfile { localhost_profile, type_ }) = profile else { return Ok(None) };
    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        Localhost,
        Default,
        Unconfined,
    }
    let kinds =
        [("Localhost", Kind::Localhost), ("RuntimeDefault", Kind::Default), ("Unconfined", Kind::Unconfined)];
    let kind = one_of(format!("{at}.type"), &type_, &kinds)?;
    let field = format!("{at}.localhostProfile");
    match (kind, localhost_profile) {
        (Kind::Localhost, None) => Err(required_because(field, "must be set when seccomp type is Localhost")),
        (Kind::Localhost, Some(path)) => {
            descending_path(field, &path)?;
            Ok(Some(Seccomp::Localhost(path)))
        }
        (_, Some(path)) => Err(invalid(field, &path, "can only be set when seccomp type is Localhost")),
        (Kind::Default, None) => Ok(Some(Seccomp::RuntimeDefault)),
        (Kind::Unconfined, None) => Ok(Some(Seccomp::Unconfined)),
    }
}

fn capabilities_of(field: &str, list: Option<Vec<String>>, source: ManifestSource) -> Result<Vec<String>> {
    let list = list.unwrap_or_default();
    let word = |c: &str| {
        !c.is_empty() && c.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    for capability in &list {
        check_file(
            source,
            field,
            capability,
            word,
            "must be a capability's name in capitals, such as NET_ADMIN",
        )?;
    }
    Ok(list)
}

/// One that would be the node's.
fn not_on_the_host(field: &str, name: &str, dotted: &str, namespaces: Namespaces) -> Result<()> {
    let of_ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    let is_ipc = dotted == "kernel.sem" || of_ipc.iter().any(|prefix| dotted.starts_with(prefix));
    if namespaces.host_network && dotted.starts_with("net.") {
        return Err(invalid(field, name, "may not be specified when 'hostNetwork' is true"));
    }
    if namespaces.host_ipc && is_ipc {
        return Err(invalid(field, name, "may not be specified when 'hostIPC' is true"));
    }
    Ok(())
}

fn sysctls_of(
    at: &str,
    list: Vec<api::Sysctl>,
    namespaces: Namespaces,
    source: ManifestSource,
) -> Result<Vec<(String, String)>> {
    let mut sysctls: Vec<(String, String)> = Vec::with_capacity(list.len());
    for (index, api::Sysctl { name, value }) in list.into_iter().enumerate() {
        let field = format!("{at}[{index}].name");
        if name.is_empty() {
            return Err(required(field));
        }
        check(
            &field,
            &name,
            names::is_sysctl,
            "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
        )?;
        if sysctls.iter().any(|(known, _)| *known == name) {
            return Err(duplicate(field, &name));
        }
        let dotted = name.replace('/', ".");
        not_on_the_host(&field, &name, &dotted, namespaces)?;
        // Of an API pod the admission says SysctlForbidden, by the node's own list.
        if source.is_file() && !SAFE_SYSCTLS.contains(&dotted.as_str()) {
            return Err(super::field::forbidden(
                field,
                &format!("forbidden sysctl: {name:?} not allowlisted"),
            ));
        }
        sysctls.push((dotted, value));
    }
    Ok(sysctls)
}
