//! `gantry timeline`: where the time of a pod's start went. Owns fetching the stages and writing
//! the files; drawing is the agent crate's. Called by main.

#![expect(clippy::disallowed_methods, reason = "a page for whoever asks for it, no state")]

mod export;

use std::path::Path;

use anyhow::{Context, Result};
use gantry_agent::timeline::chart::Chart;
use gantry_agent::timeline::{Span, compare, html, json, render, svg};
use gantry_model::clock::{Clock, SystemClock};
use gantry_proto::operator::GetTimelineRequest;

use serde_json::Value;

use crate::args::{AgentFlags, PodName, ReportFormat, Target, TimelineArgs};
use crate::{client, output};

pub(crate) async fn timeline(args: TimelineArgs) -> Result<()> {
    let TimelineArgs {
        pod,
        compare,
        output: format,
        json: as_json,
        svg: picture,
        html: page,
        otlp,
        namespace,
        agent,
    } = args;
    let format = if as_json { ReportFormat::Json } else { format };
    let now = SystemClock::new().wall_nanos();
    if let Some(pair) = compare {
        return side_by_side(&pair, page.as_deref(), namespace.as_deref(), &agent, now).await;
    }
    let source = source(&pod.unwrap_or_default(), namespace.as_deref())?;
    let spans = stages(&source, &agent).await?;
    let title = title(&source);
    let chart = Chart::new(&spans, now);
    let mut done = Vec::new();
    if let Some(to) = &otlp {
        let place = export::send(to, &pod_of(&source), &spans, now).await?;
        done.push(format!("sent {} stages to {place}", spans.len()));
    }
    if let Some(path) = &picture {
        write(path, &svg::svg(&title, &chart))?;
        done.push(format!("wrote {}", path.display()));
    }
    if let Some(path) = &page {
        write(path, &html::page(&title, &chart))?;
        done.push(format!("wrote {}", path.display()));
    }
    let list = match format {
        ReportFormat::Json => Some(json::to_json(&spans)? + "\n"),
        ReportFormat::Yaml => Some(output::yaml(&serde_json::from_str::<Value>(&json::to_json(&spans)?)?)?),
        ReportFormat::Text => None,
    };
    if let Some(list) = list {
        return Ok(output::print(list.as_bytes())?);
    }
    if done.is_empty() {
        let (text, share) = (render::waterfall(&spans, width(), now), covered(&chart));
        return Ok(output::print((text + &share).as_bytes())?);
    }
    done.iter().for_each(|line| output::say(line));
    Ok(())
}

/// How much of the start the stages explain.
fn covered(chart: &Chart) -> String {
    match chart.ready {
        Some(_) => format!("{} % of create → ready is in these stages\n", chart.covered_percent()),
        None => String::new(),
    }
}

async fn side_by_side(
    pair: &[String],
    page: Option<&Path>,
    namespace: Option<&str>,
    agent: &AgentFlags,
    now: i64,
) -> Result<()> {
    let mut charts = Vec::with_capacity(pair.len());
    for word in pair {
        let source = source(word, namespace)?;
        charts.push((title(&source), Chart::new(&stages(&source, agent).await?, now)));
    }
    let [(a, left), (b, right)] = charts.as_slice() else {
        anyhow::bail!("--compare takes two pods");
    };
    if let Some(path) = page {
        write(path, &html::compare((a, left), (b, right)))?;
        output::say(&format!("wrote {}", path.display()));
        return Ok(());
    }
    Ok(output::print(compare::table((a, left), (b, right)).as_bytes())?)
}

/// What a word of the command line means.
#[derive(Debug, PartialEq, Eq)]
enum TimelineSource {
    /// That an earlier `--json` wrote.
    File(String),
    /// Of the agent.
    Pod(Target),
}

/// A file wins where a slash could mean either, and few pods have a name that ends in `.json`.
fn source(word: &str, namespace: Option<&str>) -> Result<TimelineSource> {
    let path =
        word.ends_with(".json") || word.starts_with('.') || (word.contains('/') && Path::new(word).is_file());
    match word.parse::<PodName>() {
        Ok(name) if !path => Ok(TimelineSource::Pod(name.target(namespace)?)),
        _ => Ok(TimelineSource::File(word.to_owned())),
    }
}

async fn stages(source: &TimelineSource, agent: &AgentFlags) -> Result<Vec<Span>> {
    let Target { namespace, name } = match source {
        TimelineSource::Pod(target) => target.clone(),
        TimelineSource::File(name) => {
            let text = std::fs::read_to_string(name).with_context(|| format!("read {name}"))?;
            return json::from_json(&text)
                .with_context(|| format!("{name} is not what `gantry timeline POD --json` writes"));
        }
    };
    let mut client = client::dial(&agent.agent_socket).await?;
    let ask = GetTimelineRequest { namespace, name };
    let spans = client::answer(client.get_timeline(ask).await)?.spans.into_iter();
    Ok(spans
        .map(|span| Span {
            name: span.name,
            container: span.container,
            start: span.start_unix_nanos,
            end: span.end_unix_nanos,
            detail: span.detail,
        })
        .collect())
}

/// Whose start it is; a file's name where a file alone is known.
fn pod_of(source: &TimelineSource) -> Target {
    match source {
        TimelineSource::File(name) => Target { namespace: String::new(), name: name.clone() },
        TimelineSource::Pod(target) => target.clone(),
    }
}

fn title(source: &TimelineSource) -> String {
    match source {
        TimelineSource::File(name) => name.clone(),
        TimelineSource::Pod(target) => target.to_string(),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// The terminal's, or what the environment says in its place; none where a line may be as long as it is.
fn width() -> Option<usize> {
    let said = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 => Some(usize::from(size.ws_col)),
        _ => said(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_pod_unless_a_file_has_that_name() {
        let path = std::env::temp_dir().join(format!("gantry-timeline-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let file = path.to_str().unwrap();
        let target = |word: &str| match source(word, None).unwrap() {
            TimelineSource::Pod(target) => target.to_string(),
            TimelineSource::File(name) => format!("file {name}"),
        };
        assert_eq!(target("web"), "default/web");
        assert_eq!(target("pod/web"), "default/web");
        assert_eq!(target("shop/web"), "shop/web");
        assert_eq!(target("shop.json"), "file shop.json");
        assert_eq!(target("./shop"), "file ./shop");
        assert_eq!(target(file), format!("file {file}"));
        assert!(source("shop/web", Some("default")).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
