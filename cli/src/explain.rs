//! `gantry explain`: why a pod is not running. Owns the wording around the agent's findings; never
//! finds anything itself. Called by main.

use anyhow::Result;
use gantry_proto::operator::{ExplainPodRequest, ExplainPodResponse};

use crate::args::{SomePods, Target};
use crate::{choice, client, output};

pub(crate) async fn explain(pods: SomePods) -> Result<()> {
    let mut client = client::dial(&pods.agent.agent_socket).await?;
    let mut texts = Vec::new();
    for target in choice::choose(&mut client, &pods).await? {
        let ask = ExplainPodRequest { namespace: target.namespace.clone(), name: target.name.clone() };
        let answer = client::answer(client.explain_pod(ask).await)?;
        texts.push(render(&target, &answer));
    }
    Ok(output::print(texts.join("\n").as_bytes())?)
}

fn render(pod: &Target, answer: &ExplainPodResponse) -> String {
    let mut text = format!("pod {pod}: {}\n", output::one_line(&answer.status));
    if answer.findings.is_empty() {
        text.push_str("nothing is wrong with it\n");
    }
    for finding in &answer.findings {
        let whom = if finding.container.is_empty() {
            String::new()
        } else {
            format!("container {} ", finding.container)
        };
        text.push_str(&format!("\n{whom}{}\n", finding.state));
        text.push_str(&format!("  cause   {}\n", output::one_line(&finding.cause)));
        text.push_str(&format!("  remedy  {}\n", output::one_line(&finding.remedy)));
        for line in &finding.evidence {
            text.push_str(&format!("  seen    {}\n", output::one_line(line)));
        }
    }
    text
}
