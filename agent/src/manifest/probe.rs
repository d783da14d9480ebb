//! Probes and lifecycle hooks. Pure: owns their checks and the API server's defaults; never runs
//! one. Called by [`super::container`].

use std::time::Duration;

use gantry_model::names;
use gantry_model::pod::probe::{Handler, HttpGet, Lifecycle, PortRef, Probe, Probes};
use k8s_openapi::api::core::v1 as api;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::field::{
    FieldError, ManifestSource, Result, forbidden, invalid, invalid_plain, not_negative, one_of, required,
    required_because,
};

/// One of the fields of the three lists of actions that probes and hooks have.
#[derive(Default)]
struct Actions {
    exec: Option<api::ExecAction>,
    http_get: Option<api::HTTPGetAction>,
    tcp_socket: Option<api::TCPSocketAction>,
    grpc: Option<api::GRPCAction>,
    sleep: Option<api::SleepAction>,
}

/// What the three probes differ in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Liveness,
    Readiness,
    Startup,
}

/// `grace` bounds how long a hook may sleep.
pub(super) fn probes(
    at: &str,
    liveness: Option<api::Probe>,
    readiness: Option<api::Probe>,
    startup: Option<api::Probe>,
) -> Result<Probes> {
    let one = |name: &str, found: Option<api::Probe>, kind| {
        found.map(|p| probe(&format!("{at}.{name}"), p, kind)).transpose()
    };
    Ok(Probes {
        liveness: one("livenessProbe", liveness, Kind::Liveness)?,
        readiness: one("readinessProbe", readiness, Kind::Readiness)?,
        startup: one("startupProbe", startup, Kind::Startup)?,
    })
}

fn probe(at: &str, probe: api::Probe, kind: Kind) -> Result<Probe> {
    let api::Probe {
        exec,
        failure_threshold,
        grpc,
        http_get,
        initial_delay_seconds,
        period_seconds,
        success_threshold,
        tcp_socket,
        termination_grace_period_seconds,
        timeout_seconds,
    } = probe;
    let handler = handler(at, Actions { exec, http_get, tcp_socket, grpc, sleep: None })?;
    // Zero stands for the default.
    let number = |name: &str, value: Option<i32>, default: u64| -> Result<u64> {
        let value = not_negative(format!("{at}.{name}"), i64::from(value.unwrap_or(0)))?;
        Ok(if value == 0 { default } else { value })
    };
    let seconds = |name: &str, value, default| number(name, value, default).map(Duration::from_secs);
    let count = |name: &str, value, default| {
        number(name, value, default).map(|n| u32::try_from(n).unwrap_or(u32::MAX))
    };
    let success = count("successThreshold", success_threshold, 1)?;
    if kind != Kind::Readiness && success != 1 {
        return Err(invalid_plain(format!("{at}.successThreshold"), success, "must be 1"));
    }
    let field = format!("{at}.terminationGracePeriodSeconds");
    let grace = match termination_grace_period_seconds {
        None => None,
        Some(given) if kind == Kind::Readiness => {
            return Err(invalid_plain(field, given, "must not be set for readinessProbes"));
        }
        Some(given) => match u64::try_from(given) {
            Ok(seconds) if seconds > 0 => Some(Duration::from_secs(seconds)),
            _ => return Err(invalid_plain(field, given, "must be greater than 0")),
        },
    };
    Ok(Probe {
        handler,
        initial_delay: seconds("initialDelaySeconds", initial_delay_seconds, 0)?,
        timeout: seconds("timeoutSeconds", timeout_seconds, 1)?,
        period: seconds("periodSeconds", period_seconds, 10)?,
        success_threshold: success,
        failure_threshold: count("failureThreshold", failure_threshold, 3)?,
        termination_grace: grace,
    })
}

/// `grace` bounds how long a hook may sleep.
pub(super) fn lifecycle(
    at: &str,
    lifecycle: Option<api::Lifecycle>,
    grace: Duration,
    source: ManifestSource,
) -> Result<Lifecycle> {
    let Some(api::Lifecycle { post_start, pre_stop, stop_signal }) = lifecycle else {
        return Ok(Lifecycle::default());
    };
    let hook = |name: &str, hook: Option<api::LifecycleHandler>| -> Result<Option<Handler>> {
        let Some(api::LifecycleHandler { exec, http_get, sleep, tcp_socket }) = hook else { return Ok(None) };
        let at = format!("{at}.{name}");
        if tcp_socket.is_some() && source.is_file() {
            return Err(FieldError::UnsupportedBut {
                field: format!("{at}.tcpSocket"),
                remedy: "the kubelet has never carried it out; remove it",
            });
        }
        if let Some(api::SleepAction { seconds }) = &sleep
            && source.is_file()
            && (*seconds < 0 || u64::try_from(*seconds).is_ok_and(|s| s > grace.as_secs()))
        {
            return Err(invalid_plain(
                format!("{at}.sleep"),
                seconds,
                format!(
                    "must be non-negative and less than terminationGracePeriodSeconds ({})",
                    grace.as_secs()
                ),
            ));
        }
        handler(&at, Actions { exec, http_get, sleep, tcp_socket, ..Actions::default() }).map(Some)
    };
    let (post_start, pre_stop) = (hook("postStart", post_start)?, hook("preStop", pre_stop)?);
    // The gate ContainerStopSignals is alpha and off upstream.
    match stop_signal.filter(|s| !s.is_empty()) {
        None => Ok(Lifecycle { post_start, pre_stop, stop_signal: None }),
        Some(signal) if names::is_signal(&signal) => {
            Ok(Lifecycle { post_start, pre_stop, stop_signal: Some(signal) })
        }
        Some(signal) => {
            Err(invalid(format!("{at}.stopSignal"), &signal, "must be the name of a signal, such as SIGUSR1"))
        }
    }
}

fn handler(at: &str, actions: Actions) -> Result<Handler> {
    let Actions { exec, http_get, tcp_socket, grpc, sleep } = actions;
    let mut found: Option<Handler> = None;
    let mut take = |name: &str, handler: Option<Result<Handler>>| -> Result<()> {
        let Some(handler) = handler else { return Ok(()) };
        if found.is_some() {
            return Err(forbidden(format!("{at}.{name}"), "may not specify more than 1 handler type"));
        }
        found = Some(handler?);
        Ok(())
    };
    take("exec", exec.map(|action| exec_of(&format!("{at}.exec"), action)))?;
    take("httpGet", http_get.map(|action| http_of(&format!("{at}.httpGet"), action)))?;
    take("tcpSocket", tcp_socket.map(|action| tcp_of(&format!("{at}.tcpSocket"), action)))?;
    take("grpc", grpc.map(|action| grpc_of(&format!("{at}.grpc"), action)))?;
    take(
        "sleep",
        sleep.map(|api::SleepAction { seconds }| {
            not_negative(format!("{at}.sleep"), seconds).map(|s| Handler::Sleep(Duration::from_secs(s)))
        }),
    )?;
    found.ok_or_else(|| required_because(at, "must specify a handler type"))
}

fn exec_of(at: &str, api::ExecAction { command }: api::ExecAction) -> Result<Handler> {
    match command {
        Some(command) if !command.is_empty() => Ok(Handler::Exec { command }),
        _ => Err(required(format!("{at}.command"))),
    }
}

fn http_of(at: &str, action: api::HTTPGetAction) -> Result<Handler> {
    let api::HTTPGetAction { host, http_headers, path, port, scheme } = action;
    let scheme = scheme.filter(|s| !s.is_empty()).unwrap_or_else(|| "HTTP".to_owned());
    let tls = one_of(format!("{at}.scheme"), &scheme, &[("HTTP", false), ("HTTPS", true)])?;
    let mut headers = Vec::new();
    for api::HTTPHeader { name, value } in http_headers.unwrap_or_default() {
        if !names::is_http_token(&name) || value.contains(['\r', '\n', '\0']) {
            return Err(invalid(
                format!("{at}.httpHeaders"),
                &name,
                "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
            ));
        }
        headers.push((name, value));
    }
    let path = path.filter(|p| !p.is_empty()).unwrap_or_else(|| "/".to_owned());
    let path = if path.starts_with('/') { path } else { format!("/{path}") };
    Ok(Handler::HttpGet(HttpGet {
        host: host.unwrap_or_default(),
        port: port_of(&format!("{at}.port"), port)?,
        path,
        tls,
        headers,
    }))
}

fn tcp_of(at: &str, api::TCPSocketAction { host, port }: api::TCPSocketAction) -> Result<Handler> {
    Ok(Handler::Tcp { host: host.unwrap_or_default(), port: port_of(&format!("{at}.port"), port)? })
}

fn grpc_of(at: &str, api::GRPCAction { port, service }: api::GRPCAction) -> Result<Handler> {
    let port = port_number(&format!("{at}.port"), i64::from(port))?;
    Ok(Handler::Grpc { port, service: service.unwrap_or_default() })
}

fn port_of(field: &str, port: IntOrString) -> Result<PortRef> {
    match port {
        IntOrString::Int(number) => port_number(field, i64::from(number)).map(PortRef::Number),
        IntOrString::String(name) => port_name(field, &name).map(|()| PortRef::Name(name)),
    }
}

/// 1 to 65535.
pub(super) fn port_number(field: &str, port: i64) -> Result<u16> {
    u16::try_from(port)
        .ok()
        .filter(|p| *p > 0)
        .ok_or_else(|| invalid_plain(field, port, "must be between 1 and 65535, inclusive"))
}

/// IANA_SVC_NAME of RFC 6335, in upstream's words.
pub(super) fn port_name(field: &str, name: &str) -> Result<()> {
    let bad = |detail| Err(invalid(field, name, detail));
    if name.len() > 15 {
        return bad("must be no more than 15 characters");
    }
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || !name.bytes().all(allowed) {
        return bad("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)");
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        return bad("must contain at least one letter (a-z)");
    }
    if name.contains("--") {
        return bad("must not contain consecutive hyphens");
    }
    if name.starts_with('-') || name.ends_with('-') {
        return bad("must not begin or end with a hyphen");
    }
    Ok(())
}
