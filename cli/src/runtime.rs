//! `gantry runtime`: the container runtime as a process of its own. Owns its flags'
//! meaning and its shutdown; the runtime itself is the shim crate's. Called by main.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use gantry_base::flock::LockHolder;
use gantry_shim::config::RuntimeConfig;
use gantry_shim::runtime::{Error, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{RuntimeArgs, RuntimeFlags};
use crate::detach::daemon;
use crate::{output, sd_notify};

/// Serves until SIGINT or SIGTERM; pods run on afterwards.
pub(crate) async fn serve(args: Box<RuntimeArgs>) -> Result<()> {
    let RuntimeArgs { socket, standalone, daemon, flags } = *args;
    if daemon {
        daemon::begin()?;
    }
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let runtime = match standalone {
        true => start_own(standalone_config(flags)?).await?,
        false => Runtime::start(config(flags)?).await.context("start the runtime")?,
    };
    // Both arms are cancel-safe: a signal is kept until it is received.
    let shutdown = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let listening = || {
        output::say(&format!("the runtime serves at unix://{}", socket.display()));
        if let Err(error) = sd_notify::notify("READY=1") {
            tracing::warn!("tell systemd that the runtime is ready: {error}");
        }
    };
    runtime
        .serve_unix(&socket, listening, shutdown)
        .await
        .with_context(|| format!("serve on {}", socket.display()))?;
    if standalone {
        runtime.tidy_up().await.context("remove what only pods needed")?;
    }
    Ok(())
}

/// Starts a runtime that a command brings along. Where a `gantry runtime` has the root, it is a service, and need not stay.
///
/// # Errors
/// As [`Runtime::start`].
pub(crate) async fn start_own(config: RuntimeConfig) -> Result<Runtime> {
    Runtime::start(config).await.map_err(beside_service).context("start the runtime")
}

fn beside_service(error: Error) -> anyhow::Error {
    let Error::InUse { path, holder } = &error else { return error.into() };
    // That of an earlier `gantry run --detach` is ended by `gantry down`.
    let serves = |command: &str| command.contains("gantry runtime") && !command.contains("--standalone");
    if !matches!(holder, LockHolder::Process { command, .. } if serves(command)) {
        return error.into();
    }
    anyhow!(
        "{holder} holds {}, and this command brings a runtime of its own: without a cluster on this machine, end the \
         package's with `sudo systemctl disable --now gantry`; beside a cluster, pass another --root and --state",
        path.display()
    )
}

/// The flags as the configuration of a runtime that ends with its pods: nothing else needs to be
/// installed, a network neither.
///
/// # Errors
/// As `config`.
pub(crate) fn standalone_config(flags: RuntimeFlags) -> Result<RuntimeConfig> {
    let mut flags = flags;
    // A runtime of one's own pulls as oneself; one that serves others' pods must be told to.
    flags.registry_auth_file = flags.registry_auth_file.or_else(own_auth_file);
    Ok(RuntimeConfig { default_network: true, ..config(flags)? })
}

/// Docker's config.json of whoever runs this; none without a home.
pub(crate) fn own_auth_file() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker/config.json"))
}

/// The flags as the runtime's configuration.
///
/// # Errors
/// What is there twice.
pub(crate) fn config(flags: RuntimeFlags) -> Result<RuntimeConfig> {
    let RuntimeFlags {
        root,
        state,
        cni_conf_dir,
        cni_bin_dir,
        cni_external,
        cni_cache_dir,
        cni_data_dir,
        netns_dir,
        cgroup_root,
        systemd_cgroup,
        registry_hosts_dir,
        registry_auth_file,
        pinned_images,
        prepull_images,
        pull_without,
        programs_dir,
        handlers,
        cdi_spec_dirs,
        enable_cdi,
        security,
        tracing,
        boot_id_file,
    } = flags;
    Ok(RuntimeConfig {
        root,
        state,
        cni_conf_dir,
        cni_bin_dir,
        cni_cache_dir,
        cni_data_dir,
        netns_dir,
        cgroup_root,
        systemd_cgroup,
        programs_dir,
        prefer_external_cni: cni_external,
        registry_hosts_dir: Some(registry_hosts_dir),
        registry_auth_file,
        pinned_images,
        prepull_images,
        pull_without,
        default_network: false,
        unset_seccomp_profile: security.unset_seccomp_profile,
        handlers: gantry_shim::config::handlers::parse_all(handlers.iter().map(String::as_str))?,
        cdi: gantry_shim::cdi::CdiConfig { enabled: enable_cdi, spec_dirs: cdi_spec_dirs },
        disable_apparmor: security.disable_apparmor,
        enable_selinux: security.enable_selinux,
        selinux_category_range: security.selinux_category_range,
        tracing_endpoint: tracing.tracing_endpoint,
        tracing_sampling_rate_per_million: tracing.tracing_sampling_rate_per_million,
        boot_id_file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(command: &str) -> String {
        let holder = LockHolder::Process { pid: 428, command: command.to_owned() };
        format!("{:#}", beside_service(Error::InUse { path: "/var/lib/gantry/lock".into(), holder }))
    }

    #[test]
    fn a_service_in_the_way_is_named_with_the_command_that_ends_it() {
        let service = said("/usr/bin/gantry runtime --config /etc/gantry/runtime.toml");
        assert!(service.starts_with("process 428 (`/usr/bin/gantry runtime --config"), "{service}");
        assert!(service.contains("`sudo systemctl disable --now gantry`"), "{service}");
        for other in ["gantry image load", "/usr/bin/gantry runtime --daemon --standalone"] {
            let said = said(other);
            assert!(said.contains("wait until it ends") && !said.contains("systemctl"), "{said}");
        }
    }
}
