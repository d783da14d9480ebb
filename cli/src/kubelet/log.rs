//! A kubelet's log, in the two formats that its readers know: text as klog writes it, and JSON. Owns
//! the form of a line; never what is worth one. Called by [`super`].

use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use gantry_agent::kubelet::Verbosity;
use jiff::Zoned;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The lowest verbosity that shows more than what changes.
pub(super) const EACH_STEP: u32 = 4;

/// `logging.format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// To stderr; GANTRY_LOG sets levels in detail.
pub(super) fn init(format: Format, verbosity: u32) -> Verbosity {
    let filter = EnvFilter::try_from_env("GANTRY_LOG").unwrap_or_else(|_| EnvFilter::new(level(verbosity)));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Its way to tell of a line that could not be written panics when stderr is gone, and a panic
        // ends the kubelet.
        .log_internal_errors(false)
        .event_format(LogFormat(format))
        .with_filter_reloading();
    let handle = lines.reload_handle();
    lines.init();
    Arc::new(move |verbosity| {
        handle.reload(EnvFilter::new(level(verbosity.into()))).map_err(|error| error.to_string())
    })
}

fn level(verbosity: u32) -> &'static str {
    match verbosity {
        0..=3 => "info",
        EACH_STEP..=5 => "debug,h2=info,hyper=info,hyper_util=info,tower=info,rustls=info,kube_client=info",
        _ => "trace,h2=info,hyper=info,hyper_util=info,tower=info,rustls=info",
    }
}

struct LogFormat(Format);

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Said {
    fn add(&mut self, field: &Field, value: Value) {
        if field.name() != "message" {
            self.fields.push((field.name(), value));
        } else if let Value::String(text) = value {
            self.message = text;
        }
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
}

impl<S, N> FormatEvent<S, N> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        let data = event.metadata();
        let file = data
            .file()
            .map_or("-", |path| Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or(path));
        let place = (file, data.line().unwrap_or_default());
        let line = match self.0 {
            Format::Text => text(*data.level(), &Zoned::now(), place, &said)?,
            Format::Json => json(*data.level(), Zoned::now().timestamp().as_microsecond(), place, said),
        };
        writeln!(out, "{line}")
    }
}

/// `I1121 21:06:31.123456   12345 run.go:12] "message" key="value"`.
fn text(level: Level, now: &Zoned, (file, line): (&str, u32), said: &Said) -> Result<String, fmt::Error> {
    let letter = match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let time = now.strftime("%m%d %H:%M:%S%.6f");
    let mut text = format!("{letter}{time} {:7} {file}:{line}] {:?}", std::process::id(), said.message);
    for (key, value) in &said.fields {
        match value {
            Value::String(value) => write!(text, " {key}={value:?}")?,
            other => write!(text, " {key}={other}")?,
        }
    }
    Ok(text)
}

fn json(level: Level, micros: i64, (file, line): (&str, u32), said: Said) -> String {
    let mut object = Map::new();
    object.insert("ts".to_owned(), (micros as f64 / 1000.0).into());
    object.insert("caller".to_owned(), format!("{file}:{line}").into());
    object.insert("msg".to_owned(), said.message.into());
    if level > Level::WARN {
        object.insert("v".to_owned(), if level == Level::INFO { 0 } else { 4 }.into());
    }
    object.extend(said.fields.into_iter().map(|(key, value)| (key.to_owned(), value)));
    Value::Object(object).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Said {
        Said { message: "it \"works\"".to_owned(), fields: vec![("pod", "a/b".into()), ("count", 3.into())] }
    }

    #[test]
    fn a_line_of_text_is_klogs() {
        let now: jiff::Timestamp = "2026-11-21T21:06:31.123456Z".parse().unwrap();
        let now = now.to_zoned(jiff::tz::TimeZone::UTC);
        let line = text(Level::WARN, &now, ("run.rs", 12), &said()).unwrap();
        let rest = format!(" {:7} run.rs:12] \"it \\\"works\\\"\" pod=\"a/b\" count=3", std::process::id());
        assert_eq!(line, format!("W1121 21:06:31.123456{rest}"));
    }

    #[test]
    fn a_line_of_json_has_the_keys_of_upstream() {
        let line: Value = serde_json::from_str(&json(Level::INFO, 1_500, ("run.rs", 12), said())).unwrap();
        let expected = serde_json::json!({
            "ts": 1.5, "caller": "run.rs:12", "msg": "it \"works\"", "v": 0, "pod": "a/b", "count": 3
        });
        assert_eq!(line, expected);
    }
}
