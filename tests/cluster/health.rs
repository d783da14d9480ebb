//! What the kubelet does about a container by itself: probes, limits, the end by the kernel for want of memory.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::spec::{Spec, pod};

/// A server of files that are there or not; each life begins without `/tmp/started`.
const SERVER: &str = "mkdir /www; touch /www/ready /tmp/alive; exec httpd -f -p 8080 -h /www";

pub(crate) fn probes(spec: &Spec<'_>) -> Result<()> {
    let mut probed = pod("probed", SERVER);
    let cat = |file: &str| json!({ "command": ["cat", file] });
    let main = &mut probed["spec"]["containers"][0];
    main["startupProbe"] =
        json!({ "exec": cat("/tmp/started"), "periodSeconds": 1, "failureThreshold": 300 });
    main["readinessProbe"] =
        json!({ "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1, "failureThreshold": 2 });
    main["livenessProbe"] = json!({ "exec": cat("/tmp/alive"), "periodSeconds": 1, "failureThreshold": 2 });
    spec.apply(probed)?;
    spec.kubectl(&["expose", "pod", "probed", "--port=80", "--target-port=8080"])?;
    let status = |field: &str| format!("{{.status.containerStatuses[0].{field}}}");
    let it: &[&str] = &["pod/probed"];
    let serving = |count: &str| {
        let slices = ["endpointslices", "--selector=kubernetes.io/service-name=probed"];
        let ready = "{.items[*].endpoints[?(@.conditions.ready==true)].addresses[0]}";
        let count: usize = count.parse().unwrap_or_default();
        spec.await_that(&slices, ready, |ready| ready.split_whitespace().count() == count)
    };
    // Not started: neither ready, however well it serves, nor restarted.
    spec.await_event("probed", "Unhealthy", "Startup probe failed: ")?;
    ensure!(spec.value(it, &status("started"))? == "false");
    ensure!(spec.value(it, &status("ready"))? == "false");
    spec.shell("probed", "touch /tmp/started")?;
    spec.await_value(it, &status("ready"), "true")?;
    serving("1")?;
    spec.shell("probed", "rm /www/ready")?;
    spec.await_value(it, &status("ready"), "false")?;
    serving("0")?;
    spec.await_event(
        "probed",
        "Unhealthy",
        "Readiness probe failed: HTTP probe failed with statuscode: 404",
    )?;
    ensure!(spec.value(it, &status("restartCount"))? == "0", "an unready container was restarted");
    spec.shell("probed", "touch /www/ready")?;
    spec.await_value(it, &status("ready"), "true")?;
    serving("1")?;
    spec.shell("probed", "rm /tmp/alive")?;
    spec.await_value(it, &status("restartCount"), "1")?;
    spec.await_event("probed", "Unhealthy", "Liveness probe failed: ")?;
    spec.await_event("probed", "Killing", "Container main failed liveness probe, will be restarted")?;
    // The next life starts from the beginning.
    spec.await_that(it, &status("state.running.startedAt"), |at| !at.is_empty())?;
    ensure!(spec.value(it, &status("started"))? == "false", "the new life is started already");
    spec.shell("probed", "touch /tmp/started")?;
    spec.await_value(it, &status("ready"), "true").map(drop)
}

/// Both kinds of cgroup.
const READ_LIMITS: &str = "cd /sys/fs/cgroup; if [ -e cpu.max ]; then cat cpu.max memory.max; else \
    echo $(cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us); cat memory/memory.limit_in_bytes; fi";
/// Two processors' worth of work, and how often the kernel stopped it.
const THROTTLED: &str = "for _ in 1 2; do timeout 2 sh -c 'while :; do :; done' & done; wait; \
    cat /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpu/cpu.stat 2>/dev/null | grep nr_throttled";

pub(crate) fn limits(spec: &Spec<'_>) -> Result<()> {
    let mut held = pod("held", crate::spec::IDLE);
    let main = &mut held["spec"]["containers"][0];
    main["resources"] = json!({ "limits": { "cpu": "200m", "memory": "64Mi" } });
    let field = |resource: &str| json!({ "resourceFieldRef": { "resource": resource, "divisor": "1" } });
    main["env"] = json!([{ "name": "MEMORY", "valueFrom": field("limits.memory") }]);
    spec.start_pod(held)?;
    let read = spec.shell("held", READ_LIMITS)?;
    ensure!(read == "20000 100000\n67108864\n", "{read:?}");
    ensure!(spec.shell("held", "echo $MEMORY")? == "67108864\n");
    ensure!(spec.value(&["pod/held"], "{.status.qosClass}")? == "Guaranteed");
    let throttled = spec.shell("held", THROTTLED)?;
    let times: u64 = throttled.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
    ensure!(times > 0, "never held back: {throttled:?}");
    // What is over an object's limits is refused before a pod is there, with the reason.
    let mut wrong = pod("wrong", "true");
    wrong["spec"]["containers"][0]["resources"] =
        json!({ "limits": { "cpu": "1" }, "requests": { "cpu": "2" } });
    let refused = spec.apply(wrong).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("must be less than or equal to cpu limit"), "{refused:?}");
    Ok(())
}

pub(crate) fn out_of_memory(spec: &Spec<'_>) -> Result<()> {
    let hungry = |name: &str, policy: &str| {
        let mut hungry = pod(name, "exec tail /dev/zero");
        hungry["spec"]["restartPolicy"] = json!(policy);
        hungry["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "32Mi" } });
        hungry
    };
    spec.apply(hungry("once", "Never"))?;
    spec.apply(hungry("again", "Always"))?;
    let ended = "{.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode} {.status.phase}";
    spec.await_value(&["pod/once"], ended, "OOMKilled 137 Failed")?;
    let waits = "{.status.containerStatuses[0].state.waiting.reason} {.status.containerStatuses[0].lastState.terminated.reason}";
    spec.await_value(&["pod/again"], waits, "CrashLoopBackOff OOMKilled")?;
    spec.await_event("again", "BackOff", "Back-off restarting failed container main in pod again_")
}

pub(crate) fn local_storage(spec: &Spec<'_>) -> Result<()> {
    let writes = |name: &str, file: &str| {
        // It does not end by SIGTERM: upstream's kubelet calls an evicted pod Succeeded when its containers end with 0.
        let mut writes = pod(name, &format!("dd if=/dev/zero of={file} bs=1M count=4 && exec sleep 3600"));
        writes["spec"]["containers"][0]["volumeMounts"] =
            json!([{ "name": "scratch", "mountPath": "/scratch" }]);
        writes
    };
    let scratch = |limit: &str| json!([{ "name": "scratch", "emptyDir": { "sizeLimit": limit } }]);
    let limit = |limit: &str| json!({ "limits": { "ephemeral-storage": limit } });
    let (mut volume, mut layer, mut within) =
        (writes("volume", "/scratch/f"), writes("layer", "/f"), writes("within", "/scratch/f"));
    volume["spec"]["volumes"] = scratch("1Mi");
    layer["spec"]["volumes"] = scratch("100Mi");
    layer["spec"]["containers"][0]["resources"] = limit("2M");
    within["spec"]["volumes"] = scratch("100Mi");
    within["spec"]["containers"][0]["resources"] = limit("100Mi");
    for pod in [volume, layer, within] {
        spec.apply(pod)?;
    }
    let said = "{.status.phase} {.status.reason} {.status.message}";
    let of_volume = "Failed Evicted Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ";
    let of_pod =
        "Failed Evicted Pod ephemeral local storage usage exceeds the total limit of containers 2M. ";
    spec.await_value(&["pod/volume"], said, of_volume)?;
    spec.await_value(&["pod/layer"], said, of_pod)?;
    spec.await_value(&["pod/within"], "{.status.phase}", "Running")?;
    spec.await_event("volume", "Evicted", of_volume.trim_start_matches("Failed Evicted "))
}
