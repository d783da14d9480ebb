//! What a node asked of the API server, by the audit log. Owns the reading of that log and what is wrong in it; never asks
//! anything. Called by the tier disruption and by `cargo xtask conformance`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// A request and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedRequest {
    pub verb: String,
    /// With its subresource, as `pods/status`
    pub resource: String,
    pub namespace: String,
    pub uri: String,
    pub code: u64,
    /// The API server's words, when it refused
    pub message: String,
    /// By its user agent: one node may have had either kubelet
    pub by_gantry: bool,
}

impl AuditedRequest {
    /// Of what a pod makes: not the node's own object and its lease, and not the lists and watches of everything.
    #[must_use]
    pub fn is_of_a_pod(&self) -> bool {
        !self.namespace.is_empty() && self.namespace != "kube-node-lease"
    }
}

/// How long the log is now: where to begin the next time.
///
/// # Errors
/// When it cannot be looked at.
pub fn end(log: &Path) -> Result<u64> {
    Ok(std::fs::metadata(log).with_context(|| log.display().to_string())?.len())
}

/// What a user asked from that place on.
///
/// # Errors
/// When the log cannot be read, or a line is no event.
pub fn requests(log: &Path, from: u64, user: &str) -> Result<Vec<AuditedRequest>> {
    let at = || log.display().to_string();
    let mut file = std::fs::File::open(log).with_context(at)?;
    file.seek(SeekFrom::Start(from)).with_context(at)?;
    let mut found = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line.with_context(at)?;
        // Most lines are others'. A line that is being written has no end yet.
        if !line.contains(user) || !line.ends_with('}') {
            continue;
        }
        let event: Value = serde_json::from_str(&line).with_context(at)?;
        if event["user"]["username"] == user {
            found.extend(request(&event));
        }
    }
    Ok(found)
}

/// A watch is there when it is granted; its end says nothing. None for the stages that don't count.
fn request(event: &Value) -> Option<AuditedRequest> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let code = event["responseStatus"]["code"].as_u64().unwrap_or_default();
    let begins = event["stage"] == "ResponseStarted";
    let long = event["verb"] == "watch" && code < 400;
    if begins != long {
        return None;
    }
    let object = &event["objectRef"];
    let mut resource = text(&object["resource"]);
    if let Some(part) = object["subresource"].as_str() {
        resource = format!("{resource}/{part}");
    }
    Some(AuditedRequest {
        verb: text(&event["verb"]),
        resource,
        namespace: text(&object["namespace"]),
        uri: text(&event["requestURI"]),
        code,
        message: text(&event["responseStatus"]["message"]),
        by_gantry: event["userAgent"].as_str().is_some_and(|agent| agent.contains("gantry")),
    })
}

/// How often the same request may meet a conflict: once or twice is a race that was seen and settled.
const CONFLICTS: usize = 3;

/// Refusals that a node must not earn: 401, 403, 422, and the same conflict again and again. (Upstream's kubelet earns
/// some 403s, when it asks once more for a pod that is gone.)
#[must_use]
pub fn wrongs(requests: &[AuditedRequest]) -> Vec<String> {
    let mut wrongs: BTreeMap<String, usize> = BTreeMap::new();
    let mut conflicts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for request in requests {
        let AuditedRequest { verb, uri, code, message, resource, .. } = request;
        match code {
            // An event of a namespace that goes comes too late, upstream's as well.
            403 if resource == "events" && message.contains("being terminated") => {}
            401 | 403 | 422 => {
                *wrongs.entry(format!("{code} for {verb} {uri}: {message}")).or_default() += 1;
            }
            // A kubelet that starts makes its node anew, and is told that it is there.
            409 if verb != "create" => *conflicts.entry((verb, uri)).or_default() += 1,
            _ => {}
        }
    }
    let loops = conflicts.into_iter().filter(|(_, times)| *times >= CONFLICTS);
    let loops = loops.map(|((verb, uri), times)| format!("{times} conflicts for {verb} {uri}"));
    wrongs.into_iter().map(|(wrong, times)| format!("{times} × {wrong}")).chain(loops).collect()
}

/// Counts by verb, resource and code.
type Counts = BTreeMap<String, usize>;

fn counts<'a>(requests: impl Iterator<Item = &'a AuditedRequest>) -> Counts {
    let mut counts = Counts::new();
    for request in requests {
        // What the pod asks for by name, and what the node asks for all of them by.
        let all = if request.is_of_a_pod() { "" } else { " (node)" };
        let key = format!("{} {}{all} {}", request.verb, request.resource, request.code);
        *counts.entry(key).or_default() += 1;
    }
    counts
}

/// Nodes beside each other, by verb, resource and code.
#[must_use]
pub fn table(nodes: &[(&str, &[AuditedRequest])]) -> String {
    let counted: Vec<Counts> = nodes.iter().map(|(_, requests)| counts(requests.iter())).collect();
    let keys: BTreeSet<&String> = counted.iter().flat_map(Counts::keys).collect();
    let mut table = format!("{:<48}", "request");
    for (name, _) in nodes {
        let _ = write!(table, "{name:>10}");
    }
    for key in keys {
        let _ = write!(table, "\n{key:<48}");
        for counts in &counted {
            let _ = write!(table, "{:>10}", counts.get(key).copied().unwrap_or_default());
        }
    }
    table.push('\n');
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(verb: &str, uri: &str, code: u64, message: &str) -> AuditedRequest {
        let resource = if uri.ends_with("events") { "events" } else { "pods/status" };
        AuditedRequest {
            verb: verb.into(),
            resource: resource.into(),
            namespace: "default".into(),
            uri: uri.into(),
            code,
            message: message.into(),
            by_gantry: true,
        }
    }

    #[test]
    fn a_watch_counts_once_and_others_requests_do_not() {
        let event = |user: &str, verb: &str, stage: &str, code: u64| {
            json!({
                "stage": stage, "verb": verb, "requestURI": "/api/v1/namespaces/a/pods/b/status",
                "user": { "username": user },
                "objectRef": { "resource": "pods", "subresource": "status", "namespace": "a" },
                "responseStatus": { "code": code },
            })
            .to_string()
        };
        let lines = [
            event("system:node:n", "watch", "ResponseStarted", 200),
            event("system:node:n", "watch", "ResponseComplete", 200),
            event("system:node:n", "watch", "ResponseComplete", 403),
            event("system:node:n", "patch", "ResponseComplete", 200),
            event("system:node:other", "patch", "ResponseComplete", 200),
            "{\"half of a line by system:node:n".to_owned(),
        ];
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines.join("\n")).unwrap();
        let found = requests(file.path(), 0, "system:node:n").unwrap();
        let said: Vec<_> =
            found.iter().map(|one| format!("{} {} {}", one.verb, one.resource, one.code)).collect();
        assert_eq!(said, ["watch pods/status 200", "watch pods/status 403", "patch pods/status 200"]);
        assert_eq!(wrongs(&found).len(), 1);
        let from = u64::try_from(lines[0].len() + 1).unwrap();
        assert_eq!(requests(file.path(), from, "system:node:n").unwrap().len(), 2);
        let table = table(&[("one", &found), ("two", &[])]);
        assert!(table.lines().any(|line| line.split_whitespace().eq([
            "patch",
            "pods/status",
            "200",
            "1",
            "0"
        ])));
    }

    #[test]
    fn refusals_are_wrong_but_for_what_upstream_earns_as_well() {
        let status = "/api/v1/namespaces/a/pods/b/status";
        let late = asked("create", "/api/v1/namespaces/a/events", 403, "because it is being terminated");
        assert!(wrongs(&[late, asked("create", "/api/v1/nodes", 409, "there")]).is_empty());
        let twice = vec![asked("patch", status, 409, "modified"); 2];
        assert!(wrongs(&twice).is_empty());
        let thrice = vec![asked("patch", status, 409, "modified"); 3];
        assert_eq!(wrongs(&thrice), [format!("3 conflicts for patch {status}")]);
        assert_eq!(wrongs(&[asked("patch", status, 422, "no")]), [format!("1 × 422 for patch {status}: no")]);
    }
}
