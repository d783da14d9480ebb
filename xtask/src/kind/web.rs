//! A web server that tiers deploy: an image that no registry has, and the look whether every pod of it answers. Owns
//! both; never a manifest. Called by the tiers that make a kind cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use gantry_tests::image::{Built, Image, Layer};
use gantry_tests::{debian, saved};

use super::bed::Bed;

/// Its name: it comes by `kind load` or `gantry image load`.
pub(crate) const IMAGE: &str = "localhost/tier/web:v1";
/// Of a pod's shell.
pub(crate) const ASK: &str =
    "for n in 1 2 3 4 5 6 7 8 9 10; do curl -sS -m 5 http://web.default.svc.cluster.local; done";
/// Debian's static busybox crashes in its `wget`, in a bare chroot, too.
const CURL: (&str, &[&str]) = ("kind-curl", &["curl"]);

/// Fetches what [`image`] is made of.
pub(crate) fn fetch() -> Result<()> {
    debian::fetch_closure(CURL.0, CURL.1)
}

/// The image. [`fetch`] must have been called.
pub(crate) fn image() -> Result<Built> {
    let page = Layer::default().file(
        "serve",
        0o755,
        "#!/bin/sh\nmkdir -p /tmp/www && hostname >/tmp/www/index.html && echo serving\n\
         exec httpd -f -p 8080 -h /tmp/www\n",
    );
    let env = vec!["PATH=/usr/bin:/bin".to_owned()];
    let layers = vec![Layer::busybox()?, debian::closure_layer(CURL.0)?, page];
    Image { layers, env, cmd: vec!["/serve".into()], ..Image::default() }.build()
}

/// The same, as `docker save` writes it, in that folder.
pub(crate) fn archive(folder: &Path) -> Result<PathBuf> {
    let archive = folder.join("web.tar");
    fs::write(&archive, saved::classic(&image()?, &[IMAGE])?)?;
    Ok(archive)
}

/// Each pod asks the Service by its name until all have answered: DNS, the Service and the way between the nodes.
pub(crate) fn all_answer(bed: &Bed, count: usize) -> Result<()> {
    let pods = bed.kubectl(&["get", "pods", "--selector=app=web", "--output", "name"])?;
    ensure!(pods.lines().count() == count, "{pods}");
    for pod in pods.lines() {
        let words = ["kubectl", "exec", pod, "--", "sh", "-c", ASK];
        bed.until("all pods to answer", &words, |said| answered(said) == count)?;
    }
    Ok(())
}

/// How many pods have answered.
pub(crate) fn answered(said: &str) -> usize {
    said.lines().collect::<BTreeSet<_>>().len()
}
