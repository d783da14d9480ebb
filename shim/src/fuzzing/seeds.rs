//! Inputs to begin with, of the targets whose bytes nobody could write by hand: archives with good checksums,
//! packed header blocks, protobuf. Owns them as code; `cargo xtask fuzz --seeds` puts them into files.

use std::collections::BTreeMap;

use bytes::Bytes;
use gantry_proto::cri;
use prost::Message;

use crate::streaming::spdy::Headers;
use crate::streaming::spdy::frame::{Encoder, Frame};
use crate::streaming::ws::{Opcode, encode};
use gantry_shim_testing::corpus::{with_prefix, write_seeds};

type Seeds = Vec<Vec<u8>>;

#[test]
fn seeds_are_written_where_they_are_asked_for() {
    write_seeds(&[("spdy", spdy()), ("websocket", websocket()), ("spec", spec())]);
}

fn spdy() -> Seeds {
    let named = |pairs: &[(&str, &str)]| -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let frames = [
        Frame::SynStream {
            stream: 1,
            fin: false,
            headers: named(&[("streamtype", "error"), ("port", "80")]),
        },
        Frame::SynReply { stream: 1, fin: true, headers: Headers::default() },
        Frame::Data { stream: 1, fin: false, bytes: Bytes::from_static(b"some data") },
        Frame::Data { stream: 1, fin: true, bytes: Bytes::new() },
        Frame::Ping(1),
        Frame::Reset { stream: 1, status: 5 },
        Frame::GoAway { last: 1, status: 0 },
    ];
    let mut encoder = Encoder::new().unwrap();
    let sent: Vec<u8> = frames.iter().flat_map(|frame| encoder.encode(frame).unwrap()).collect();
    // Lists of frames for the target to pack: kind, stream, length, body.
    let block = b"\0\0\0\x01\0\0\0\nstreamtype\0\0\0\x05stdin";
    let made = |kind: u8, body: &[u8]| [&[kind, 3, u8::try_from(body.len()).unwrap(), 0], body].concat();
    let pairs = [&b"\0\0\0\x02"[..], b"\0\0\0\x01A\0\0\0\x01b", b"\0\0\0\0\0\0\0\0"].concat();
    vec![
        with_prefix(0, &sent),
        with_prefix(2, &sent),
        with_prefix(1, &made(1, block)),
        with_prefix(
            1,
            &[made(1, block), made(2, block), made(8, block), made(0, b"data"), made(1, &pairs)].concat(),
        ),
        with_prefix(1, &made(1, b"\0\0\0\x65")),
        with_prefix(1, &made(1, b"\0\0\0\x01\0\0\0\xff")),
        with_prefix(
            3,
            &[made(3, &[0; 8]), made(6, &[0, 0, 0, 1]), made(7, &[0; 8]), made(4, &[0; 4]), made(9, &[0; 8])]
                .concat(),
        ),
        with_prefix(1, &made(5, b"")),
        with_prefix(1, &made(1, b"\0\0\0\x01\0\0\0\x01\xff\0\0\0\0")),
    ]
}

fn websocket() -> Seeds {
    let mask = Some([1, 2, 3, 4]);
    let resize = br#"{"Width":80,"Height":24}"#;
    let talk = [
        encode(Opcode::Binary, b"\0stdin", mask),
        encode(Opcode::Ping, b"?", mask),
        encode(Opcode::Binary, &with_prefix(4, resize), mask),
        encode(Opcode::Close, &[3, 0xe8], mask),
    ];
    // A text in two parts with a pong between them.
    let parts = [0x01, 0x82, 0, 0, 0, 0, b'0', b'a', 0x8a, 0x80, 0, 0, 0, 0, 0x80, 0x81, 0, 0, 0, 0, b'c'];
    vec![
        with_prefix(0, &talk.concat()),
        with_prefix(0, &encode(Opcode::Text, resize, mask)),
        with_prefix(2, &encode(Opcode::Text, b"0Zm9vCg==", mask)),
        with_prefix(4, &encode(Opcode::Binary, &[255, 0], mask)),
        with_prefix(0, &parts),
        with_prefix(1, &encode(Opcode::Binary, &[1; 200], None)),
        with_prefix(1, &encode(Opcode::Binary, &[1; 70_000], None)[..600]),
        with_prefix(0, &encode(Opcode::Binary, &[0x55; 300], mask)),
        with_prefix(8, &[0x82, 0xff, 0, 0, 0, 0, 0, 0x40, 0, 1, 0, 0, 0, 0]),
    ]
}

fn spec() -> Seeds {
    let command =
        |config: cri::ContainerConfig| cri::ContainerConfig { command: vec!["/x".into()], ..config };
    let privileged = cri::LinuxContainerSecurityContext { privileged: true, ..Default::default() };
    let privileged = command(with_security(privileged));
    let by_name = |name: &str| {
        let security =
            cri::LinuxContainerSecurityContext { run_as_username: name.into(), ..Default::default() };
        let config = command(with_security(security));
        cri::ContainerConfig { annotations: text(&IMAGE[..2]), stop_signal: 9, ..config }
    };
    let of_image = cri::ContainerConfig { annotations: text(&IMAGE), ..Default::default() };
    let request = |config: &cri::ContainerConfig, pod: Option<cri::PodSandboxConfig>| {
        let config = Some(config.clone());
        cri::CreateContainerRequest { config, sandbox_config: pod, ..Default::default() }.encode_to_vec()
    };
    vec![
        request(&full(), Some(pod(false, 0))),
        request(&full(), None),
        request(&privileged, Some(pod(true, 2))),
        request(&privileged, Some(pod(false, 0))),
        request(&by_name("web"), None),
        request(&by_name("nobody"), None),
        request(&of_image, Some(pod(false, 2))),
    ]
}

/// What an image says, as the target has it.
const IMAGE: [(&str, &str); 7] = [
    ("passwd", "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:w:/srv:/bin/sh\n"),
    ("group", "root:x:0:\nweb:x:102:\nlogs:x:50:web,other\n"),
    ("user", "web:logs"),
    ("env", "A=b\nPATH=/x\nnot-one"),
    ("cmd", "/bin/sh\n-c"),
    ("dir", "/srv"),
    ("signal", "SIGRTMIN+3"),
];

fn text(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn with_security(security: cri::LinuxContainerSecurityContext) -> cri::ContainerConfig {
    let linux = cri::LinuxContainerConfig { security_context: Some(security), resources: None };
    cri::ContainerConfig { linux: Some(linux), ..Default::default() }
}

fn limits() -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        memory_limit_in_bytes: 1 << 20,
        cpu_shares: 2,
        oom_score_adj: 1000,
        hugepage_limits: vec![cri::HugepageLimit { page_size: "2MB".into(), limit: 0 }],
        unified: text(&[("memory.high", "9")]),
        ..Default::default()
    }
}

/// Something in every field that is looked at.
fn full() -> cri::ContainerConfig {
    let security = cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_capabilities: vec!["NET_ADMIN".into(), "ALL".into()],
            drop_capabilities: vec!["CAP_CHOWN".into(), "ALL".into()],
            add_ambient_capabilities: vec!["NET_BIND_SERVICE".into()],
        }),
        namespace_options: Some(cri::NamespaceOption { pid: 1, ..Default::default() }),
        run_as_user: Some(cri::Int64Value { value: 101 }),
        run_as_group: Some(cri::Int64Value { value: 7 }),
        supplemental_groups: vec![5, 6],
        masked_paths: vec!["/proc/kcore".into()],
        readonly_paths: vec!["/proc/sys".into()],
        seccomp: Some(cri::SecurityProfile { profile_type: 2, localhost_ref: "/p.json".into() }),
        no_new_privs: true,
        ..Default::default()
    };
    let mount = cri::Mount {
        container_path: "/data".into(),
        host_path: "/srv/data".into(),
        readonly: true,
        recursive_read_only: true,
        ..Default::default()
    };
    let device = cri::Device {
        host_path: "/dev/null".into(),
        container_path: "/dev/x".into(),
        permissions: "rwm".into(),
    };
    cri::ContainerConfig {
        annotations: text(&IMAGE),
        args: vec!["-x".into()],
        envs: vec![cri::KeyValue { key: "K".into(), value: b"v".to_vec() }],
        mounts: vec![mount],
        devices: vec![device],
        stdin: true,
        stdin_once: true,
        tty: true,
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(limits()),
            security_context: Some(security),
        }),
        ..Default::default()
    }
}

fn pod(privileged: bool, network: i32) -> cri::PodSandboxConfig {
    let security = cri::LinuxSandboxSecurityContext {
        privileged,
        namespace_options: Some(cri::NamespaceOption { network, ..Default::default() }),
        ..Default::default()
    };
    let linux = cri::LinuxPodSandboxConfig {
        sysctls: text(&[("net.ipv4.ip_forward", "1"), ("kernel.shm_rmid_forced", "1")]),
        security_context: Some(security),
        resources: Some(limits()),
        overhead: Some(limits()),
        ..Default::default()
    };
    let metadata = cri::PodSandboxMetadata {
        name: "web".into(),
        namespace: "default".into(),
        uid: "u".into(),
        attempt: 1,
    };
    cri::PodSandboxConfig {
        metadata: Some(metadata),
        hostname: "web".into(),
        log_directory: "/var/log/pods/x".into(),
        port_mappings: vec![cri::PortMapping { host_port: 80, container_port: 80, ..Default::default() }],
        linux: Some(linux),
        ..Default::default()
    }
}
