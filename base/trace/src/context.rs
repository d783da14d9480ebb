//! Which span a call belongs to, as W3C Trace Context writes it: `traceparent`.

/// The header's name, in HTTP and in gRPC's metadata.
pub const TRACEPARENT: &str = "traceparent";

/// A span as other processes name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    /// Whether who started the trace wants its spans.
    pub sampled: bool,
}

impl SpanContext {
    /// None where OpenTelemetry's Go reads none: such a header counts as absent.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.splitn(4, '-');
        let [version] = hex::<1>(parts.next()?)?;
        let trace_id = hex::<16>(parts.next()?)?;
        let span_id = hex::<8>(parts.next()?)?;
        let rest = parts.next()?;
        let (flags, more) = rest.split_at_checked(2)?;
        let [flags] = hex::<1>(flags)?;
        // Later versions may append fields; version 0 has none.
        let valid = match version {
            0 => more.is_empty() && flags <= 2,
            255 => false,
            _ => more.is_empty() || more.starts_with('-'),
        };
        let known = trace_id != [0; 16] && span_id != [0; 8];
        (valid && known).then_some(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }

    /// As `traceparent` of version 0.
    pub fn traceparent(&self) -> String {
        let text = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("00-{}-{}-{:02x}", text(&self.trace_id), text(&self.span_id), u8::from(self.sampled))
    }
}

/// Lower case only: the specification has no other.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(lower) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}
