//! Pods that are added to a running agent: `gantry apply`, and `gantry run` beside one that is there. Owns the wording,
//! kubectl's; never decides whether a pod may be added. Called by main, run and detach.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use gantry_agent::manifest::{self, Text};
use gantry_proto::operator::{Applied, ApplyManifestsRequest, Manifest};

use crate::args::ApplyArgs;
use crate::run::BAD_MANIFEST;
use crate::{client, manifests, output};

/// Adds them, and puts those that are described otherwise in the place of pods of the same name.
pub(crate) async fn apply(args: ApplyArgs) -> Result<ExitCode> {
    let texts = manifests::read(&args.files).await;
    let checked = texts.and_then(|texts| Ok((manifest::load_texts(&texts)?.notes, texts)));
    let texts = match checked {
        Ok((notes, texts)) => {
            notes.iter().for_each(|note| output::say(note));
            texts
        }
        Err(error) => {
            output::say(&format!("error: {error:#}"));
            return Ok(ExitCode::from(BAD_MANIFEST));
        }
    };
    let applied = add(&args.agent.agent_socket, texts, true).await?;
    output::print(format_applied(&applied).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Adds the pods of `gantry run` to those of the agent that is there; never replaces one.
pub(crate) async fn beside(socket: &Path, texts: Vec<Text>) -> Result<ExitCode> {
    let applied = add(socket, texts, false).await.context("add the pods to the agent that runs")?;
    output::print(format_applied(&applied).as_bytes())?;
    if let Some(pod) = applied.iter().find(|applied| applied.kind == "pod") {
        output::say(&format_follow_hint(pod, socket));
    }
    Ok(ExitCode::SUCCESS)
}

fn format_follow_hint(pod: &Applied, socket: &Path) -> String {
    let name = match pod.namespace.as_str() {
        "default" => pod.name.clone(),
        namespace => format!("{namespace}/{}", pod.name),
    };
    format!(
        "the agent at {} runs them with its own flags: `gantry logs -f {name}` shows what one writes, `gantry stop {name}` \
         ends it",
        socket.display()
    )
}

async fn add(socket: &Path, texts: Vec<Text>, replace: bool) -> Result<Vec<Applied>> {
    let mut client = client::dial(socket).await?;
    let manifest = |text: Text| Manifest { path: text.path.display().to_string(), text: text.text };
    let manifests = texts.into_iter().map(manifest).collect();
    let ask = ApplyManifestsRequest { manifests, replace };
    Ok(client::answer(client.apply_manifests(ask).await)?.applied)
}

/// `pod/web created`, as kubectl.
fn format_applied(applied: &[Applied]) -> String {
    let line =
        |applied: &Applied| format!("{}/{} {}\n", applied.kind.to_lowercase(), applied.name, applied.outcome);
    applied.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_told_in_kubectls_words() {
        let applied = |kind: &str, namespace: &str, name: &str, outcome: &str| Applied {
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
            outcome: outcome.into(),
        };
        let all = [
            applied("ConfigMap", "default", "settings", "unchanged"),
            applied("pod", "shop", "web", "created"),
        ];
        assert_eq!(format_applied(&all), "configmap/settings unchanged\npod/web created\n");
        let text = format_follow_hint(&all[1], Path::new("/run/gantry/agent.sock"));
        assert!(
            text.contains("`gantry logs -f shop/web`") && text.contains("`gantry stop shop/web`"),
            "{text}"
        );
    }
}
