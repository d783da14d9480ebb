//! Which spans are sent: OpenTelemetry's `ParentBased(TraceIDRatioBased)`, as upstream's kubelet has it.

use crate::context::SpanContext;

const MILLION: u64 = 1_000_000;

/// Of traces that start here: how many of a million.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    pub per_million: u32,
}

impl Sampler {
    /// A parent decides for its children, at a rate of 0 too.
    pub fn samples(self, parent: Option<&SpanContext>, trace_id: &[u8; 16]) -> bool {
        match parent {
            Some(parent) => parent.sampled,
            None => self.starts(trace_id),
        }
    }

    /// By the id's low 63 bits: every process of a trace decides alike.
    fn starts(self, trace_id: &[u8; 16]) -> bool {
        let [_, _, _, _, _, _, _, _, low @ ..] = *trace_id;
        let bound = u128::from(self.per_million) * (1 << 63) / u128::from(MILLION);
        u128::from(u64::from_be_bytes(low) >> 1) < bound
    }
}
