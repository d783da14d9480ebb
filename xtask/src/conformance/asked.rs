//! What the node asked of the API server while a suite ran: how often, by kind, and what it must not earn. Reads the audit
//! log that [`super::call`] keeps; never judges the kubelet by anything else. Called by [`super::run`].

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use gantry_tests::cluster::NODE;
use gantry_tests::cluster::audit::{self, AuditedRequest};

/// In the folder of the run.
pub(crate) const LOG: &str = "audit.log";

/// A node's requests.
pub(super) struct NodeRequests {
    requests: Vec<AuditedRequest>,
    /// What none may earn
    pub(super) wrongs: Vec<String>,
}

pub(super) fn read(log: &Path) -> Result<NodeRequests> {
    let requests = audit::requests(log, 0, &format!("system:node:{NODE}"))?;
    let wrongs = audit::wrongs(&requests);
    Ok(NodeRequests { requests, wrongs })
}

impl NodeRequests {
    pub(super) fn markdown(&self) -> String {
        let of_pods: Vec<&AuditedRequest> = self.requests.iter().filter(|one| one.is_of_a_pod()).collect();
        let status =
            |one: &&&AuditedRequest| one.verb == "patch" && one.resource == "pods/status" && one.code < 300;
        let pods: BTreeSet<&str> = of_pods.iter().filter(status).map(|one| one.uri.as_str()).collect();
        let mut text = format!(
            "\nThe node made {} requests, {} of them for pods; {} pods were told of.\n\n```\n",
            self.requests.len(),
            of_pods.len(),
            pods.len()
        );
        text.push_str(&audit::table(&[("number", &self.requests)]));
        text.push_str("```\n");
        for wrong in &self.wrongs {
            let _ = writeln!(text, "- wrong: {wrong}");
        }
        text
    }
}
