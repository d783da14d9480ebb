//! What is in each image. Owns the recipes and nothing else; the layout is what upstream's tests look for, read from
//! their Dockerfiles. Called by `images`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::json;

use super::Program::{Go, Own};
use super::{Recipe, Set};
use crate::image::{self, Image, Layer};
use crate::{debian, go};

const NONE: (&str, &[&str]) = ("", &[]);
const AGNHOST: (&str, &[&str]) = (
    "agnhost",
    // getent is of libc-bin.
    &["bash-static", "bind9-dnsutils", "curl", "iproute2", "libc-bin", "netcat-openbsd", "util-linux"],
);
const BUSYBOX: (&str, &[&str]) = ("busybox", &["bash-static", "procps", "util-linux"]);
const PROXY: (&str, &[&str]) = ("kube-proxy", &["nftables"]);
const RESOLVING: (&str, &[&str]) = ("glibc-dns", &["bash-static", "bind9-dnsutils", "libc-bin"]);
const IN_AGNHOST: [super::Program; 3] = [Go("agnhost"), Own("gantry-workload"), Own("gantry-pause")];

/// The recipes of a set.
pub(super) fn of(set: Set) -> Vec<Recipe> {
    match set {
        Set::Cluster => cluster(),
        Set::Suites => suites(),
    }
}

fn cluster() -> Vec<Recipe> {
    let recipe = |names, programs, packages, make| Recipe { names, programs, packages, make };
    vec![
        recipe(&["pause:3.10.2", "pause:3.10.1", "pause:3.10"], &[Own("gantry-pause")], NONE, pause),
        recipe(
            &[
                "e2e-test-images/busybox:1.37.0-1",
                "library/busybox:latest",
                "library/busybox:1.37",
                "e2e-test-images/busybox:1.36.1-1",
            ],
            &[Own("gantry-workload")],
            BUSYBOX,
            busybox,
        ),
        recipe(
            &["e2e-test-images/agnhost:2.63.0", "e2e-test-images/agnhost:2.55"],
            &IN_AGNHOST,
            AGNHOST,
            agnhost,
        ),
        recipe(
            &[
                "library/nginx:latest",
                "library/nginx:1.22",
                "e2e-test-images/nginx:1.15-4",
                "e2e-test-images/nginx:1.27-0",
            ],
            &[],
            ("nginx", &["nginx", "nginx-common"]),
            debian::nginx_image,
        ),
        recipe(&["kube-proxy:v1.36.3"], &[Go("kube-proxy")], PROXY, kube_proxy),
        recipe(&["coredns/coredns:v1.15.0"], &[Go("coredns")], NONE, || alone(Go("coredns"), "coredns", "")),
        recipe(&["metrics-server/metrics-server:v0.9.0"], &[Go("metrics-server")], NONE, || {
            alone(Go("metrics-server"), "metrics-server", "65534")
        }),
    ]
    .into_iter()
    .chain(csi())
    .collect()
}

/// The tests' CSI driver, and stand-ins for the sidecars that go with one: none is upstream's, all have upstream's names.
fn csi() -> Vec<Recipe> {
    let recipe = |names, programs, make| Recipe { names, programs, packages: NONE, make };
    vec![
        recipe(&["sig-storage/hostpathplugin:v1.17.1"], &[Go("hostpathplugin")], || {
            let own = Layer::default().file("hostpathplugin", 0o755, Go("hostpathplugin").read()?);
            let layers = vec![Layer::busybox()?, own];
            Ok(Image { layers, entrypoint: vec!["/hostpathplugin".into()], env: path(), ..Image::default() })
        }),
        recipe(
            &["sig-storage/csi-node-driver-registrar:v2.16.0"],
            &[Go("csi-node-driver-registrar")],
            || alone(Go("csi-node-driver-registrar"), "csi-node-driver-registrar", ""),
        ),
        recipe(&["sig-storage/csi-provisioner:v6.1.1"], &[Go("csi-provisioner")], || {
            alone(Go("csi-provisioner"), "csi-provisioner", "")
        }),
        recipe(&["sig-storage/csi-attacher:v4.11.0"], &[Go("csi-attacher")], || {
            alone(Go("csi-attacher"), "csi-attacher", "")
        }),
        recipe(&["sig-storage/csi-resizer:v2.1.0"], &[Go("csi-resizer")], || {
            alone(Go("csi-resizer"), "csi-resizer", "")
        }),
    ]
}

fn suites() -> Vec<Recipe> {
    let recipe = |names, programs, packages, make| Recipe { names, programs, packages, make };
    vec![
        recipe(&["e2e-test-images/nonewprivs:1.4"], &[Go("nonewprivs")], NONE, nonewprivs),
        recipe(&["e2e-test-images/nonroot:1.5"], &[Own("gantry-workload")], BUSYBOX, || {
            Ok(Image { user: "1234".into(), ..busybox()? })
        }),
        recipe(&["e2e-test-images/ipc-utils:1.4"], &[Own("gantry-workload")], BUSYBOX, busybox),
        recipe(&["e2e-test-images/glibc-dns-testing:2.0.0"], &[], RESOLVING, resolving),
        recipe(&["e2e-test-images/nautilus:1.8"], &IN_AGNHOST, AGNHOST, || pet("nautilus")),
        recipe(&["e2e-test-images/kitten:1.8"], &IN_AGNHOST, AGNHOST, || pet("kitten")),
        recipe(&["e2e-test-images/sample-apiserver:1.29.2"], &[Go("sample-apiserver")], NONE, || {
            alone(Go("sample-apiserver"), "sample-apiserver", "")
        }),
        recipe(&["e2e-test-images/sample-device-plugin:1.7"], &[Go("sample-device-plugin")], NONE, || {
            alone(Go("sample-device-plugin"), "sampledeviceplugin", "")
        }),
        recipe(&["etcd:3.6.8-0"], &[Go("etcd")], NONE, || {
            let layer = Layer::busybox()?.file("usr/local/bin/etcd", 0o755, Go("etcd").read()?);
            Ok(Image { layers: vec![layer], env: path(), ..Image::default() })
        }),
        recipe(&PULLED_ONLY, &[], NONE, pulled_only),
    ]
}

/// What e2e_node pulls before the specs of the image garbage collector, and never runs.
const PULLED_ONLY: [&str; 8] = [
    "cadvisor/cadvisor:v0.47.2",
    "e2e-test-images/node-perf/npb-ep:1.6.0",
    "e2e-test-images/node-perf/npb-is:1.7.0",
    "e2e-test-images/node-perf/pytorch-wide-deep:1.0.0",
    "e2e-test-images/perl:5.26",
    "e2e-test-images/volume/nfs:1.6.0",
    "nfvpe/sriov-device-plugin:v3.1",
    "node-problem-detector/node-problem-detector:v1.34.0",
];

fn path() -> Vec<String> {
    vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()]
}

fn pause() -> Result<Image> {
    let layer = Layer::default().file("pause", 0o755, Own("gantry-pause").read()?);
    let (entrypoint, user) = (vec!["/pause".into()], "65535:65535".into());
    Ok(Image { layers: vec![layer], entrypoint, user, env: path(), ..Image::default() })
}

/// One static program and nothing else.
fn alone(program: super::Program, name: &str, user: &str) -> Result<Image> {
    // A program that writes wants a folder for it.
    let layer = Layer::default().dir("tmp", 0o1777).file(name, 0o755, program.read()?);
    let (entrypoint, user) = (vec![format!("/{name}")], user.into());
    Ok(Image { layers: vec![layer], entrypoint, user, env: path(), ..Image::default() })
}

/// busybox with what Debian's lacks and the suites call.
fn busybox() -> Result<Image> {
    let own = Layer::default()
        .dir("etc", 0o755)
        .file("etc/passwd", 0o644, PASSWD)
        .file("etc/group", 0o644, GROUP)
        .file("bin/sh", 0o755, Own("gantry-workload").read()?)
        .file("bin/nmeter", 0o755, Own("gantry-workload").read()?);
    let layers = vec![Layer::busybox()?, debian::closure_layer(BUSYBOX.0)?, own];
    Ok(Image { layers, cmd: vec!["sh".into()], env: path(), ..Image::default() })
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
";

const GROUP: &str = "root:x:0:\ndaemon:x:1:\nnobody:x:65534:\n";

fn agnhost() -> Result<Image> {
    let porter = upstream("test/images/agnhost/porter")?;
    let read = |name: &str| {
        let path = porter.join(name);
        std::fs::read(&path).with_context(|| path.display().to_string())
    };
    let user = "user-defined-in-image:x:1000:1000:Linux User,,,:/home/user-defined-in-image:/bin/sh\n";
    let groups = "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n";
    let own = Layer::default()
        .file("etc/passwd", 0o644, format!("{PASSWD}{user}"))
        .file("etc/group", 0o644, format!("{GROUP}{groups}"))
        .symlink("bin/sh", "bash-static")
        .symlink("bin/bash", "bash-static")
        // Debian leaves the name to its alternatives; busybox has no UDP.
        .symlink("bin/nc", "nc.openbsd")
        .file("bin/nmeter", 0o755, Own("gantry-workload").read()?)
        .dir("uploads", 0o755)
        .file("localhost.crt", 0o644, read("localhost.crt")?)
        .file("localhost.key", 0o644, read("localhost.key")?)
        .symlink("agnhost-2", "agnhost");
    let layers = vec![
        Layer::busybox()?,
        debian::closure_layer(AGNHOST.0)?,
        Layer::default().file("agnhost", 0o755, Go("agnhost").read()?),
        inner_registry(own)?,
    ];
    let (entrypoint, cmd) = (vec!["/agnhost".into()], vec!["pause".into()]);
    Ok(Image { layers, entrypoint, cmd, env: path(), ..Image::default() })
}

/// What `agnhost fake-registry-server` serves: the pause image as `pause:testing`, behind an index as upstream's is.
fn inner_registry(mut layer: Layer) -> Result<Layer> {
    let built = pause()?.build()?;
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": built.media_type(),
            "digest": built.manifest.digest,
            "size": built.manifest.bytes.len(),
            "platform": { "architecture": "amd64", "os": "linux" },
        }],
    }))?;
    let digest = image::sha256(&index);
    let manifests = [(&digest, &index), (&built.manifest.digest, &built.manifest.bytes)];
    let blobs = built.layers.iter().chain([&built.config]).map(|blob| (&blob.digest, &blob.bytes));
    let all = manifests.into_iter().map(|one| ("manifests", one)).chain(blobs.map(|one| ("blobs", one)));
    for (kind, (digest, bytes)) in all {
        let hex = digest.strip_prefix("sha256:").context("a digest of another kind")?;
        let file = format!("var/registry/pause/{kind}/sha256/{}/{hex}/data", &hex[..2]);
        layer = layer.file(&file, 0o644, bytes.clone());
    }
    Ok(layer.file("var/registry/pause/manifests/testing", 0o644, format!("{digest}\n")))
}

fn kube_proxy() -> Result<Image> {
    let own = Layer::default().file("usr/local/bin/kube-proxy", 0o755, Go("kube-proxy").read()?);
    let layers = vec![debian::closure_layer(PROXY.0)?, own];
    Ok(Image { layers, entrypoint: vec!["kube-proxy".into()], env: path(), ..Image::default() })
}

/// A program that is setuid: the bits must survive the layer.
fn nonewprivs() -> Result<Image> {
    let layer = Layer::busybox()?.file("usr/local/bin/nnp", 0o6755, Go("nonewprivs").read()?);
    Ok(Image { layers: vec![layer], cmd: vec!["nnp".into()], env: path(), ..Image::default() })
}

/// As many files as a pod of `ImageGCNoEviction` makes above the threshold, three times over: what the collector is to free.
fn pulled_only() -> Result<Image> {
    const FILES: usize = 30_000;
    let named = |layer: Layer, file: usize| layer.file(&format!("files/{}/{file}", file / 100), 0o644, "");
    let layers = vec![(0..FILES).fold(Layer::default(), named)];
    Ok(Image { layers, ..Image::default() })
}

fn resolving() -> Result<Image> {
    let own = Layer::default().symlink("bin/sh", "bash-static").symlink("bin/bash", "bash-static");
    let layers = vec![Layer::busybox()?, debian::closure_layer(RESOLVING.0)?, own];
    Ok(Image { layers, cmd: vec!["bash".into()], env: path(), ..Image::default() })
}

/// agnhost with a picture. One test mounts the kitten as a volume, and looks for the base of upstream's image in it.
fn pet(name: &str) -> Result<Image> {
    let pages = upstream(&format!("test/images/{name}/html"))?;
    let mut own = Layer::default().file("etc/os-release", 0o644, "NAME=\"Alpine Linux\"\nID=alpine\n");
    for file in [format!("{name}.jpg"), "data.json".to_owned()] {
        let path = pages.join(&file);
        own = own.file(&file, 0o644, std::fs::read(&path).with_context(|| path.display().to_string())?);
    }
    let mut image = agnhost()?;
    image.layers.push(own);
    image.cmd = vec!["test-webserver".into()];
    Ok(image)
}

/// A folder of Kubernetes' own module, in Go's cache.
fn upstream(folder: &str) -> Result<PathBuf> {
    Ok(go::module("kubernetes", "k8s.io/kubernetes")?.join(folder))
}
