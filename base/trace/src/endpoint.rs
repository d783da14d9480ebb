//! Where a collector listens, as gRPC names a target. Pure: nothing is dialled.

use http::uri::Authority;
use tonic::transport;

/// Where OpenTelemetry's Go sends to when nobody says where.
pub const DEFAULT: &str = "localhost:4317";

/// What gRPC in Go dials where a name has no port.
const PORT: &str = "443";

/// A target that is none, or one that gRPC in Go knows and this exporter does not.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a collector is host:port, dns:///host:port or unix:///path, without TLS")]
pub struct Unsupported;

/// A collector's address. Names are resolved at each dial.
#[derive(Debug, Clone)]
pub struct CollectorEndpoint(pub(crate) transport::Endpoint);

impl CollectorEndpoint {
    /// Reads <https://github.com/grpc/grpc/blob/master/doc/naming.md>: `host`, `host:port`, `dns:host:port`,
    /// `dns:///host:port`, `unix:path` and `unix:///path`.
    ///
    /// # Errors
    /// For every other form: an authority of `dns`, abstract sockets, other schemes.
    pub fn parse(target: &str) -> Result<Self, Unsupported> {
        let uri = match target.strip_prefix("unix:") {
            Some(path) => format!("unix:{}", socket(path).ok_or(Unsupported)?),
            None => format!("http://{}", address(target).ok_or(Unsupported)?),
        };
        transport::Endpoint::from_shared(uri).map(Self).map_err(|_| Unsupported)
    }
}

/// The path of a socket: after `//` it is absolute.
fn socket(text: &str) -> Option<&str> {
    let path = match text.strip_prefix("//") {
        Some(path) => Some(path).filter(|path| path.starts_with('/')),
        None => Some(text),
    };
    path.filter(|path| !path.is_empty())
}

/// Host and port.
fn address(target: &str) -> Option<String> {
    let name = match target.strip_prefix("dns:") {
        // Who resolves would stand between the slashes.
        Some(name) if name.starts_with("//") => name.strip_prefix("///")?,
        Some(name) => name,
        None => target,
    };
    let authority = name.parse::<Authority>().ok().filter(|authority| !authority.host().is_empty())?;
    let port = authority.as_str().strip_prefix(authority.host())?;
    match port.strip_prefix(':') {
        Some(number) => number.parse::<u16>().is_ok().then(|| authority.to_string()),
        None => port.is_empty().then(|| format!("{authority}:{PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_grpc_are_read_and_what_is_not_supported_is_refused() {
        for (target, expected) in [
            ("localhost:4317", Some("localhost:4317")),
            ("dns:///otel.example:4317", Some("otel.example:4317")),
            ("dns:otel.example:4317", Some("otel.example:4317")),
            ("[::1]:4317", Some("[::1]:4317")),
            ("otel.example", Some("otel.example:443")),
            ("dns://8.8.8.8/otel.example:4317", None),
            ("unix-abstract:otel", None),
            ("ipv4:127.0.0.1:4317", None),
            ("http://otel.example:4317", None),
            ("user@otel.example:4317", None),
            ("otel.example:port", None),
            ("otel.example:4317/path", None),
            (":4317", None),
            ("", None),
        ] {
            assert_eq!(address(target).as_deref(), expected, "{target}");
            assert_eq!(CollectorEndpoint::parse(target).is_ok(), expected.is_some(), "{target}");
        }
        for (target, is_read) in [
            ("unix:///run/otel.sock", true),
            ("unix:/run/otel.sock", true),
            ("unix:otel.sock", true),
            ("unix://run/otel.sock", false),
            ("unix:", false),
        ] {
            assert_eq!(CollectorEndpoint::parse(target).is_ok(), is_read, "{target}");
        }
    }
}
