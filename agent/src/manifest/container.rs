//! Kubernetes' Container to ours. Pure: owns the ledger of what is honoured, inert or
//! refused at container level; never looks at the pod beyond what is handed in.
//! Called by [`super::pod`].

use std::time::Duration;

use gantry_model::names;
use gantry_model::pod::volume::Volume;
use gantry_model::pod::{
    Container, Namespaces, PullPolicy, ResizePolicy, RestartAction, RestartPolicy, RestartRule, Role,
    TerminationMessage,
};
use k8s_openapi::api::core::v1 as api;

use super::field::{
    DNS_LABEL, FieldError, ManifestSource, Result, check, check_file, duplicate, forbidden, invalid, one_of,
    required, required_because,
};
use super::security::Inherited;
use super::{claim, device, env, network, probe, resources, security, volume};

/// As the API names them.
pub(super) const RESTART_POLICIES: [(&str, RestartPolicy); 3] = [
    ("Always", RestartPolicy::Always),
    ("Never", RestartPolicy::Never),
    ("OnFailure", RestartPolicy::OnFailure),
];

/// What a container takes over from its pod, or may refer to.
#[derive(Debug)]
pub(super) struct Around<'a> {
    pub(super) security: Inherited,
    pub(super) restart_policy: RestartPolicy,
    pub(super) grace: Duration,
    pub(super) namespaces: Namespaces,
    pub(super) source: ManifestSource,
    pub(super) volumes: &'a [Volume],
}

/// The init containers and the regular ones; at least one of these, names unique among all.
pub(super) fn all(
    init: Vec<api::Container>,
    regular: Vec<api::Container>,
    around: &Around<'_>,
) -> Result<(Vec<Container>, Vec<Container>)> {
    if regular.is_empty() {
        return Err(required("spec.containers"));
    }
    let regular = list("spec.containers", regular, &[], Role::Regular, around)?;
    let init = list("spec.initContainers", init, &regular, Role::Init, around)?;
    network::unique_host_ports("spec.containers", &regular)?;
    for (index, container) in init.iter().enumerate() {
        network::unique_host_ports("spec.initContainers", std::slice::from_ref(container))
            .map_err(|error| at_index(error, index))?;
    }
    Ok((init, regular))
}

/// Checked alone, it was number 0.
fn at_index(error: FieldError, index: usize) -> FieldError {
    match error {
        FieldError::Duplicate { field, value } => FieldError::Duplicate {
            field: field.replacen("initContainers[0]", &format!("initContainers[{index}]"), 1),
            value,
        },
        other => other,
    }
}

fn list(
    at: &str,
    list: Vec<api::Container>,
    others: &[Container],
    role: Role,
    around: &Around<'_>,
) -> Result<Vec<Container>> {
    let mut containers: Vec<Container> = Vec::with_capacity(list.len());
    for (index, container) in list.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let container = one(&at, container, role, around)?;
        if containers.iter().chain(others).any(|known| known.name == container.name) {
            return Err(duplicate(format!("{at}.name"), &container.name));
        }
        containers.push(container);
    }
    Ok(containers)
}

fn one(at: &str, container: api::Container, role: Role, around: &Around<'_>) -> Result<Container> {
    let source = around.source;
    let api::Container {
        // Honoured.
        name,
        image,
        command,
        args,
        working_dir,
        env,
        env_from,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        ports,
        readiness_probe,
        resources,
        restart_policy,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_mounts,
        restart_policy_rules,
        resize_policy,
        volume_devices,
    } = container;
    if name.is_empty() {
        return Err(required(format!("{at}.name")));
    }
    check(format!("{at}.name"), &name, names::is_dns_label, DNS_LABEL)?;
    let image = image.unwrap_or_default();
    if image.is_empty() && source.is_file() {
        return Err(required(format!("{at}.image")));
    }
    let trimmed = |i: &str| i.trim() == i;
    check(format!("{at}.image"), &image, trimmed, "must not have leading or trailing whitespace")?;
    let has_own = restart_policy.as_ref().is_some_and(|p| !p.is_empty());
    let (role, restart_policy) = restarts(at, role, restart_policy.as_deref(), around.restart_policy)?;
    let restart_rules =
        rules_of(&format!("{at}.restartPolicyRules"), restart_policy_rules.unwrap_or_default(), has_own)?;
    if role == Role::Init {
        let probes = [&liveness_probe, &readiness_probe, &startup_probe].map(Option::is_some);
        refuse_of_init(at, lifecycle.is_some(), probes)?;
    }
    let security = security::container(
        (&format!("{at}.securityContext"), &name),
        security_context,
        &around.security,
        around.namespaces,
        source,
    )?;
    let (hash, at_resources) = (hash_of(&name, &image), format!("{at}.resources"));
    let claims = claim::of_container(resources.as_ref());
    let written = resources::written(&at_resources, resources.clone(), source)?;
    let (mounts, devices) = (volume_mounts.unwrap_or_default(), volume_devices.unwrap_or_default());
    let mounts = volume::mounts(&format!("{at}.volumeMounts"), mounts, around.volumes, security.privileged)?;
    Ok(Container {
        devices: device::devices(&format!("{at}.volumeDevices"), devices, around.volumes, &mounts)?,
        mounts,
        pull_policy: pull_policy_of(format!("{at}.imagePullPolicy"), image_pull_policy.as_deref(), &image)?,
        role,
        restart_policy,
        command: texts(&format!("{at}.command"), command)?,
        args: texts(&format!("{at}.args"), args)?,
        restart_rules,
        written,
        claims,
        resize: resize_of(&format!("{at}.resizePolicy"), resize_policy.as_deref().unwrap_or_default())?,
        target: String::new(),
        working_dir: working_dir_of(at, working_dir, source)?,
        ports: network::ports(
            &format!("{at}.ports"),
            ports.unwrap_or_default(),
            around.namespaces.host_network,
        )?,
        resources: resources::resources(&at_resources, resources, source)?,
        env_from: env::env_from(&format!("{at}.envFrom"), env_from.unwrap_or_default())?,
        env: env::env(&format!("{at}.env"), env.unwrap_or_default(), around.volumes)?,
        probes: probe::probes(at, liveness_probe, readiness_probe, startup_probe)?,
        lifecycle: probe::lifecycle(&format!("{at}.lifecycle"), lifecycle, around.grace, source)?,
        termination_message: last_words_of(at, termination_message_path, termination_message_policy, source)?,
        stdin: stdin.unwrap_or(false),
        stdin_once: stdin_once.unwrap_or(false),
        tty: tty.unwrap_or(false),
        security,
        name,
        image,
        hash,
    })
}

/// `probes`: whether there is one of liveness, of readiness, of startup.
fn refuse_of_init(at: &str, lifecycle: bool, probes: [bool; 3]) -> Result<()> {
    let [liveness, readiness, startup] = probes;
    let fields = [
        ("lifecycle", lifecycle),
        ("livenessProbe", liveness),
        ("readinessProbe", readiness),
        ("startupProbe", startup),
    ];
    match fields.into_iter().find(|(_, set)| *set) {
        Some((field, _)) => Err(forbidden(
            format!("{at}.{field}"),
            "may not be set for init containers without restartPolicy=Always",
        )),
        None => Ok(()),
    }
}

/// Of each resource the last word counts.
fn resize_of(at: &str, policies: &[api::ContainerResizePolicy]) -> Result<ResizePolicy> {
    let mut found = ResizePolicy::default();
    let words = [("NotRequired", false), ("RestartContainer", true)];
    for (index, api::ContainerResizePolicy { resource_name, restart_policy }) in policies.iter().enumerate() {
        let restarts = one_of(format!("{at}[{index}].restartPolicy"), restart_policy, &words)?;
        let cpu = one_of(
            format!("{at}[{index}].resourceName"),
            resource_name,
            &[("cpu", true), ("memory", false)],
        )?;
        if cpu {
            found.cpu_restarts = restarts;
        } else {
            found.memory_restarts = restarts;
        }
    }
    Ok(found)
}

/// Its own policy wins over the pod's; an init container's `Always` makes it a sidecar.
fn restarts(at: &str, role: Role, own: Option<&str>, of_pod: RestartPolicy) -> Result<(Role, RestartPolicy)> {
    let Some(own) = own.filter(|p| !p.is_empty()) else { return Ok((role, of_pod)) };
    let policy = one_of(format!("{at}.restartPolicy"), own, &RESTART_POLICIES)?;
    let sidecar = role == Role::Init && policy == RestartPolicy::Always;
    Ok((if sidecar { Role::Sidecar } else { role }, policy))
}

/// They only go with a policy of the container's own, as in the API.
fn rules_of(at: &str, list: Vec<api::ContainerRestartRule>, has_own: bool) -> Result<Vec<RestartRule>> {
    if !list.is_empty() && !has_own {
        return Err(required_because(at, "must specify restartPolicy when restart rules are used"));
    }
    let actions =
        [("Restart", RestartAction::Restart), ("RestartAllContainers", RestartAction::RestartAllContainers)];
    let mut rules = Vec::with_capacity(list.len());
    for (index, api::ContainerRestartRule { action, exit_codes }) in list.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        let action = one_of(format!("{at}.action"), &action, &actions)?;
        let Some(api::ContainerRestartRuleOnExitCodes { operator, values }) = exit_codes else {
            return Err(required_because(format!("{at}.exitCodes"), "must be specified"));
        };
        let operators = [("In", true), ("NotIn", false)];
        let within = one_of(format!("{at}.exitCodes.operator"), &operator, &operators)?;
        let codes = values.unwrap_or_default();
        if codes.is_empty() || codes.len() > 255 {
            let why = "must have at least 1 and at most 255 values";
            return Err(invalid(format!("{at}.exitCodes.values"), "", why));
        }
        rules.push(RestartRule { action, within, codes });
    }
    Ok(rules)
}

/// Those added to a running pod: an API server has checked that they bring nothing that would change
/// the pod itself.
pub(super) fn ephemeral(list: Vec<api::EphemeralContainer>, around: &Around<'_>) -> Result<Vec<Container>> {
    let mut containers = Vec::with_capacity(list.len());
    for (index, container) in list.into_iter().enumerate() {
        let api::EphemeralContainer {
            args,
            command,
            env,
            env_from,
            image,
            image_pull_policy,
            lifecycle,
            liveness_probe,
            name,
            ports,
            readiness_probe,
            resize_policy,
            resources,
            restart_policy,
            restart_policy_rules,
            security_context,
            startup_probe,
            stdin,
            stdin_once,
            target_container_name,
            termination_message_path,
            termination_message_policy,
            tty,
            volume_devices,
            volume_mounts,
            working_dir,
        } = container;
        let common = api::Container {
            args,
            command,
            env,
            env_from,
            image,
            image_pull_policy,
            lifecycle,
            liveness_probe,
            name,
            ports,
            readiness_probe,
            resize_policy,
            resources,
            restart_policy,
            restart_policy_rules,
            security_context,
            startup_probe,
            stdin,
            stdin_once,
            termination_message_path,
            termination_message_policy,
            tty,
            volume_devices,
            volume_mounts,
            working_dir,
        };
        let made = one(&format!("spec.ephemeralContainers[{index}]"), common, Role::Ephemeral, around)?;
        let target = target_container_name.unwrap_or_default();
        containers.push(Container { target, restart_policy: RestartPolicy::Never, ..made });
    }
    Ok(containers)
}

/// What becomes an argument of a program cannot hold NUL.
fn texts(field: &str, list: Option<Vec<String>>) -> Result<Vec<String>> {
    let list = list.unwrap_or_default();
    for (index, text) in list.iter().enumerate() {
        check(format!("{field}[{index}]"), text, |t| !t.contains('\0'), "must not contain NUL")?;
    }
    Ok(list)
}

fn working_dir_of(at: &str, folder: Option<String>, source: ManifestSource) -> Result<String> {
    let folder = folder.unwrap_or_default();
    let plain = |f: &str| f.is_empty() || (f.starts_with('/') && !f.contains('\0'));
    check_file(source, format!("{at}.workingDir"), &folder, plain, "must be an absolute path")?;
    Ok(folder)
}

fn last_words_of(
    at: &str,
    path: Option<String>,
    policy: Option<String>,
    source: ManifestSource,
) -> Result<TerminationMessage> {
    let default = TerminationMessage::default();
    let path = path.filter(|p| !p.is_empty()).unwrap_or(default.path);
    let field = format!("{at}.terminationMessagePath");
    if source.is_file() {
        super::field::no_backsteps(&field, &path)?;
    }
    let of_file = |p: &str| p.starts_with('/') && !p.ends_with('/');
    check_file(source, field, &path, of_file, "must be the absolute path of a file")?;
    let policies = [("File", false), ("FallbackToLogsOnError", true)];
    let fallback_to_logs = match policy.filter(|p| !p.is_empty()) {
        None => default.fallback_to_logs,
        Some(policy) => one_of(format!("{at}.terminationMessagePolicy"), &policy, &policies)?,
    };
    Ok(TerminationMessage { path, fallback_to_logs })
}

pub(super) fn pull_policy_of(at: String, policy: Option<&str>, image: &str) -> Result<PullPolicy> {
    let policies = [
        ("Always", PullPolicy::Always),
        ("IfNotPresent", PullPolicy::IfNotPresent),
        ("Never", PullPolicy::Never),
    ];
    match policy {
        Some(text) if !text.is_empty() => one_of(at, text, &policies),
        _ if names::parse_image(image).is_some_and(|name| name.is_latest) => Ok(PullPolicy::Always),
        _ => Ok(PullPolicy::IfNotPresent),
    }
}

/// The kubelet's: FNV-1a 32 over how Go prints the bytes of a JSON object. A kubelet that takes over
/// would start again whatever has another.
fn hash_of(name: &str, image: &str) -> String {
    // Go escapes these in JSON; neither a name nor an image that runs has them.
    let text = |s: &str| {
        let quoted = serde_json::Value::from(s).to_string();
        quoted.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
    };
    let json = format!("{{\"image\":{},\"name\":{}}}", text(image), text(name));
    let bytes: Vec<String> = json.bytes().map(|byte| byte.to_string()).collect();
    let printed = format!("([]uint8)[{}]", bytes.join(" "));
    let hash = printed
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_kubelets() {
        // From container_hash_test.go of 1.36.
        assert_eq!(hash_of("test_container", "foo/image:v1"), "8e45cbd0");
    }
}
