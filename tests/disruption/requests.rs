//! What twenty pods cost the API server, from their creation to their end, with either kubelet on the same node.

use std::time::Duration;

use anyhow::{Result, ensure};
use gantry_tests::cluster::audit::{self, AuditedRequest};
use gantry_tests::cluster::kubelet::KubeletKind;

use crate::fixture::ClusterFixture;
use crate::pods::{LABEL, TWENTY, twenty};

/// How long all run, and how long nothing does at last: what comes late counts as well.
const REST: Duration = Duration::from_secs(20);

pub(crate) fn run(fixture: &mut ClusterFixture) -> Result<()> {
    // Images and namespaces' accounts are there for both.
    let _ = round(fixture)?;
    let upstream = round(fixture)?;
    fixture.swap_to(fixture.chosen)?;
    // What it asks at its start is no pod's.
    fixture.hold(REST, |_| Ok(()))?;
    let chosen = round(fixture)?;
    let name = format!("{:?}", fixture.chosen).to_lowercase();
    let is_ours = fixture.chosen == KubeletKind::Gantry;
    print!("{}", audit::table(&[("upstream", &upstream), (if is_ours { "gantry" } else { &name }, &chosen)]));
    let of_pods = |requests: &[AuditedRequest]| requests.iter().filter(|one| one.is_of_a_pod()).count();
    let (theirs, ours) = (of_pods(&upstream), of_pods(&chosen));
    println!("of {TWENTY} pods: {theirs} with upstream, {ours} with {name}");
    // The same kubelet twice differs by what happens to fall together.
    ensure!(!is_ours || ours <= theirs, "{ours} requests for {TWENTY} pods, upstream makes {theirs}");
    Ok(())
}

/// Twenty pods come, stay and go.
fn round(fixture: &mut ClusterFixture) -> Result<Vec<AuditedRequest>> {
    let from = audit::end(&fixture.cluster.audit_log())?;
    fixture.apply(twenty())?;
    fixture.await_ready(&format!("{}={}", LABEL.0, LABEL.1), TWENTY)?;
    fixture.hold(REST, |_| Ok(()))?;
    fixture.clear()?;
    fixture.hold(REST, |_| Ok(()))?;
    fixture.requests(from)
}
