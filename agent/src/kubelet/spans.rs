//! Spans of this kubelet: whether there are any, and under which names. Owns nothing: the exporter is the
//! caller's. Called by [`super::run`].

use gantry_trace::endpoint::{self, CollectorEndpoint, Unsupported};
use gantry_trace::export::{self, Exporter};
use gantry_trace::sampler::Sampler;
use gantry_trace::span::Tracer;

use crate::config::KubeletConfiguration;

/// Upstream's.
const SCOPE: &str = "k8s.io/kubernetes/pkg/kubelet";

/// None without `tracing`: then nothing is made. Within a runtime of tokio.
///
/// # Errors
/// When the exporter does not support the endpoint.
pub(super) fn start(
    config: &KubeletConfiguration,
    name: &str,
) -> Result<Option<(Tracer, Exporter)>, Unsupported> {
    let Some(tracing) = &config.tracing else { return Ok(None) };
    let at = CollectorEndpoint::parse(tracing.endpoint.as_deref().unwrap_or(endpoint::DEFAULT))?;
    let per_million = tracing.sampling_rate_per_million.unwrap_or_default();
    let sampler = Sampler { per_million: u32::try_from(per_million).unwrap_or_default() };
    let resource = [("service.name", "kubelet"), ("host.name", name)];
    Ok(Some(export::start(&at, sampler, SCOPE, &resource)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::fields::Tracing;

    fn configured(endpoint: Option<&str>, sampling_rate_per_million: Option<i32>) -> KubeletConfiguration {
        let tracing = Tracing { endpoint: endpoint.map(str::to_owned), sampling_rate_per_million };
        KubeletConfiguration { tracing: Some(tracing), ..KubeletConfiguration::default() }
    }

    #[tokio::test]
    async fn a_kubelet_makes_spans_where_tracing_is_configured_and_nowhere_else() {
        assert!(start(&KubeletConfiguration::default(), "node").unwrap().is_none());
        let (tracer, exporter) = start(&configured(None, Some(1_000_000)), "node").unwrap().unwrap();
        assert!(tracer.root("syncPod").unwrap().context().sampled);
        drop(exporter);
        for rate in [None, Some(0)] {
            let (tracer, _exporter) =
                start(&configured(Some("127.0.0.1:4317"), rate), "node").unwrap().unwrap();
            assert!(!tracer.root("syncPod").unwrap().context().sampled);
        }
        assert_eq!(start(&configured(Some("unix-abstract:otel"), None), "node").unwrap_err(), Unsupported);
    }
}
