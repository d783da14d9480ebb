//! Spans of this runtime's calls: whether there are any, and under which names. Owns the exporter; the spans are made in [`crate::cri`]. Called by `runtime`.

use std::sync::Mutex;

use gantry_base::mutex;
use gantry_trace::endpoint::CollectorEndpoint;
pub use gantry_trace::endpoint::Unsupported;
use gantry_trace::export::{self, Exporter};
use gantry_trace::sampler::Sampler;
use gantry_trace::span::Tracer;

use crate::config::RuntimeConfig;

/// Of the spans, and the service they are shown under.
const NAME: &str = "gantry";

/// What makes spans, and what sends them.
#[derive(Debug)]
pub(crate) struct Spans {
    tracer: Tracer,
    /// None when its end has begun.
    exporter: Mutex<Option<Exporter>>,
}

/// Whether spans can be sent there: a collector as [`CollectorEndpoint::parse`] reads it.
///
/// # Errors
/// When they cannot.
pub fn check(collector: &str) -> Result<(), Unsupported> {
    CollectorEndpoint::parse(collector).map(drop)
}

impl Spans {
    /// None where nobody asked for spans: then nothing is made. Within a runtime of tokio.
    ///
    /// # Errors
    /// When spans cannot be sent to what is named.
    pub(crate) fn start(config: &RuntimeConfig) -> Result<Option<Self>, Unsupported> {
        let Some(collector) = &config.tracing_endpoint else { return Ok(None) };
        let at = CollectorEndpoint::parse(collector)?;
        let sampler = Sampler { per_million: config.tracing_sampling_rate_per_million };
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let resource = [("service.name", NAME), ("host.name", host.as_str())];
        let (tracer, exporter) = export::start(&at, sampler, NAME, &resource);
        Ok(Some(Self { tracer, exporter: Mutex::new(Some(exporter)) }))
    }

    pub(crate) fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Sends what waits, for a moment.
    pub(crate) async fn end(&self) {
        let exporter = mutex::lock(&self.exporter).take();
        if let Some(exporter) = exporter {
            exporter.end().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_runtime_makes_spans_where_it_is_told_a_collector_and_nowhere_else() {
        let config = |collector: Option<&str>, rate| RuntimeConfig {
            tracing_endpoint: collector.map(str::to_owned),
            tracing_sampling_rate_per_million: rate,
            ..RuntimeConfig::default()
        };
        assert!(Spans::start(&config(None, 1_000_000)).unwrap().is_none());
        for (rate, is_sampled) in [(1_000_000, true), (0, false)] {
            let spans = Spans::start(&config(Some("127.0.0.1:4317"), rate)).unwrap().unwrap();
            assert_eq!(spans.tracer().root("a call").unwrap().context().sampled, is_sampled);
        }
        assert_eq!(Spans::start(&config(Some("http://127.0.0.1:4317"), 0)).unwrap_err(), Unsupported);
    }
}
