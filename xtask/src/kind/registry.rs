//! A registry in the network of kind's nodes, with the images that a node of the cluster needs: what a machine on that
//! network pulls from, where no other registry is within reach. Owns its images and its process; who asks it is the
//! tier's. Called by the tiers `vagrant` and `power-cuts`,
//! and by `conformance`.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use gantry_tests::image::Built;
use gantry_tests::poll::poll;
use gantry_tests::registry::{Registry, free_port};

use super::bed::Bed;
use super::{images, web};

const PORT: u16 = 5000;
const WAIT: Duration = Duration::from_secs(60);
/// What containerd's layout of registries asks before any other.
const MIRROR: &str = "/etc/containerd/certs.d/_default";

/// A folder of images on its way to be served.
pub(crate) struct Filling(Registry);

impl Filling {
    /// With the images of a worker, the web server's and metrics-server's.
    pub(crate) fn start(store: &Path, own: &Path) -> Result<Self> {
        fs::create_dir_all(store).with_context(|| format!("make {}", store.display()))?;
        let filling = Self(Registry::start_on(free_port()?, store)?);
        images::each_of_a_worker(own, |name, built| filling.push(name, built))?;
        filling.push(images::METRICS, &images::metrics_server()?)?;
        filling.push(web::IMAGE, &web::image()?)?;
        Ok(filling)
    }

    /// What `kubeadm init` pulls beside them.
    pub(crate) fn push_control_plane(&self, own: &Path) -> Result<()> {
        images::each_of_a_control_plane(own, |name, built| self.push(name, built))
    }

    /// Under its name, without the registry that it names.
    pub(crate) fn push(&self, name: &str, built: &Built) -> Result<()> {
        let (_, rest) = name.split_once('/').context("a name without a registry")?;
        let (repository, tag) = rest.rsplit_once(':').context("a name without a tag")?;
        self.0.push(repository, tag, built).map(drop)
    }
}

/// It runs. Ended when dropped.
#[derive(Debug)]
pub(crate) struct RunningRegistry {
    child: Child,
    /// As a mirror is named.
    pub(crate) url: String,
}

impl RunningRegistry {
    /// Starts it at the bridge of the network of kind's nodes.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn start(bed: &Bed, store: &Path) -> Result<Self> {
        let bridge = bed.vagrant_script(&["bridge", bed.name()])?;
        let shown = bed.run(&["ip", "-4", "-oneline", "address", "show", "dev", &bridge])?;
        let address = shown.split_whitespace().nth(3).and_then(|it| it.split('/').next());
        let at = format!("{}:{PORT}", address.with_context(|| format!("{bridge} has no address: {shown}"))?);
        let config = bed.folder.join("registry.yml");
        fs::write(
            &config,
            format!(
                "version: 0.1\nlog:\n  level: warn\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    \
                 rootdirectory: {}\nhttp:\n  addr: {at}\n",
                store.display()
            ),
        )?;
        let log = fs::File::create(bed.folder.join("registry.log"))?;
        let mut command = bed.command()?;
        command.args(["setpriv", "--pdeathsig", "KILL", "--", "docker-registry", "serve"]).arg(&config);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| gantry_needs::remedy("docker-registry"))?;
        let served = Self { child, url: format!("http://{at}") };
        let url = format!("{}/v2/", served.url);
        let ask = ["docker", "exec", &bed.control_plane(), "curl", "-sS", "-f", "-m", "5", &url];
        poll("the registry to answer: see registry.log", WAIT, || {
            bed.run(&ask).map_err(|error| format!("{error:#}"))
        })?;
        Ok(served)
    }

    /// That node of kind's asks it before any other.
    pub(crate) fn mirror(&self, bed: &Bed, node: &str) -> Result<()> {
        let hosts = format!("[host.\"{}\"]\n  capabilities = [\"pull\", \"resolve\"]\n", self.url);
        let script = format!("mkdir -p {MIRROR} && printf '%s' \"$1\" >{MIRROR}/hosts.toml");
        bed.run(&["docker", "exec", node, "sh", "-euc", &script, "sh", &hosts]).map(drop)
    }
}

impl Drop for RunningRegistry {
    fn drop(&mut self) {
        // Where it has ended, both are refused, and nothing is left to do.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
