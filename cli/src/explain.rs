//! `gantry explain`: why a pod is not running. Owns the wording around the agent's findings, and their JSON form; never
//! finds anything itself. Called by main.

use anyhow::Result;
use gantry_proto::operator::{ExplainPodRequest, ExplainPodResponse, Finding};
use serde::Serialize;

use crate::args::{ExplainArgs, ReportFormat, Target};
use crate::{choice, client, output};

/// What the agent says of one pod.
#[derive(Serialize)]
struct PodReport<'a> {
    namespace: &'a str,
    name: &'a str,
    status: &'a str,
    /// Empty when nothing is wrong with it.
    findings: Vec<JsonFinding<'a>>,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    /// None when it is the pod's own.
    #[serde(skip_serializing_if = "str::is_empty")]
    container: &'a str,
    state: &'a str,
    cause: &'a str,
    remedy: &'a str,
    evidence: &'a [String],
}

pub(crate) async fn explain(args: ExplainArgs) -> Result<()> {
    let ExplainArgs { output: format, pods } = args;
    let mut client = client::dial(&pods.agent.agent_socket).await?;
    let mut answers = Vec::new();
    for target in choice::choose(&mut client, &pods).await? {
        let ask = ExplainPodRequest { namespace: target.namespace.clone(), name: target.name.clone() };
        let answer = client::answer(client.explain_pod(ask).await)?;
        answers.push((target, answer));
    }
    let text = render(&answers, format, pods.pods.len() == 1)?;
    Ok(output::print(text.as_bytes())?)
}

/// `alone`: one pod was named, and so its report is no list.
fn render(answers: &[(Target, ExplainPodResponse)], format: ReportFormat, alone: bool) -> Result<String> {
    let reports: Vec<PodReport<'_>> = answers.iter().map(|(pod, answer)| report(pod, answer)).collect();
    Ok(match (format, reports.as_slice()) {
        (ReportFormat::Text, _) => {
            answers.iter().map(|(pod, answer)| text(pod, answer)).collect::<Vec<_>>().join("\n")
        }
        (ReportFormat::Json, [report]) if alone => output::json(report)?,
        (ReportFormat::Json, reports) => output::json(&reports)?,
        (ReportFormat::Yaml, [report]) if alone => output::yaml(report)?,
        (ReportFormat::Yaml, reports) => output::yaml(&reports)?,
    })
}

fn report<'a>(pod: &'a Target, answer: &'a ExplainPodResponse) -> PodReport<'a> {
    let finding = |finding: &'a Finding| JsonFinding {
        container: &finding.container,
        state: &finding.state,
        cause: &finding.cause,
        remedy: &finding.remedy,
        evidence: &finding.evidence,
    };
    let findings = answer.findings.iter().map(finding).collect();
    PodReport { namespace: &pod.namespace, name: &pod.name, status: &answer.status, findings }
}

fn text(pod: &Target, answer: &ExplainPodResponse) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_for_people_or_for_programs() {
        let finding = Finding {
            container: "c".into(),
            state: "waiting: CrashLoopBackOff".into(),
            cause: "it ends with exit code 3".into(),
            remedy: "read its log\nagain".into(),
            evidence: vec!["exit code 3".into()],
        };
        let pod = |name: &str| Target { namespace: "shop".into(), name: name.into() };
        let answer = |findings| ExplainPodResponse { status: "Running".into(), findings };
        let one = [(pod("web"), answer(vec![finding]))];
        let read = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let json = read(render(&one, ReportFormat::Json, true).unwrap());
        assert_eq!(json["namespace"], "shop");
        assert_eq!(json["findings"][0]["remedy"], "read its log\nagain");
        assert_eq!(json["findings"][0]["evidence"][0], "exit code 3");
        assert_eq!(read(render(&one, ReportFormat::Json, false).unwrap())[0], json, "chosen by labels");
        let yaml = render(&one, ReportFormat::Yaml, true).unwrap();
        assert!(yaml.contains("container: c\n"), "{yaml}");
        let two = [(pod("a"), answer(Vec::new())), (pod("b"), answer(Vec::new()))];
        assert_eq!(read(render(&two, ReportFormat::Json, false).unwrap())[1]["name"], "b");
        let text = render(&two, ReportFormat::Text, false).unwrap();
        let of = |name: &str| format!("pod shop/{name}: Running\nnothing is wrong with it\n");
        assert_eq!(text, format!("{}\n{}", of("a"), of("b")));
        assert!(render(&one, ReportFormat::Text, true).unwrap().contains("remedy  read its log again\n"));
    }
}
