//! What single fields become, with the API server's defaults, and how they are refused in its words.

use std::time::Duration;

use gantry_model::pod::env::{EnvFrom, EnvFromSource, KeyRef, ResourceRef};
use gantry_model::pod::probe::{Handler, HttpGet, PortRef};
use gantry_model::pod::volume::{
    HostPathType, IscsiVolume, Medium, NfsVolume, Projection, Propagation, RecursiveReadOnly, SizeLimit,
    SubPath, VolumeSource,
};
use gantry_model::pod::{DnsPolicy, Role, Seccomp};

use super::*;

/// Each text is refused with that part in the message.
fn refused(list: &[(String, &str)]) {
    for (text, part) in list {
        let got = error(text);
        assert!(got.contains(part), "got   {got}\nwants {part}");
    }
}

#[test]
fn values_are_checked_in_the_words_of_kubernetes() {
    let meta = |to: &str| GOOD.replace("{name: web, labels", to);
    refused(&[
        (meta("{name: Web, labels"), "metadata.name: Invalid value: \"Web\": a lowercase RFC 1123 subdomain"),
        (meta("{name: web, namespace: ../x, labels"), "metadata.namespace: Invalid value: \"../x\""),
        (meta("{name: web, uid: ../x, labels"), "metadata.uid: Invalid value: \"../x\""),
        (meta("{labels"), "metadata.name: Required value: name or generateName is required"),
        (
            GOOD.replace("OnFailure", "Sometimes"),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\"",
        ),
        (
            GOOD.replace("64Mi", "64Mb"),
            "spec.containers[0].resources.limits.memory: \"64Mb\" is not a quantity",
        ),
        (
            GOOD.replace("cpu: 250m", "cpu: 2"),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            GOOD.replace("runAsUser: 1000", "runAsUser: -1"),
            "runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ),
        (GOOD.replace("{name: PORT, ", "{name: 'A=B', "), "env[0].name: Invalid value: \"A=B\": a valid"),
        (
            GOOD.replace("  containers:\n", "  containers:\n  - {name: web, image: b}\n"),
            "spec.containers[1].name: Duplicate value: \"web\"",
        ),
        (
            with_spec("initContainers", "[{name: web, image: a}]"),
            "spec.initContainers[0].name: Duplicate value: \"web\"",
        ),
        (
            GOOD.replace("ClusterFirst", "None"),
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ),
        (with("imagePullPolicy", "Often"), "imagePullPolicy: Unsupported value: \"Often\""),
        (
            with_spec("activeDeadlineSeconds", "0"),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between",
        ),
        (with_spec("hostAliases", "[{ip: nope, hostnames: [a]}]"), "spec.hostAliases[0].ip: Invalid value"),
        (
            format!("{}\n  hostPID: true\n  shareProcessNamespace: true", GOOD.trim_end()),
            "ShareProcessNamespace and HostPID cannot both be enabled",
        ),
    ]);
}

#[test]
fn variables_come_from_everywhere() {
    let web = container(
        "env",
        "[{name: F, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}}, \
          {name: R, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}, \
          {name: C, valueFrom: {configMapKeyRef: {name: c, key: k}}}, \
          {name: S, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}]",
    );
    let key = |name: &str, optional| KeyRef { name: name.into(), key: "k".into(), optional };
    let values: Vec<EnvValue> = web.env.into_iter().map(|variable| variable.value).collect();
    assert_eq!(
        values,
        [
            EnvValue::Field("metadata.labels['app']".into()),
            EnvValue::Resource(ResourceRef {
                container: String::new(),
                resource: "limits.memory".into(),
                divisor_milli: 1000 << 20,
            }),
            EnvValue::ConfigMapKey(key("c", false)),
            EnvValue::SecretKey(key("s", true)),
        ]
    );
    let from = container(
        "envFrom",
        "[{prefix: P_, configMapRef: {name: c}}, {secretRef: {name: s, optional: true}}]",
    );
    let source = |prefix: &str, source, optional| EnvFrom { prefix: prefix.into(), source, optional };
    assert_eq!(
        from.env_from,
        [
            source("P_", EnvFromSource::ConfigMap("c".into()), false),
            source("", EnvFromSource::Secret("s".into()), true),
        ]
    );
    let value = |from: &str| with("env", &format!("[{{name: A, valueFrom: {from}}}]"));
    refused(&[
        (value("{}"), "valueFrom: Invalid value: \"\": must specify one of: `fieldRef`"),
        (
            value("{fieldRef: {fieldPath: spec.foo}}"),
            "error converting fieldPath: field label not supported: spec.foo",
        ),
        (
            value("{fieldRef: {fieldPath: metadata.labels}}"),
            "fieldPath: Unsupported value: \"metadata.labels\"",
        ),
        (value("{resourceFieldRef: {resource: cpu}}"), "resource: Unsupported value: \"cpu\""),
        (
            value("{resourceFieldRef: {resource: limits.cpu, divisor: 2}}"),
            "only divisor's values 1m and 1 are supported with the cpu resource",
        ),
        (value("{configMapKeyRef: {name: c}}"), "key"),
        (
            value("{secretKeyRef: {name: s, key: a/b}}"),
            "key: Invalid value: \"a/b\": a valid config key must",
        ),
    ]);
}

#[test]
fn init_containers_and_sidecars_have_their_roles() {
    let pod = spec(
        "initContainers",
        "[{name: a, image: i}, {name: b, image: i, restartPolicy: Always, readinessProbe: {tcpSocket: {port: 80}}}]",
    );
    let roles: Vec<_> = pod.all_containers().map(|c| (c.name.as_str(), c.role)).collect();
    assert_eq!(roles, [("a", Role::Init), ("b", Role::Sidecar), ("web", Role::Regular)]);
    assert_eq!(container("restartPolicy", "Never").restart_policy, RestartPolicy::Never);
    refused(&[(
        with_spec("initContainers", "[{name: a, image: i, livenessProbe: {tcpSocket: {port: 80}}}]"),
        "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
    )]);
}

#[test]
fn probes_and_hooks_have_the_api_servers_defaults() {
    let probe = container("livenessProbe", "{httpGet: {port: http, scheme: HTTPS}}").probes.liveness.unwrap();
    let handler = Handler::HttpGet(HttpGet {
        host: String::new(),
        port: PortRef::Name("http".into()),
        path: "/".into(),
        tls: true,
        headers: vec![],
    });
    assert_eq!(probe.handler, handler);
    let s = Duration::from_secs;
    assert_eq!((probe.initial_delay, probe.timeout, probe.period), (s(0), s(1), s(10)));
    assert_eq!((probe.success_threshold, probe.failure_threshold), (1, 3));
    let hooks = container(
        "lifecycle",
        "{preStop: {sleep: {seconds: 5}}, postStart: {exec: {command: [a]}}, stopSignal: SIGUSR1}",
    );
    assert_eq!(hooks.lifecycle.pre_stop, Some(Handler::Sleep(s(5))));
    assert_eq!(hooks.lifecycle.stop_signal.as_deref(), Some("SIGUSR1"));
    refused(&[
        (with("livenessProbe", "{}"), "livenessProbe: Required value: must specify a handler type"),
        (
            with("livenessProbe", "{exec: {command: [a]}, tcpSocket: {port: 1}}"),
            "livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
        ),
        (
            with("livenessProbe", "{exec: {command: [a]}, successThreshold: 2}"),
            "successThreshold: Invalid value: 2: must be 1",
        ),
        (
            with("readinessProbe", "{tcpSocket: {port: 0}}"),
            "port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
        (
            with("readinessProbe", "{grpc: {port: 1}, periodSeconds: -1}"),
            "periodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            with("lifecycle", "{preStop: {sleep: {seconds: 31}}}"),
            "preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
        ),
    ]);
}

#[test]
fn ports_follow_the_network() {
    let ports =
        container("ports", "[{containerPort: 80, hostPort: 8080, hostIP: 127.0.0.1, name: http}]").ports;
    let port = ports.first().unwrap();
    assert_eq!(
        (port.port, port.host_port, port.host_ip.as_str(), port.protocol.as_str()),
        (80, 8080, "127.0.0.1", "TCP")
    );
    let host = |ports: &str| {
        format!("{}\n    ports: {ports}\n  hostNetwork: true\n", with("stdin", "true").trim_end())
    };
    let pod = parse(&host("[{containerPort: 80}]")).unwrap().remove(0);
    assert_eq!(pod.containers.first().unwrap().ports.first().unwrap().host_port, 80);
    assert_eq!(pod.hostname, "");
    refused(&[
        (
            host("[{containerPort: 80, hostPort: 81}]"),
            "hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true",
        ),
        (with("ports", "[{containerPort: 70000}]"), "containerPort: Invalid value: 70000: must be between"),
        (
            with("ports", "[{containerPort: 1, name: a--b}]"),
            "name: Invalid value: \"a--b\": must not contain consecutive hyphens",
        ),
        (
            with("ports", "[{containerPort: 1, hostPort: 9}, {containerPort: 2, hostPort: 9}]"),
            "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\"",
        ),
    ]);
}

#[test]
fn a_pod_may_opt_out_of_volumes_that_are_mounted_with_its_label() {
    let opts_out = |policy: &str| {
        let context = format!("{{seLinuxChangePolicy: {policy}}}");
        spec("securityContext", &context).security.se_linux_recursive
    };
    assert_eq!((opts_out("Recursive"), opts_out("MountOption"), opts_out("null")), (true, false, false));
    let wrong = with_spec("securityContext", "{seLinuxChangePolicy: Never}");
    refused(&[(wrong, "securityContext.seLinuxChangePolicy: Unsupported value: \"Never\"")]);
}

#[test]
fn security_contexts_inherit_and_are_checked() {
    let pod = spec(
        "securityContext",
        "{runAsUser: 5, runAsNonRoot: true, fsGroup: 7, supplementalGroups: [8, 9], supplementalGroupsPolicy: Strict, \
          fsGroupChangePolicy: OnRootMismatch, seccompProfile: {type: RuntimeDefault}, \
          sysctls: [{name: net/ipv4/ip_unprivileged_port_start, value: '0'}]}",
    );
    let web = &pod.containers.first().unwrap().security;
    assert_eq!((web.run_as_user, web.run_as_non_root), (Some(5), true));
    assert_eq!(web.seccomp, Some(Seccomp::RuntimeDefault));
    let security = &pod.security;
    assert_eq!(
        (security.fs_group, security.fs_group_on_root_mismatch, security.strict_groups),
        (Some(7), true, true)
    );
    assert_eq!(security.supplemental_groups, [8, 9]);
    assert_eq!(security.sysctls, [("net.ipv4.ip_unprivileged_port_start".into(), "0".into())]);
    let own = container("securityContext", "{seccompProfile: {type: Localhost, localhostProfile: a/b.json}}");
    assert_eq!(own.security.seccomp, Some(Seccomp::Localhost("a/b.json".into())));
    refused(&[
        (
            with("securityContext", "{privileged: true, allowPrivilegeEscalation: false}"),
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ),
        (with("securityContext", "{procMount: Unmasked}"), "`hostUsers` must be false to use `Unmasked`"),
        (
            with("securityContext", "{seccompProfile: {type: Localhost}}"),
            "localhostProfile: Required value: must be set when seccomp type is Localhost",
        ),
        (
            with_spec("securityContext", "{sysctls: [{name: kernel.msgmax, value: '1'}]}"),
            "sysctls[0].name: Forbidden: forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            with_spec(
                "securityContext",
                "{sysctls: [{name: net/ipv4/tcp_syncookies, value: '1'}]}\n  hostNetwork: true",
            ),
            "sysctls[0].name: Invalid value: \"net/ipv4/tcp_syncookies\": may not be specified when 'hostNetwork' is true",
        ),
        (
            with_spec(
                "securityContext",
                "{sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]}\n  hostIPC: true",
            ),
            "sysctls[0].name: Invalid value: \"kernel.shm_rmid_forced\": may not be specified when 'hostIPC' is true",
        ),
    ]);
}

#[test]
fn disks_of_targets_are_read_with_the_api_servers_defaults() {
    let of = "{targetPortal: 10.0.0.1, iqn: 'iqn.2003-01.io.k8s:a', lun: 3, chapAuthSession: true, secretRef: {name: chap}}";
    let pod = spec("volumes", &format!("[{{name: disk, iscsi: {of}}}]"));
    let disk = IscsiVolume {
        target_portal: "10.0.0.1".into(),
        iqn: "iqn.2003-01.io.k8s:a".into(),
        lun: 3,
        interface: "default".into(),
        session_chap: true,
        secret: Some((String::new(), "chap".into())),
        ..IscsiVolume::default()
    };
    assert_eq!(pod.volumes[0].source, VolumeSource::Iscsi(disk));
}

#[test]
fn disks_of_targets_are_refused_in_the_api_servers_words() {
    let disk = |of: &str| with_spec("volumes", &format!("[{{name: d, iscsi: {{targetPortal: a, {of}}}}}]"));
    let start = "spec.volumes[0].iscsi";
    refused(&[
        (disk("lun: 0"), &format!("{start}.iqn: Required value")),
        (
            disk("iqn: x, lun: 0"),
            &format!(
                "{start}.iqn: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa"
            ),
        ),
        (
            disk("iqn: 'iqn.2003-1.a:b', lun: 0"),
            &format!("{start}.iqn: Invalid value: \"iqn.2003-1.a:b\": must be valid format"),
        ),
        (disk("iqn: 'iqn.2003-01.a:b,c', lun: 0"), "must be valid format"),
        (disk("iqn: eui.0123456789abcde, lun: 0"), "must be valid format"),
        (
            disk("iqn: eui.0123456789abcdef, lun: 256"),
            &format!("{start}.lun: Invalid value: 256: must be between 0 and 255, inclusive"),
        ),
        (
            disk("iqn: eui.0123456789abcdef, lun: 0, chapAuthSession: true"),
            &format!("{start}.secretRef: Required value"),
        ),
        (
            disk("iqn: eui.0123456789abcdef, lun: 0, initiatorName: me"),
            &format!("{start}.initiatorname: Invalid value: \"me\""),
        ),
    ]);
}

const VOLUMES: &str = "[{name: e, emptyDir: {medium: Memory, sizeLimit: 1Mi}}, {name: h, hostPath: {path: /x, type: File}}, \
    {name: c, configMap: {name: cm, items: [{key: a, path: b/c, mode: 0400}]}}, {name: s, secret: {secretName: se, defaultMode: 0600, optional: true}}, \
    {name: d, downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}, {name: none}, \
    {name: share, nfs: {server: nas, path: /e, readOnly: true}}, \
    {name: p, projected: {sources: [{secret: {name: se}}, {configMap: {name: cm}}]}}]";

#[test]
fn volumes_of_every_kind_are_read() {
    let pod = spec("volumes", VOLUMES);
    let source = |name: &str| &pod.volumes.iter().find(|v| v.name == name).unwrap().source;
    assert_eq!(
        *source("e"),
        VolumeSource::EmptyDir {
            medium: Medium::Memory,
            size_limit: Some(SizeLimit { bytes: 1 << 20, shown: "1Mi".into() })
        }
    );
    assert_eq!(*source("none"), VolumeSource::EmptyDir { medium: Medium::Disk, size_limit: None });
    assert_eq!(*source("h"), VolumeSource::HostPath { path: "/x".into(), kind: HostPathType::File });
    let share = NfsVolume { server: "nas".into(), path: "/e".into(), read_only: true };
    assert_eq!(*source("share"), VolumeSource::Nfs(share));
    let projected = |name: &str| match source(name) {
        VolumeSource::Projected { sources, default_mode, memory, plugin } => {
            (sources, *default_mode, *memory, *plugin)
        }
        other => panic!("{other:?}"),
    };
    let (sources, mode, memory, plugin) = projected("c");
    assert_eq!((mode, memory, plugin), (0o644, false, "kubernetes.io~configmap"));
    let Some(Projection::ConfigMap(keys)) = sources.first() else { panic!("{sources:?}") };
    assert_eq!(keys.items.first().unwrap().mode, Some(0o400));
    assert!(!keys.optional);
    let (_, mode, memory, plugin) = projected("s");
    assert_eq!((mode, memory, plugin), (0o600, true, "kubernetes.io~secret"));
    assert_eq!(projected("d").3, "kubernetes.io~downward-api");
    assert_eq!(projected("p").0.len(), 2);
    let volume = |text: &str| with_spec("volumes", &format!("[{{name: v, {text}}}]"));
    refused(&[
        (
            volume("hostPath: {path: a/../b}"),
            "hostPath.path: Invalid value: \"a/../b\": must not contain '..'",
        ),
        (volume("hostPath: {path: /a, type: Pipe}"), "hostPath.type: Unsupported value: \"Pipe\""),
        (
            volume("emptyDir: {}, hostPath: {path: /a}"),
            "hostPath: Forbidden: may not specify more than 1 volume type",
        ),
        (volume("emptyDir: {medium: Disk}"), "emptyDir.medium: Unsupported value: \"Disk\""),
        (
            volume("configMap: {name: a, items: [{key: a, path: ../b}]}"),
            "items[0].path: Invalid value: \"../b\": must not contain '..'",
        ),
        (volume("configMap: {name: a, items: [{key: a, path: ..data}]}"), "must not start with '..'"),
        (
            volume("configMap: {name: a, defaultMode: 01000}"),
            "defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
        ),
        (
            volume(
                "projected: {sources: [{secret: {name: a, items: [{key: a, path: x}]}}, {configMap: {name: b, items: [{key: a, path: x}]}}]}",
            ),
            "projected: Invalid value: \"b\": conflicting duplicate paths",
        ),
        (with_spec("volumes", "[{name: v}, {name: v}]"), "spec.volumes[1].name: Duplicate value: \"v\""),
    ]);
}

#[test]
fn an_ephemeral_volume_of_a_file_has_nobody_to_make_its_claim() {
    let told =
        "ephemeral is not supported yet: a controller of the cluster makes its claim: use an emptyDir volume";
    let volumes = "[{name: v, ephemeral: {volumeClaimTemplate: {spec: {}}}}]";
    refused(&[(with_spec("volumes", volumes), told)]);
}

#[test]
fn a_disk_of_an_older_kind_is_no_files_since_its_driver_is_a_clusters() {
    let told = "azureDisk is not supported yet: its driver registers with the node of a cluster: use a hostPath or emptyDir volume";
    let volumes = "[{name: v, azureDisk: {diskName: d, diskURI: /d}}]";
    refused(&[(with_spec("volumes", volumes), told)]);
}

#[test]
fn mounts_must_name_a_volume_of_the_pod() {
    let mount = |text: &str| {
        with("volumeMounts", &format!("[{{name: v, mountPath: /m, {text}}}]")) + "  volumes: [{name: v}]\n"
    };
    let one = |text: &str| parse(&mount(text)).unwrap().remove(0).containers.remove(0).mounts.remove(0);
    assert_eq!(one("subPath: a/b").sub_path, SubPath::Plain("a/b".into()));
    assert_eq!(one("subPathExpr: $(A)").sub_path, SubPath::Expr("$(A)".into()));
    let plain = one("readOnly: true, recursiveReadOnly: IfPossible");
    assert_eq!(
        (plain.recursive_read_only, plain.propagation),
        (RecursiveReadOnly::IfPossible, Propagation::None)
    );
    refused(&[
        (
            with("volumeMounts", "[{name: x, mountPath: /m}]"),
            "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
        ),
        (mount("subPath: ../x"), "subPath: Invalid value: \"../x\": must not contain '..'"),
        (mount("subPath: /x"), "subPath: Invalid value: \"/x\": must be a relative path"),
        (mount("subPath: a, subPathExpr: b"), "subPathExpr and subPath are mutually exclusive"),
        (
            mount("recursiveReadOnly: Enabled"),
            "recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
        ),
        (
            mount("mountPropagation: Bidirectional"),
            "mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
        ),
    ]);
}

#[test]
fn names_and_resolver_are_read() {
    let pod = spec(
        "dnsConfig",
        "{nameservers: [1.1.1.1], searches: [a.b], options: [{name: ndots, value: '2'}, {name: edns0}]}",
    );
    assert_eq!(pod.dns.policy, DnsPolicy::ClusterFirst);
    assert_eq!(pod.dns.options, [("ndots".into(), Some("2".into())), ("edns0".into(), None)]);
    assert_eq!(spec("hostnameOverride", "other.name").hostname, "other.name");
    assert_eq!(spec("subdomain", "sub").subdomain, "sub");
    assert_eq!(spec("imagePullSecrets", "[{name: a}, {name: ''}]").pull_secrets, ["a"]);
    assert_eq!(spec("serviceAccount", "old").shown.service_account, "old");
    let words = container("terminationMessagePolicy", "FallbackToLogsOnError").termination_message;
    assert_eq!((words.path.as_str(), words.fallback_to_logs), ("/dev/termination-log", true));
    refused(&[
        (with("terminationMessagePath", "a"), "terminationMessagePath: Invalid value: \"a\""),
        (
            with_spec("volumes", "[{name: v, nfs: {server: '', path: /}}]"),
            "spec.volumes[0].nfs.server: Required",
        ),
        (
            with_spec("volumes", "[{name: v, nfs: {server: a, path: ''}}]"),
            "spec.volumes[0].nfs.path: Required",
        ),
        (
            with_spec("volumes", "[{name: v, nfs: {server: a, path: e}}]"),
            "spec.volumes[0].nfs.path: Invalid value: \"e\": must be an absolute path",
        ),
        (with("workingDir", "a"), "workingDir: Invalid value: \"a\": must be an absolute path"),
        (with_spec("subdomain", "a.b"), "spec.subdomain: Invalid value: \"a.b\": a lowercase RFC 1123 label"),
    ]);
}

#[test]
fn unmasked_proc_wants_a_user_namespace() {
    let text = with("securityContext", "{procMount: Unmasked}");
    let pods = parse(&format!("{}\n  hostUsers: false\n", text.trim_end())).unwrap();
    assert!(pods.first().unwrap().containers.first().unwrap().security.unmasked_proc);
    let on_host = format!("{}\n  hostUsers: false\n  hostNetwork: true\n", GOOD.trim_end());
    assert!(error(&on_host).contains("spec.hostNetwork: Forbidden"), "{}", error(&on_host));
}

#[test]
fn a_file_may_ask_for_apparmor_and_selinux_by_fields_and_by_the_annotations_of_old() {
    use gantry_model::pod::security::AppArmor;
    let text = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {\
        container.apparmor.security.beta.kubernetes.io/old: localhost/k8s-x, \
        container.apparmor.security.beta.kubernetes.io/own: runtime/default}}, \
        spec: {securityContext: {appArmorProfile: {type: Unconfined}, seLinuxOptions: {level: 's0:c1'}}, containers: [\
        {name: old, image: i}, {name: plain, image: i}, \
        {name: own, image: i, securityContext: {appArmorProfile: {type: Localhost, localhostProfile: mine}, \
        seLinuxOptions: {type: spc_t}}}]}}";
    let pods = parse(text).unwrap();
    let pod = pods.first().unwrap();
    let profiles: Vec<_> = pod.containers.iter().map(|c| c.security.app_armor.clone().unwrap()).collect();
    let named = |name: &str| AppArmor::Localhost(name.to_owned());
    // The field, then the annotation, then the pod.
    assert_eq!(profiles, [named("k8s-x"), AppArmor::Unconfined, named("mine")]);
    let labels: Vec<_> = pod.containers.iter().filter_map(|c| c.security.se_linux.as_ref()).collect();
    assert_eq!((labels[0].level.as_str(), labels[2].kind.as_str()), ("s0:c1", "spc_t"));
    assert!(pod.security.app_armor, "the annotations want a node that has it");
}
