//! `gantry explain`: why a pod does not get on. Owns the wording around the agent's findings; never
//! finds anything itself. Called by main.

use anyhow::Result;
use gantry_proto::operator::{ExplainPodRequest, ExplainPodResponse};

use crate::args::{PodFlags, Target};
use crate::{client, output};

pub(crate) async fn explain(pod: PodFlags) -> Result<()> {
    let target = pod.target()?;
    let mut client = client::dial(&pod.agent.agent_socket).await?;
    let ask = ExplainPodRequest { namespace: target.namespace.clone(), name: target.name.clone() };
    let answer = client::answer(client.explain_pod(ask).await)?;
    Ok(output::print(render(&target, &answer).as_bytes())?)
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
