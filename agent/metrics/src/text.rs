//! The text format of Prometheus, version 0.0.4, as client_golang writes it: HELP and TYPE by the
//! name the samples have. Pure: owns the writer; knows no metric. Called by [`super`] and the
//! server's other collectors.

use std::fmt::Write;

/// The header that goes with it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// As in a TYPE line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Buckets, a sum, a count.
    Histogram,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// What becomes the answer.
#[derive(Debug, Default)]
pub struct Text {
    out: String,
}

impl Text {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says what the samples that follow are.
    pub fn family(&mut self, name: &str, help: &str, kind: Kind) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
    }

    /// One value.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.sample_at(name, labels, value, None);
    }

    /// One value, taken at `millis` of Unix time.
    pub fn sample_at(&mut self, name: &str, labels: &[(&str, &str)], value: f64, millis: Option<i64>) {
        self.out.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.out, "{}{label}=\"{text}\"", if index == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        self.out.push(' ');
        self.out.push_str(&number(value));
        if let Some(millis) = millis {
            let _ = write!(self.out, " {millis}");
        }
        self.out.push('\n');
    }

    /// Everything written so far.
    #[must_use]
    pub fn finish(self) -> String {
        self.out
    }
}

/// As Go's parsers take it.
#[must_use]
pub fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned()
    } else {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_as_prometheus_reads_it() {
        let mut text = Text::new();
        text.family("kubelet_evictions", "[ALPHA] How\noften", Kind::Counter);
        text.sample("kubelet_evictions", &[("eviction_signal", "a\"b\\c\nd"), ("x", "")], 3.0);
        text.sample("up", &[], 0.25);
        text.sample_at("t", &[], f64::INFINITY, Some(1_700_000_000_123));
        assert_eq!(
            text.finish(),
            "# HELP kubelet_evictions [ALPHA] How\\noften\n# TYPE kubelet_evictions counter\n\
             kubelet_evictions{eviction_signal=\"a\\\"b\\\\c\\nd\",x=\"\"} 3\n\
             up 0.25\nt +Inf 1700000000123\n"
        );
    }
}
