//! `gantry timeline`: where the time of a pod's start went. Owns fetching the stages and writing
//! the files; drawing is the agent crate's. Called by main.

use std::path::Path;

use anyhow::{Context, Result};
use gantry_agent::clock::{Clock, SystemClock};
use gantry_agent::timeline::chart::Chart;
use gantry_agent::timeline::{Span, compare, html, json, render, svg};
use gantry_proto::operator::GetTimelineRequest;

use crate::args::{AgentFlags, TimelineArgs};
use crate::{client, output};

pub(crate) async fn timeline(args: TimelineArgs) -> Result<()> {
    let TimelineArgs { pod, compare, json: as_json, svg: picture, html: page, namespace, agent } = args;
    let now = SystemClock::new().wall_nanos();
    if let Some(pair) = compare {
        return side_by_side(&pair, page.as_deref(), &namespace, &agent, now).await;
    }
    let name = pod.unwrap_or_default();
    let spans = stages(&name, &namespace, &agent).await?;
    let title = title(&name, &namespace);
    let chart = Chart::new(&spans, now);
    let mut files = Vec::new();
    if let Some(path) = &picture {
        write(path, &svg::svg(&title, &chart))?;
        files.push(path);
    }
    if let Some(path) = &page {
        write(path, &html::page(&[(title, chart.clone())]))?;
        files.push(path);
    }
    if as_json {
        return Ok(output::print((json::to_json(&spans)? + "\n").as_bytes())?);
    }
    if files.is_empty() {
        let text = render::waterfall(&spans, width(), now);
        let share = match chart.ready {
            Some(_) => format!("{} % of create → ready is in these stages\n", chart.covered_percent()),
            None => String::new(),
        };
        return Ok(output::print((text + &share).as_bytes())?);
    }
    files.iter().for_each(|path| output::say(&format!("wrote {}", path.display())));
    Ok(())
}

async fn side_by_side(
    pair: &[String],
    page: Option<&Path>,
    namespace: &str,
    agent: &AgentFlags,
    now: i64,
) -> Result<()> {
    let mut charts = Vec::with_capacity(pair.len());
    for name in pair {
        charts.push((title(name, namespace), Chart::new(&stages(name, namespace, agent).await?, now)));
    }
    if let Some(path) = page {
        write(path, &html::page(&charts))?;
        output::say(&format!("wrote {}", path.display()));
        return Ok(());
    }
    let [(a, left), (b, right)] = charts.as_slice() else {
        anyhow::bail!("--compare takes two pods");
    };
    Ok(output::print(compare::table((a, left), (b, right)).as_bytes())?)
}

/// Of a pod of the agent, or of a file that an earlier `--json` wrote.
async fn stages(name: &str, namespace: &str, agent: &AgentFlags) -> Result<Vec<Span>> {
    if is_file(name) {
        let text = std::fs::read_to_string(name).with_context(|| format!("read {name}"))?;
        return json::from_json(&text)
            .with_context(|| format!("{name} is not what `gantry timeline POD --json` writes"));
    }
    let mut client = client::dial(&agent.agent_socket).await?;
    let ask = GetTimelineRequest { namespace: namespace.to_owned(), name: name.to_owned() };
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

/// No pod's name holds a slash, and none that ends so is likely to be meant.
fn is_file(name: &str) -> bool {
    name.contains('/') || name.ends_with(".json")
}

fn title(name: &str, namespace: &str) -> String {
    if is_file(name) { name.to_owned() } else { format!("{namespace}/{name}") }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Shells export it when they are asked to; otherwise what most terminals can show.
fn width() -> usize {
    std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(100)
}
