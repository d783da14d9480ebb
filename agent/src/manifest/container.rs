//! Kubernetes' Container to ours. Pure: owns the ledger of what is honoured, inert or
//! refused at container level; never looks at the pod beyond the defaults handed in.
//! Called by [`super::convert`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self as api};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::convert::{FieldError, check, refuse_set};
use super::{names, quantity};
use crate::pod::spec::env::{EnvValue, EnvVar};
use crate::pod::spec::probe::{Lifecycle, Probes};
use crate::pod::spec::{
    Container, Port, PullPolicy, Resources, RestartPolicy, Role, Security, TerminationMessage,
};

/// What the pod's security context says for containers that say nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct PodDefaults {
    pub(super) run_as_user: Option<i64>,
    pub(super) run_as_group: Option<i64>,
    pub(super) restart_policy: RestartPolicy,
}

impl Default for PodDefaults {
    fn default() -> Self {
        Self { run_as_user: None, run_as_group: None, restart_policy: RestartPolicy::Always }
    }
}

/// All containers of a pod; at least one, names unique.
pub(super) fn all(list: Vec<api::Container>, defaults: &PodDefaults) -> Result<Vec<Container>, FieldError> {
    let mut containers: Vec<Container> = Vec::with_capacity(list.len());
    if list.is_empty() {
        return Err(FieldError::Missing { field: "spec.containers".to_owned() });
    }
    for (index, container) in list.into_iter().enumerate() {
        let at = format!("spec.containers[{index}]");
        let container = one(&at, container, defaults)?;
        check(&format!("{at}.name"), &container.name, |n| containers.iter().all(|c| c.name != n), "unique")?;
        containers.push(container);
    }
    Ok(containers)
}

fn one(at: &str, container: api::Container, defaults: &PodDefaults) -> Result<Container, FieldError> {
    let hash = hash_of(&container);
    let api::Container {
        // Honoured.
        name,
        image,
        command,
        args,
        working_dir,
        env,
        image_pull_policy,
        resources,
        ports,
        security_context,
        // Inert when they say what is so anyway.
        stdin,
        stdin_once,
        tty,
        termination_message_path,
        termination_message_policy,
        // Refused when set.
        env_from,
        lifecycle,
        liveness_probe,
        readiness_probe,
        resize_policy,
        restart_policy,
        restart_policy_rules,
        startup_probe,
        volume_devices,
        volume_mounts,
    } = container;
    for (field, set) in [
        ("stdin", stdin == Some(true)),
        ("stdinOnce", stdin_once == Some(true)),
        ("tty", tty == Some(true)),
        ("terminationMessagePath", termination_message_path.is_some_and(|p| p != "/dev/termination-log")),
        ("terminationMessagePolicy", termination_message_policy.is_some_and(|p| p != "File")),
        ("envFrom", env_from.is_some_and(|l| !l.is_empty())),
        ("lifecycle", lifecycle.is_some()),
        ("livenessProbe", liveness_probe.is_some()),
        ("readinessProbe", readiness_probe.is_some()),
        ("resizePolicy", resize_policy.is_some_and(|l| !l.is_empty())),
        ("restartPolicy", restart_policy.is_some()),
        ("restartPolicyRules", restart_policy_rules.is_some_and(|l| !l.is_empty())),
        ("startupProbe", startup_probe.is_some()),
        ("volumeDevices", volume_devices.is_some_and(|l| !l.is_empty())),
        ("volumeMounts", volume_mounts.is_some_and(|l| !l.is_empty())),
    ] {
        refuse_set(&format!("{at}.{field}"), set)?;
    }
    check(&format!("{at}.name"), &name, names::is_dns_label, "a lower-case RFC 1123 label")?;
    let image = image
        .filter(|image| !image.is_empty())
        .ok_or_else(|| FieldError::Missing { field: format!("{at}.image") })?;
    let env = env_of(at, env.unwrap_or_default())?;
    Ok(Container {
        pull_policy: pull_policy_of(at, image_pull_policy.as_deref(), &image)?,
        role: Role::Regular,
        restart_policy: defaults.restart_policy,
        command: command.unwrap_or_default(),
        args: args.unwrap_or_default(),
        working_dir: working_dir.unwrap_or_default(),
        ports: ports_of(at, ports.unwrap_or_default())?,
        resources: resources_of(at, resources)?,
        security: security_of(at, security_context, defaults)?,
        env_from: Vec::new(),
        mounts: Vec::new(),
        probes: Probes::default(),
        lifecycle: Lifecycle::default(),
        termination_message: TerminationMessage::default(),
        stdin: false,
        stdin_once: false,
        tty: false,
        name,
        image,
        env,
        hash,
    })
}

fn env_of(at: &str, list: Vec<api::EnvVar>) -> Result<Vec<EnvVar>, FieldError> {
    let mut env = Vec::with_capacity(list.len());
    for (index, variable) in list.into_iter().enumerate() {
        let api::EnvVar { name, value, value_from } = variable;
        let field = format!("{at}.env[{index}]");
        refuse_set(&format!("{field}.valueFrom"), value_from.is_some())?;
        let printable = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_graphic() && b != b'=');
        check(&format!("{field}.name"), &name, printable, "a variable's name: printable ASCII without =")?;
        let value = value.unwrap_or_default();
        check(&format!("{field}.value"), &value, |v| !v.contains('\0'), "free of NUL characters")?;
        env.push(EnvVar { name, value: EnvValue::Literal(value) });
    }
    Ok(env)
}

fn pull_policy_of(at: &str, policy: Option<&str>, image: &str) -> Result<PullPolicy, FieldError> {
    match policy {
        Some("Always") => Ok(PullPolicy::Always),
        Some("IfNotPresent") => Ok(PullPolicy::IfNotPresent),
        Some("Never") => Ok(PullPolicy::Never),
        Some(other) => Err(FieldError::Value {
            field: format!("{at}.imagePullPolicy"),
            value: other.to_owned(),
            allowed: "Always, IfNotPresent and Never",
        }),
        None if names::parse_image(image).is_some_and(|name| name.is_latest) => Ok(PullPolicy::Always),
        None => Ok(PullPolicy::IfNotPresent),
    }
}

fn ports_of(at: &str, list: Vec<api::ContainerPort>) -> Result<Vec<Port>, FieldError> {
    let mut ports = Vec::with_capacity(list.len());
    for (index, port) in list.into_iter().enumerate() {
        let api::ContainerPort { container_port, host_ip, host_port, name, protocol } = port;
        let field = format!("{at}.ports[{index}]");
        refuse_set(&format!("{field}.hostPort"), host_port.is_some_and(|p| p != 0))?;
        refuse_set(&format!("{field}.hostIP"), host_ip.is_some_and(|ip| !ip.is_empty()))?;
        let number = u16::try_from(container_port).ok().filter(|p| *p > 0).ok_or(FieldError::Invalid {
            field: format!("{field}.containerPort"),
            value: container_port.to_string(),
            rule: "a port from 1 to 65535",
        })?;
        let protocol = protocol.unwrap_or_else(|| "TCP".to_owned());
        if !matches!(protocol.as_str(), "TCP" | "UDP" | "SCTP") {
            return Err(FieldError::Value {
                field: format!("{field}.protocol"),
                value: protocol,
                allowed: "TCP, UDP and SCTP",
            });
        }
        ports.push(Port {
            name: name.unwrap_or_default(),
            port: number,
            protocol,
            host_port: 0,
            host_ip: String::new(),
        });
    }
    Ok(ports)
}

fn resources_of(at: &str, resources: Option<api::ResourceRequirements>) -> Result<Resources, FieldError> {
    let Some(api::ResourceRequirements { claims, limits, requests }) = resources else {
        return Ok(Resources::default());
    };
    refuse_set(&format!("{at}.resources.claims"), claims.is_some_and(|l| !l.is_empty()))?;
    let (cpu_limit, memory_limit) = pair_of(&format!("{at}.resources.limits"), limits)?;
    let (cpu_request, memory_request) = pair_of(&format!("{at}.resources.requests"), requests)?;
    for (name, request, limit) in [("cpu", cpu_request, cpu_limit), ("memory", memory_request, memory_limit)]
    {
        if let (Some(request), Some(limit)) = (request, limit)
            && request > limit
        {
            return Err(FieldError::Invalid {
                field: format!("{at}.resources.requests.{name}"),
                value: request.to_string(),
                rule: "at most its limit",
            });
        }
    }
    Ok(Resources {
        cpu_request: cpu_request.or(cpu_limit),
        cpu_limit,
        memory_request: memory_request.or(memory_limit),
        memory_limit,
        ..Resources::default()
    })
}

/// Cpu in thousandths, memory in bytes.
fn pair_of(
    at: &str,
    list: Option<BTreeMap<String, Quantity>>,
) -> Result<(Option<i64>, Option<i64>), FieldError> {
    let (mut cpu, mut memory) = (None, None);
    for (resource, Quantity(text)) in list.unwrap_or_default() {
        let field = format!("{at}.{resource}");
        let wrap = |source| FieldError::Quantity { field: field.clone(), source };
        match resource.as_str() {
            "cpu" => cpu = Some(quantity::parse_milli(&text).map_err(wrap)?),
            "memory" => memory = Some(quantity::parse_units(&text).map_err(wrap)?),
            _ => return Err(FieldError::Unsupported { field }),
        }
    }
    Ok((cpu, memory))
}

fn security_of(
    at: &str,
    context: Option<api::SecurityContext>,
    defaults: &PodDefaults,
) -> Result<Security, FieldError> {
    let api::SecurityContext {
        allow_privilege_escalation,
        capabilities,
        privileged,
        read_only_root_filesystem,
        run_as_group,
        run_as_user,
        app_armor_profile,
        proc_mount,
        run_as_non_root,
        se_linux_options,
        seccomp_profile,
        windows_options,
    } = context.unwrap_or_default();
    let at = format!("{at}.securityContext");
    for (field, set) in [
        ("appArmorProfile", app_armor_profile.is_some()),
        ("procMount", proc_mount.is_some_and(|m| m != "Default")),
        ("runAsNonRoot", run_as_non_root == Some(true)),
        ("seLinuxOptions", se_linux_options.is_some()),
        ("seccompProfile", seccomp_profile.is_some()),
        ("windowsOptions", windows_options.is_some()),
    ] {
        refuse_set(&format!("{at}.{field}"), set)?;
    }
    let api::Capabilities { add, drop } = capabilities.unwrap_or_default();
    let privileged = privileged.unwrap_or(false);
    let add_capabilities = capabilities_of(&format!("{at}.capabilities.add"), add)?;
    let gains = privileged || add_capabilities.iter().any(|c| c == "SYS_ADMIN" || c == "CAP_SYS_ADMIN");
    if allow_privilege_escalation == Some(false) && gains {
        return Err(FieldError::Invalid {
            field: format!("{at}.allowPrivilegeEscalation"),
            value: "false".to_owned(),
            rule: "possible together with privileged or CAP_SYS_ADMIN",
        });
    }
    Ok(Security {
        run_as_user: id_of(&format!("{at}.runAsUser"), run_as_user)?.or(defaults.run_as_user),
        run_as_group: id_of(&format!("{at}.runAsGroup"), run_as_group)?.or(defaults.run_as_group),
        add_capabilities,
        drop_capabilities: capabilities_of(&format!("{at}.capabilities.drop"), drop)?,
        privileged,
        read_only_root: read_only_root_filesystem.unwrap_or(false),
        no_new_privileges: allow_privilege_escalation == Some(false),
        ..Security::default()
    })
}

fn capabilities_of(field: &str, list: Option<Vec<String>>) -> Result<Vec<String>, FieldError> {
    let list = list.unwrap_or_default();
    let word = |c: &str| {
        !c.is_empty() && c.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    };
    for capability in &list {
        check(field, capability, word, "a capability's name in capitals, such as NET_ADMIN")?;
    }
    Ok(list)
}

/// User and group IDs are 31 bits wide in the API.
pub(super) fn id_of(field: &str, id: Option<i64>) -> Result<Option<i64>, FieldError> {
    match id {
        Some(id) if !(0..=i64::from(i32::MAX)).contains(&id) => Err(FieldError::Invalid {
            field: field.to_owned(),
            value: id.to_string(),
            rule: "an ID from 0 to 2147483647",
        }),
        id => Ok(id),
    }
}

/// FNV-1a 32, as the kubelet's annotation has it.
fn hash_of(container: &api::Container) -> String {
    let json = serde_json::to_vec(container).unwrap_or_default();
    let hash =
        json.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    format!("{hash:x}")
}
