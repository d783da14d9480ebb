//! The version that this kubelet has for others. Pure: owns the text; never compared with a peer's.
//! Called by the command line, registration, clients and metrics.

/// What `nodeInfo.kubeletVersion` says.
pub const KUBELET: &str = concat!("v1.36.3+gantry.", env!("CARGO_PKG_VERSION"));

/// Who asks the API server.
pub const USER_AGENT: &str = concat!(
    "kubelet/v1.36.3+gantry.",
    env!("CARGO_PKG_VERSION"),
    " (linux/amd64) gantry/",
    env!("CARGO_PKG_VERSION")
);

/// `--version=raw`: the facts behind it, as one line.
#[must_use]
pub fn raw() -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"36\", GitVersion:{KUBELET:?}, Compiler:\"rustc\", \
         Platform:\"linux/amd64\"}}"
    )
}
