//! The command lines of both daemons, and what people type to reach them. Pure; never starts
//! anything. Called by [`super::detach`].

use std::ffi::OsString;
use std::path::Path;

use crate::args::{PodsFlags, RunArgs, RuntimeFlags, SecurityFlags, TracingFlags};

/// `--name=path`.
fn flag(name: &str, value: impl AsRef<std::ffi::OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

fn unix(socket: &Path) -> OsString {
    let mut address = OsString::from("unix://");
    address.push(socket);
    address
}

/// Of the runtime. Every flag is named here, so that none is forgotten.
pub(super) fn runtime(flags: &RuntimeFlags, socket: &Path) -> Vec<OsString> {
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
    let mut words: Vec<OsString> = ["runtime", "--daemon", "--standalone"].map(OsString::from).to_vec();
    words.extend([
        flag("socket", unix(socket)),
        flag("root", root),
        flag("state", state),
        flag("cni-conf-dir", cni_conf_dir),
        flag("cni-bin-dir", cni_bin_dir),
        flag("cni-cache-dir", cni_cache_dir),
        flag("cni-data-dir", cni_data_dir),
        flag("netns-dir", netns_dir),
        flag("cgroup-root", cgroup_root),
        flag("registry-hosts-dir", registry_hosts_dir),
        flag("boot-id-file", boot_id_file),
        flag("enable-cdi", enable_cdi.to_string()),
    ]);
    words.extend(security_words(security));
    words.extend(tracing_words(tracing));
    words.extend(cdi_spec_dirs.iter().map(|folder| flag("cdi-spec-dirs", folder)));
    words.extend(handlers.iter().map(|handler| flag("handlers", handler)));
    words.extend(systemd_cgroup.then(|| OsString::from("--systemd-cgroup")));
    words.extend(cni_external.then(|| OsString::from("--cni-external")));
    words.extend(registry_auth_file.as_ref().map(|file| flag("registry-auth-file", file)));
    words.extend(pull_without.iter().map(|one| flag("pull-without", one.to_string())));
    words.extend(pinned_images.iter().map(|image| flag("pinned-images", image)));
    words.extend(prepull_images.iter().map(|image| flag("prepull-images", image)));
    words.extend(programs_dir.as_ref().map(|folder| flag("programs-dir", folder)));
    words
}

fn security_words(flags: &SecurityFlags) -> Vec<OsString> {
    let SecurityFlags { unset_seccomp_profile, disable_apparmor, enable_selinux, selinux_category_range } =
        flags;
    let mut words = vec![
        flag("unset-seccomp-profile", unset_seccomp_profile),
        flag("selinux-category-range", selinux_category_range.to_string()),
    ];
    words.extend(disable_apparmor.then(|| OsString::from("--disable-apparmor")));
    words.extend(enable_selinux.then(|| OsString::from("--enable-selinux")));
    words
}

fn tracing_words(flags: &TracingFlags) -> Vec<OsString> {
    let TracingFlags { tracing_endpoint, tracing_sampling_rate_per_million: rate } = flags;
    let collector = tracing_endpoint.as_ref().map(|collector| flag("tracing-endpoint", collector));
    collector.into_iter().chain([flag("tracing-sampling-rate-per-million", rate.to_string())]).collect()
}

/// Of the agent.
pub(super) fn agent(args: &RunArgs, socket: &Path) -> Vec<OsString> {
    let RunArgs { pods, detach: _, flags, container_runtime_endpoint: _, root_dir } = args;
    let PodsFlags { files, manifest_dir, agent_socket, pod_logs_dir } = pods;
    let root_dir = root_dir.clone().unwrap_or_else(|| flags.root.join("kubelet"));
    let mut words: Vec<OsString> = ["agent", "--daemon", "--seccomp-default"].map(OsString::from).to_vec();
    words.extend([
        flag("container-runtime-endpoint", unix(socket)),
        flag("agent-socket", agent_socket),
        flag("pod-logs-dir", pod_logs_dir),
        flag("root-dir", root_dir),
        flag("cgroup-root", &flags.cgroup_root),
    ]);
    words.extend(manifest_dir.as_ref().map(|folder| flag("manifest-dir", folder)));
    words.push("--".into());
    words.extend(files.iter().map(|file| file.clone().into_os_string()));
    words
}

/// What must be said beside `gantry down`; nothing for the usual places.
pub(crate) fn reach(state: &Path, agent_socket: &Path) -> String {
    let agent = if agent_socket == Path::new("/run/gantry/agent.sock") {
        String::new()
    } else {
        agent_flag(agent_socket)
    };
    if state == Path::new("/run/gantry") { agent } else { format!(" --state {}{agent}", state.display()) }
}

/// ` --agent-socket PATH`.
pub(super) fn agent_flag(socket: &Path) -> String {
    format!(" --agent-socket {}", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parse(words: &[OsString]) -> Command {
        Cli::try_parse_from([OsString::from("gantry")].iter().chain(words)).unwrap().command
    }

    #[test]
    fn the_daemons_are_told_every_flag() {
        let mut line: Vec<OsString> =
            ["run", "--detach", "--cni-external", "--systemd-cgroup"].map(OsString::from).to_vec();
        let flags = [
            "root",
            "state",
            "cni-conf-dir",
            "cni-bin-dir",
            "cni-cache-dir",
            "cni-data-dir",
            "netns-dir",
            "cgroup-root",
            "registry-hosts-dir",
            "registry-auth-file",
            "pinned-images",
            "prepull-images",
            "programs-dir",
            "boot-id-file",
            "agent-socket",
            "pod-logs-dir",
            "root-dir",
            "manifest-dir",
        ];
        line.extend(flags.map(|name| flag(name, format!("/of {name}"))));
        line.extend(["--cdi-spec-dirs=/cdi,/more", "--enable-cdi=false"].map(OsString::from));
        line.extend(
            ["--disable-apparmor", "--enable-selinux", "--selinux-category-range=7"].map(OsString::from),
        );
        line.extend(
            ["--tracing-endpoint=localhost:4317", "--tracing-sampling-rate-per-million=9"]
                .map(OsString::from),
        );
        line.extend(["--unset-seccomp-profile=runtime/default".into(), "--".into(), "-odd.yaml".into()]);
        let Command::Run(args) = parse(&line) else { panic!("not run") };
        let socket = Path::new("/of state/gantry.sock");
        let Command::Runtime(runtime) = parse(&runtime(&args.flags, socket)) else { panic!("no runtime") };
        // What differs would show here.
        assert_eq!(format!("{:?}", runtime.flags), format!("{:?}", args.flags));
        assert!(runtime.daemon && runtime.standalone && runtime.socket == socket);
        let Command::Agent(agent) = parse(&agent(&args, socket)) else { panic!("no agent") };
        assert_eq!(format!("{:?}", agent.pods), format!("{:?}", args.pods));
        assert!(agent.daemon && agent.seccomp_default);
        assert_eq!(agent.container_runtime_endpoint, "unix:///of state/gantry.sock");
        assert_eq!(
            (agent.root_dir.to_str(), agent.cgroup_root.as_str()),
            (Some("/of root-dir"), "/of cgroup-root")
        );
    }

    #[test]
    fn only_unusual_places_are_named() {
        let reach = |state: &str, socket: &str| reach(Path::new(state), Path::new(socket));
        assert_eq!(reach("/run/gantry", "/run/gantry/agent.sock"), "");
        assert_eq!(reach("/s", "/a"), " --state /s --agent-socket /a");
    }
}
