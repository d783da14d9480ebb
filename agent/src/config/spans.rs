//! What is refused of `tracing`: by upstream, in its words, and by this kubelet's exporter. Pure: owns these rules. Called
//! by [`super::validate`] and [`super::refused`].

use gantry_trace::endpoint::{CollectorEndpoint, Unsupported};

use super::Host;
use super::fields::KubeletConfiguration;

const MILLION: i32 = 1_000_000;

/// Upstream's part.
pub(super) fn problems(config: &KubeletConfiguration, _: Host) -> Vec<String> {
    let mut found = Vec::new();
    let Some(tracing) = &config.tracing else { return found };
    let rate = tracing.sampling_rate_per_million.unwrap_or_default();
    let mut wrong_rate = |why: &str| {
        found.push(format!("tracing.samplingRatePerMillion: Invalid value: {rate}: {why}"));
    };
    if rate < 0 {
        wrong_rate("sampling rate must be positive");
    }
    if rate > MILLION {
        wrong_rate("sampling rate per million must be less than or equal to one million");
    }
    found.extend(tracing.endpoint.as_deref().and_then(wrong_endpoint));
    found
}

/// What upstream takes and the exporter cannot send to.
pub(super) fn unsupported(config: &KubeletConfiguration) -> Option<String> {
    let endpoint = config.tracing.as_ref()?.endpoint.as_deref()?;
    if wrong_endpoint(endpoint).is_some() {
        return None;
    }
    let why: Unsupported = CollectorEndpoint::parse(endpoint).err()?;
    Some(format!("tracing.endpoint {endpoint:?} is not supported by this kubelet: {why}"))
}

/// As a URL: what has no `//` gets a scheme.
fn wrong_endpoint(endpoint: &str) -> Option<String> {
    let url = match endpoint.contains("//") {
        true => endpoint.to_owned(),
        false => format!("dns://{endpoint}"),
    };
    let scheme = scheme(&url);
    let why = match scheme.as_str() {
        "dns" | "unix" | "unix-abstract" => wrong_port(&url)?,
        _ => format!(
            "unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract.  See \
             https://github.com/grpc/grpc/blob/master/doc/naming.md"
        ),
    };
    Some(format!("tracing.endpoint: Invalid value: {url:?}: {why}"))
}

/// Empty where Go finds none.
fn scheme(url: &str) -> String {
    let is_scheme = |text: &&str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    let before = url.split_once(':').map(|(before, _)| before);
    before.filter(is_scheme).unwrap_or_default().to_ascii_lowercase()
}

/// In the words of Go's `net/url`.
fn wrong_port(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("//")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    let after = host.rfind(']').map_or(0, |end| end + 1);
    let port = host.get(after..)?;
    let port = port.get(port.rfind(':')?..)?;
    let is_port = port.chars().skip(1).all(|c| c.is_ascii_digit());
    (!is_port).then(|| format!("parse {url:?}: invalid port {port:?} after host"))
}
