//! `gantry timeline`: the waterfall of a pod's start. Owns fetching the stages; drawing is
//! the agent crate's. Called by main.

use anyhow::Result;
use gantry_agent::clock::{Clock, SystemClock};
use gantry_agent::timeline::{Span, json, render};
use gantry_proto::operator::GetTimelineRequest;

use crate::args::TimelineArgs;
use crate::{client, output};

pub(crate) async fn timeline(args: TimelineArgs) -> Result<()> {
    let TimelineArgs { pod, json: as_json } = args;
    let mut client = client::dial(&pod.agent.agent_socket).await?;
    let ask = GetTimelineRequest { namespace: pod.namespace, name: pod.pod };
    let spans: Vec<Span> = client::answer(client.get_timeline(ask).await)?
        .spans
        .into_iter()
        .map(|span| Span {
            name: span.name,
            container: span.container,
            start: span.start_unix_nanos,
            end: span.end_unix_nanos,
            detail: span.detail,
        })
        .collect();
    let text = if as_json {
        json::to_json(&spans)? + "\n"
    } else {
        render::waterfall(&spans, width(), SystemClock::new().wall_nanos())
    };
    Ok(output::print(text.as_bytes())?)
}

/// Shells export it when they are asked to; otherwise what most terminals can show.
fn width() -> usize {
    std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).unwrap_or(100)
}
