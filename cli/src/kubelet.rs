//! `kubelet …`, which is `gantry kubelet …`, and `gantry node`, which is the same with a runtime in the same process.
//! Owns the arguments, what is printed before anything runs, and the exit code; never a part of the kubelet, which
//! [`gantry_agent::kubelet`] assembles. Called by main.

mod lock;
mod log;
mod process;
mod systemd;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use gantry_agent::config::{self, Host, Loaded, Order};
use gantry_cgroup::Layout;
use gantry_model::version;
use gantry_shim::heap;

use self::process::NodeRuntime;
use crate::args::NodeArgs;
use crate::{output, runtime};

/// The arguments of a kubelet, if that is what this process is to be: by its own name, or by its
/// first word.
pub(crate) fn arguments(line: &[OsString]) -> Option<Vec<String>> {
    let text = |words: &[OsString]| words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let name = line.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned());
    if name.is_some_and(|name| name == "kubelet") {
        return Some(text(line.get(1..).unwrap_or_default()));
    }
    (line.get(1).is_some_and(|word| word == "kubelet")).then(|| text(line.get(2..).unwrap_or_default()))
}

/// A kubelet alone.
pub(crate) fn kubelet(arguments: &[String]) -> ExitCode {
    let tokio = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(tokio) => tokio,
        Err(error) => {
            output::say(&format!("error: start the threads that everything runs on: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let code = tokio.block_on(serve(arguments, None, 0));
    tokio.shutdown_timeout(Duration::from_secs(1));
    code
}

/// A kubelet and its runtime. `-vv` has both log each step, as `-v` 4 of a kubelet does; what `-v` says they log anyway.
///
/// # Errors
/// What is wrong with the runtime's flags.
pub(crate) async fn node(args: NodeArgs, verbose: u8) -> anyhow::Result<ExitCode> {
    let NodeArgs { socket, flags, kubelet } = args;
    let runtime = NodeRuntime { config: runtime::config(flags)?, socket };
    let verbosity = if verbose > 1 { log::EACH_STEP } else { 0 };
    Ok(serve(&kubelet, Some(runtime), verbosity).await)
}

/// Runs until it is told to end; logs as the configuration says, and at least at `verbosity`.
async fn serve(arguments: &[String], runtime: Option<NodeRuntime>, verbosity: u32) -> ExitCode {
    let mut loaded = match load(arguments) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    heap::trim_regularly();
    loaded.config.logging.verbosity = loaded.config.logging.verbosity.max(verbosity);
    let logging = &loaded.config.logging;
    let format = if logging.format == "json" { log::Format::Json } else { log::Format::Text };
    let verbosity = log::init(format, logging.verbosity);
    tracing::info!(kubeletVersion = version::KUBELET, "Kubelet version");
    for note in &loaded.notes {
        tracing::warn!("{note}");
    }
    if !rustix::process::geteuid().is_root() {
        tracing::error!(
            err = format!(
                "kubelet needs to run as uid `0`. It is being run as {}",
                rustix::process::geteuid().as_raw()
            ),
            "Kubelet running with insufficient permissions"
        );
    }
    // Whoever makes a TLS connection later finds it.
    if rustls::crypto::aws_lc_rs::default_provider().install_default().is_err() {
        tracing::debug!("a TLS provider was there already");
    }
    crate::panics::abort_on_panic();
    match process::run(loaded, verbosity, runtime).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(err = format!("failed to run Kubelet: {error:#}"), "command failed");
            ExitCode::FAILURE
        }
    }
}

/// What the arguments say; the exit code where that is no kubelet that runs.
fn load(arguments: &[String]) -> Result<Loaded, ExitCode> {
    let unified = Layout::detect().is_ok_and(|layout| layout.is_unified());
    let host = Host { unified };
    match config::load(arguments, host, output::say) {
        Ok(Order::Run(loaded)) => Ok(*loaded),
        Ok(Order::Help) => Err(print(&config::flag::usage())),
        Ok(Order::Version { raw: false }) => Err(print(&format!("Kubernetes {}\n", version::KUBELET))),
        Ok(Order::Version { raw: true }) => Err(print(&format!("{}\n", version::raw()))),
        Err(error) => {
            log::init(log::Format::Text, 0);
            tracing::error!(err = %error, "command failed");
            Err(ExitCode::FAILURE)
        }
    }
}

fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_is_known_by_its_name_or_its_first_word() {
        let of = |words: &[&str]| arguments(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["/usr/bin/kubelet", "-v", "4"]), Some(vec!["-v".to_owned(), "4".to_owned()]));
        assert_eq!(of(&["gantry", "kubelet", "--version"]), Some(vec!["--version".to_owned()]));
        assert_eq!(of(&["kubelet"]), Some(vec![]));
        assert_eq!(of(&["gantry", "ps"]), None);
        assert_eq!(of(&["gantry-kubelet"]), None);
    }
}
