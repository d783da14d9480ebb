//! Work that ends: a Job, and one that begins by the clock.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::spec::Spec;

pub(crate) fn job(spec: &Spec<'_>) -> Result<()> {
    spec.kubectl(&["create", "job", "sums", "--image=busybox", "--", "sh", "-c", "echo $((6 * 7))"])?;
    spec.kubectl(&["wait", "--for=condition=Complete", "job/sums", "--timeout=120s"])?;
    let logs = spec.kubectl(&["logs", "job/sums"])?;
    ensure!(logs.trim() == "42", "{logs:?}");
    spec.await_value(&["pods"], "{.items[0].status.phase}", "Succeeded")?;
    // Some at a time, one of which fails at first.
    let script = "[ $JOB_COMPLETION_INDEX != 1 ] || [ -e /tmp/again ] || { touch /tmp/again; exit 1; }; \
        echo of $JOB_COMPLETION_INDEX";
    spec.apply(json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": "parts" },
        "spec": {
            "completions": 3,
            "parallelism": 3,
            "completionMode": "Indexed",
            "template": { "spec": {
                "restartPolicy": "OnFailure",
                "volumes": [{ "name": "tmp", "emptyDir": {} }],
                "containers": [{
                    "name": "main",
                    "image": "busybox",
                    "command": ["sh", "-c", script],
                    "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
                }],
            } },
        },
    }))?;
    spec.kubectl(&["wait", "--for=condition=Complete", "job/parts", "--timeout=120s"])?;
    let logs = spec.kubectl(&["logs", "--selector=batch.kubernetes.io/job-name=parts"])?;
    let mut parts: Vec<_> = logs.lines().collect();
    parts.sort_unstable();
    ensure!(parts == ["of 0", "of 1", "of 2"], "{logs:?}");
    let restarts = "{.items[*].status.containerStatuses[0].restartCount}";
    let restarts = spec.value(&["pods", "--selector=batch.kubernetes.io/job-name=parts"], restarts)?;
    ensure!(restarts.split(' ').filter(|count| *count == "1").count() == 1, "{restarts:?}");
    Ok(())
}

pub(crate) fn cron_job(spec: &Spec<'_>) -> Result<()> {
    let cron = ["create", "cronjob", "tick", "--image=busybox", "--schedule=* * * * *", "--"];
    spec.kubectl(&[&cron[..], &["sh", "-c", "echo ticked"]].concat())?;
    spec.kubectl(&["create", "job", "now", "--from=cronjob/tick"])?;
    spec.kubectl(&["wait", "--for=condition=Complete", "job/now", "--timeout=120s"])?;
    // The next full minute.
    let job = "{.items[?(@.metadata.annotations.batch\\.kubernetes\\.io/cronjob-scheduled-timestamp)].metadata.name}";
    let job = spec.await_that(&["jobs"], job, |name| name.starts_with("tick-"))?;
    let job = format!("job/{}", job.split(' ').next().unwrap_or_default());
    spec.kubectl(&["wait", "--for=condition=Complete", &job, "--timeout=120s"])?;
    ensure!(spec.kubectl(&["logs", &job])? == "ticked\n");
    spec.await_that(&["cronjob/tick"], "{.status.lastSuccessfulTime}", |time| !time.is_empty())?;
    spec.kubectl(&["delete", "cronjob", "tick", "--timeout=60s"]).map(drop)
}
