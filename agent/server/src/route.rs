//! Which path is what. Pure: owns the table; never serves anything. Called by [`super::serve`].

use http::Method;

/// Which of the configuration's switches are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "named as in KubeletConfiguration")]
pub struct Switches {
    pub enable_debugging_handlers: bool,
    pub enable_system_log_handler: bool,
    pub enable_profiling_handler: bool,
    pub enable_debug_flags_handler: bool,
}

impl Switches {
    /// All on, as by default.
    pub const ALL: Self = Self {
        enable_debugging_handlers: true,
        enable_system_log_handler: true,
        enable_profiling_handler: true,
        enable_debug_flags_handler: true,
    };
    /// What the read-only port has.
    pub(super) const NONE: Self = Self {
        enable_debugging_handlers: false,
        enable_system_log_handler: false,
        enable_profiling_handler: false,
        enable_debug_flags_handler: false,
    };
}

/// A container of a pod, as a path names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerRef {
    pub(super) namespace: String,
    pub(super) pod: String,
    /// Empty when the path has none.
    pub(super) uid: String,
    /// Empty for a port forward.
    pub(super) container: String,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// All checks, or one.
    Healthz(Option<String>),
    Pods,
    RunningPods,
    Summary,
    Metrics,
    MetricsCadvisor,
    MetricsResource,
    MetricsProbes,
    MetricsSlis,
    ContainerLogs(ContainerRef),
    Exec(ContainerRef),
    Attach(ContainerRef),
    PortForward(ContainerRef),
    Run(ContainerRef),
    Checkpoint(ContainerRef),
    Configz,
    Flagz,
    Statusz,
    /// Below the node's log folder.
    NodeLogs(String),
    Pprof(String),
    DebugFlags,
    NotFound,
    MethodNotAllowed,
    /// Switched off, with what upstream says then.
    Disabled(&'static str),
}

const OFF: &str = "Debug endpoints are disabled.\n";

/// What a method and a decoded path ask for.
pub(super) fn route(method: &Method, path: &str, on: Switches) -> Route {
    let Some(rest) = path.strip_prefix('/') else { return Route::NotFound };
    let (first, below) = rest.split_once('/').map_or((rest, None), |(first, below)| (first, Some(below)));
    let only = |methods: &[Method], route: Route| match methods.contains(method) {
        true => route,
        false => Route::MethodNotAllowed,
    };
    let get = |route: Route| only(&[Method::GET], route);
    // A path that climbs is none of ours; the node's log folder has its own guard.
    if first != "logs" && rest.split('/').any(|part| part == "." || part == "..") {
        return Route::NotFound;
    }
    match (first, below) {
        ("healthz", None) => Route::Healthz(None),
        ("healthz", Some(check)) => Route::Healthz(Some(check.to_owned())),
        ("pods", None | Some("")) => get(Route::Pods),
        ("stats", Some("summary" | "summary/")) => only(&[Method::GET, Method::POST], Route::Summary),
        ("metrics", None) => Route::Metrics,
        ("metrics", Some("cadvisor")) => Route::MetricsCadvisor,
        ("metrics", Some("resource")) => Route::MetricsResource,
        ("metrics", Some("probes")) => Route::MetricsProbes,
        ("metrics", Some("slis")) => Route::MetricsSlis,
        ("configz" | "flagz" | "statusz" | "debug" | "checkpoint", _) if !on.enable_debugging_handlers => {
            match (first, below) {
                ("debug", Some(below)) if below.starts_with("pprof/") => Route::Disabled(OFF),
                _ => Route::NotFound,
            }
        }
        ("configz", None) => Route::Configz,
        ("flagz", None) => Route::Flagz,
        ("statusz", None) => Route::Statusz,
        ("debug", Some(below)) => debug(method, below, on),
        ("run" | "exec" | "attach" | "portForward" | "containerLogs" | "runningpods" | "logs", _)
            if !on.enable_debugging_handlers =>
        {
            // Upstream has these with something below only; without, nothing is there.
            if below.is_some() { Route::Disabled(OFF) } else { Route::NotFound }
        }
        ("runningpods", None | Some("")) => get(Route::RunningPods),
        ("logs", _) if !on.enable_system_log_handler => Route::Disabled("logs endpoint is disabled.\n"),
        ("logs", below) => get(Route::NodeLogs(below.unwrap_or_default().to_owned())),
        (_, Some(below)) => pod(method, first, below),
        _ => Route::NotFound,
    }
}

fn debug(method: &Method, below: &str, on: Switches) -> Route {
    match below.strip_prefix("pprof/") {
        Some(_) if !on.enable_profiling_handler => Route::Disabled("profiling endpoint is disabled.\n"),
        Some(name) if *method == Method::GET => Route::Pprof(name.to_owned()),
        Some(_) => Route::MethodNotAllowed,
        None if below == "flags/v" && on.enable_debug_flags_handler => Route::DebugFlags,
        None if below == "flags/v" => Route::Disabled("flags endpoint is disabled.\n"),
        None => Route::NotFound,
    }
}

fn pod(method: &Method, what: &str, below: &str) -> Route {
    let parts: Vec<&str> = below.split('/').collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Route::NotFound;
    }
    let target = |namespace: &str, pod: &str, uid: &str, container: &str| ContainerRef {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        uid: uid.to_owned(),
        container: container.to_owned(),
    };
    let streams = [Method::GET, Method::POST];
    let (methods, route) = match (what, parts.as_slice()) {
        ("exec", [ns, pod, name]) => (&streams[..], Route::Exec(target(ns, pod, "", name))),
        ("exec", [ns, pod, uid, name]) => (&streams[..], Route::Exec(target(ns, pod, uid, name))),
        ("attach", [ns, pod, name]) => (&streams[..], Route::Attach(target(ns, pod, "", name))),
        ("attach", [ns, pod, uid, name]) => (&streams[..], Route::Attach(target(ns, pod, uid, name))),
        ("portForward", [ns, pod]) => (&streams[..], Route::PortForward(target(ns, pod, "", ""))),
        ("portForward", [ns, pod, uid]) => (&streams[..], Route::PortForward(target(ns, pod, uid, ""))),
        ("run", [ns, pod, name]) => (&[Method::POST][..], Route::Run(target(ns, pod, "", name))),
        ("checkpoint", [ns, pod, name]) => {
            (&[Method::POST][..], Route::Checkpoint(target(ns, pod, "", name)))
        }
        ("run", [ns, pod, uid, name]) => (&[Method::POST][..], Route::Run(target(ns, pod, uid, name))),
        ("containerLogs", [ns, pod, name]) => {
            (&[Method::GET][..], Route::ContainerLogs(target(ns, pod, "", name)))
        }
        _ => return Route::NotFound,
    };
    if methods.contains(method) { route } else { Route::MethodNotAllowed }
}

impl Route {
    /// As upstream's router writes the path; empty where its router has a plain handler, or none.
    pub(super) fn template(&self) -> String {
        let of = |what: &str, below: &str| format!("/{what}/{{podNamespace}}/{{podID}}{below}");
        let container = |what: &str, ContainerRef { uid, .. }: &ContainerRef| match uid.is_empty() {
            true => of(what, "/{containerName}"),
            false => of(what, "/{uid}/{containerName}"),
        };
        match self {
            Self::Pods => "/pods/".to_owned(),
            Self::RunningPods => "/runningpods/".to_owned(),
            Self::Summary => "/stats/summary".to_owned(),
            Self::ContainerLogs(target) => container("containerLogs", target),
            Self::Exec(target) => container("exec", target),
            Self::Attach(target) => container("attach", target),
            Self::PortForward(target) if target.uid.is_empty() => of("portForward", ""),
            Self::PortForward(_) => of("portForward", "/{uid}"),
            Self::Run(target) => container("run", target),
            Self::Checkpoint(target) => container("checkpoint", target),
            Self::NodeLogs(path) if path.is_empty() => "/logs/".to_owned(),
            Self::NodeLogs(_) => "/logs/{logpath:*}".to_owned(),
            Self::Pprof(_) => "/debug/pprof/{subpath:*}".to_owned(),
            Self::Healthz(_)
            | Self::Metrics
            | Self::MetricsCadvisor
            | Self::MetricsResource
            | Self::MetricsProbes
            | Self::MetricsSlis
            | Self::Configz
            | Self::Flagz
            | Self::Statusz
            | Self::DebugFlags
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::Disabled(_) => String::new(),
        }
    }

    /// Under which upstream's multiplexer has the handler of a path that no template fits.
    pub(super) fn pattern(&self, path: &str) -> String {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match (self, parts.as_slice()) {
            (Self::Disabled(_) | Self::MethodNotAllowed, ["debug", "pprof", ..]) => {
                "/debug/pprof/".to_owned()
            }
            (Self::Disabled(_) | Self::MethodNotAllowed | Self::NotFound, [first, _, ..])
                if SERVICES.contains(first) =>
            {
                format!("/{first}/")
            }
            _ => path.to_owned(),
        }
    }
}

/// First parts of paths that upstream's router has as services: below one it says itself that there is nothing.
const SERVICES: [&str; 10] = [
    "checkpoint",
    "pods",
    "stats",
    "run",
    "exec",
    "attach",
    "portForward",
    "containerLogs",
    "runningpods",
    "logs",
];
/// Those that upstream has plain handlers for; below `debug` there is a service, too.
const PLAIN: [&str; 6] = ["healthz", "configz", "debug", "flagz", "statusz", "metrics"];

/// Whether upstream's router answers for the path, also where nothing is there.
pub(super) fn is_of_service(path: &str) -> bool {
    let first = path.strip_prefix('/').and_then(|rest| rest.split('/').next());
    first.is_some_and(|first| SERVICES.contains(&first))
}

/// The label of a request's path in metrics.
pub(super) fn bucket(path: &str) -> &'static str {
    const METRICS: [&str; 3] = ["metrics/cadvisor", "metrics/probes", "metrics/resource"];
    let rest = path.trim_start_matches('/');
    let mut parts = rest.splitn(3, '/');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    if let ("metrics", Some(second)) = (first, second) {
        return METRICS
            .into_iter()
            .find(|known| known.split_once('/') == Some(("metrics", second)))
            .unwrap_or("other");
    }
    let known = SERVICES.into_iter().chain(PLAIN);
    known.into_iter().find(|known| *known == first).unwrap_or("other")
}

/// What `%xx` stands for; `None` when it stands for nothing, or for no UTF-8.
pub(super) fn decode(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(rest.next()?)? * 16 + digit(rest.next()?)?;
        bytes.push(u8::try_from(value).ok().filter(|byte| *byte != 0)?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> Route {
        route(&Method::GET, path, Switches::ALL)
    }

    #[test]
    fn paths_of_pods() {
        let Route::Exec(target) = get("/exec/ns/web/c") else { unreachable!() };
        assert_eq!((target.namespace.as_str(), target.pod.as_str(), target.uid.as_str()), ("ns", "web", ""));
        let Route::Attach(target) = get("/attach/ns/web/uid-1/c") else { unreachable!() };
        assert_eq!((target.uid.as_str(), target.container.as_str()), ("uid-1", "c"));
        assert!(matches!(get("/portForward/ns/web"), Route::PortForward(_)));
        assert_eq!(get("/run/ns/web/c"), Route::MethodNotAllowed);
        assert!(matches!(route(&Method::POST, "/run/ns/web/c", Switches::ALL), Route::Run(_)));
        assert!(matches!(get("/containerLogs/ns/web/c"), Route::ContainerLogs(_)));
        assert!(matches!(route(&Method::POST, "/checkpoint/ns/web/c", Switches::ALL), Route::Checkpoint(_)));
        assert_eq!(get("/checkpoint/ns/web/c"), Route::MethodNotAllowed);
        for path in
            ["/exec/ns/web", "/exec/ns//c", "/exec/ns/../c", "/containerLogs/a/b/c/d", "/exec", "exec", ""]
        {
            assert_eq!(get(path), Route::NotFound, "{path}");
        }
    }

    #[test]
    fn others() {
        assert_eq!(get("/healthz"), Route::Healthz(None));
        assert_eq!(get("/healthz/ping"), Route::Healthz(Some("ping".into())));
        assert_eq!(get("/pods"), Route::Pods);
        assert_eq!(get("/pods/"), Route::Pods);
        assert_eq!(get("/pods/../exec/a/b/c"), Route::NotFound);
        assert_eq!(route(&Method::POST, "/pods", Switches::ALL), Route::MethodNotAllowed);
        assert_eq!(route(&Method::POST, "/stats/summary", Switches::ALL), Route::Summary);
        assert_eq!(get("/logs/"), Route::NodeLogs(String::new()));
        assert_eq!(get("/logs/a/b"), Route::NodeLogs("a/b".into()));
        assert_eq!(get("/debug/pprof/heap"), Route::Pprof("heap".into()));
        assert_eq!(get("/metrics/other"), Route::NotFound);
    }

    #[test]
    fn what_is_switched_off_says_so() {
        let off = |path| route(&Method::GET, path, Switches::NONE);
        for path in [
            "/exec/a/b/c",
            "/attach/x",
            "/run/",
            "/portForward/a/b",
            "/containerLogs/a/b/c",
            "/runningpods/",
            "/debug/pprof/",
            "/logs/",
        ] {
            assert_eq!(off(path), Route::Disabled(OFF), "{path}");
        }
        for path in ["/configz", "/flagz", "/statusz", "/debug/flags/v", "/exec", "/checkpoint/a/b/c"] {
            assert_eq!(off(path), Route::NotFound, "{path}");
        }
        assert_eq!(off("/pods"), Route::Pods);
        assert_eq!(off("/metrics/cadvisor"), Route::MetricsCadvisor);
        let some = Switches { enable_debugging_handlers: true, ..Switches::NONE };
        assert_eq!(route(&Method::GET, "/logs/x", some), Route::Disabled("logs endpoint is disabled.\n"));
        assert_eq!(
            route(&Method::GET, "/debug/pprof/", some),
            Route::Disabled("profiling endpoint is disabled.\n")
        );
        assert_eq!(
            route(&Method::PUT, "/debug/flags/v", some),
            Route::Disabled("flags endpoint is disabled.\n")
        );
    }

    #[test]
    fn templates_name_what_a_path_leaves_open() {
        for (path, template) in [
            ("/pods", "/pods/"),
            ("/stats/summary", "/stats/summary"),
            ("/exec/ns/web/c", "/exec/{podNamespace}/{podID}/{containerName}"),
            ("/attach/ns/web/u/c", "/attach/{podNamespace}/{podID}/{uid}/{containerName}"),
            ("/portForward/ns/web", "/portForward/{podNamespace}/{podID}"),
            ("/portForward/ns/web/u", "/portForward/{podNamespace}/{podID}/{uid}"),
            ("/logs/", "/logs/"),
            ("/logs/a/b", "/logs/{logpath:*}"),
            ("/debug/pprof/heap", "/debug/pprof/{subpath:*}"),
            ("/metrics/cadvisor", ""),
            ("/no/such/path", ""),
        ] {
            assert_eq!(get(path).template(), template, "{path}");
        }
    }

    #[test]
    fn patterns_are_those_of_upstreams_multiplexer() {
        let of = |method, path, on| route(&method, path, on).pattern(path);
        for (path, pattern) in [
            ("/metrics/cadvisor", "/metrics/cadvisor"),
            ("/healthz/ping", "/healthz/ping"),
            ("/pods/x", "/pods/"),
        ] {
            assert_eq!(of(Method::GET, path, Switches::ALL), pattern, "{path}");
        }
        assert_eq!(of(Method::POST, "/pods", Switches::ALL), "/pods");
        assert_eq!(of(Method::POST, "/debug/pprof/heap", Switches::ALL), "/debug/pprof/");
        assert_eq!(of(Method::GET, "/exec/a/b/c", Switches::NONE), "/exec/");
        assert!(is_of_service("/pods/x") && !is_of_service("/metrics/x") && !is_of_service("/"));
    }

    #[test]
    fn metrics_name_no_path_that_a_client_made_up() {
        assert_eq!(bucket("/exec/a/b/c"), "exec");
        assert_eq!(bucket("/metrics/cadvisor"), "metrics/cadvisor");
        assert_eq!(bucket("/metrics/x"), "other");
        assert_eq!(bucket("/x"), "other");
    }

    #[test]
    fn decoding() {
        assert_eq!(decode("/a%2Fb%20c").as_deref(), Some("/a/b c"));
        for bad in ["/%", "/%4", "/%zz", "/%ff", "/%00"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
