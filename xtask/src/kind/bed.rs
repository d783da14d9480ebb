//! A kind cluster of a tier, on a docker of its own. Owns its start and its end, and commands inside; what is looked at is the
//! tier's. Never uses the host's docker. Called by the tiers that make one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck;
use gantry_tests::poll::poll;

use super::engine::{self, Docker};
use super::image::Made;
use super::{At, beside, create, kind};
use crate::sh;

const WAIT: Duration = Duration::from_secs(300);

/// A cluster while it is looked at.
#[derive(Debug)]
pub(crate) struct Bed {
    docker: Docker,
    at: At,
    /// Of this docker; the tier keeps its own files here, too.
    pub(crate) folder: PathBuf,
}

impl Bed {
    /// Starts a docker for a cluster of that name, with everything of it in that folder.
    pub(crate) fn start(folder: PathBuf, name: &str) -> Result<Self> {
        Ok(Self { docker: engine::start(&folder)?, at: At { name: name.into() }, folder })
    }

    /// Makes the cluster, a node of each image.
    pub(crate) fn create(&self, nodes: &[&Made]) -> Result<()> {
        create(&self.docker, nodes, &self.at)
    }

    /// The cluster's name.
    pub(crate) fn name(&self) -> &str {
        &self.at.name
    }

    /// The container of the first node, and that node's name.
    pub(crate) fn control_plane(&self) -> String {
        format!("{}-control-plane", self.at.name)
    }

    /// Where that node is in docker's network.
    pub(crate) fn control_plane_address(&self) -> Result<String> {
        let form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
        self.run(&["docker", "inspect", "--format", form, &self.control_plane()])
    }

    /// Asks the script that Vagrant asks.
    pub(crate) fn vagrant_script(&self, words: &[&str]) -> Result<String> {
        let script = sh::root().join("vagrant/cluster.sh");
        let script = script.to_str().context("a path")?;
        self.run(&[&["sh", script], words].concat())
    }

    /// Removes the cluster.
    pub(crate) fn delete(&self) -> Result<()> {
        sh::run(kind(&self.docker, &self.at)?.args(["delete", "cluster", "--name", &self.at.name]))
    }

    /// Ends docker, and whatever else runs in its namespaces.
    pub(crate) fn end(&self) -> Result<()> {
        engine::end(&self.folder)
    }

    /// `env` inside: a command follows as its arguments.
    pub(crate) fn command(&self) -> Result<Command> {
        beside(&self.docker, &self.at)
    }

    /// What a command prints in there.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        let mut command = self.command()?;
        let output = command.args(words).output().with_context(|| sh::missing(&command))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}\n{}", words.join(" "), output.status, said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.run(&[&["kubectl"], words].concat())
    }

    /// Until a command succeeds and prints what is wanted.
    pub(crate) fn until(&self, what: &str, words: &[&str], wanted: impl Fn(&str) -> bool) -> Result<String> {
        self.within(WAIT, what, words, wanted)
    }

    /// The same, with a bound of one's own.
    pub(crate) fn within(
        &self,
        bound: Duration,
        what: &str,
        words: &[&str],
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        poll(what, bound, || match self.run(words) {
            Ok(said) if wanted(&said) => Ok(said),
            Ok(said) => Err(said),
            Err(error) => Err(format!("{error:#}")),
        })
    }

    /// For who reads why a step failed.
    pub(crate) fn state(&self) -> String {
        let tell = |words: &[&str]| self.run(words).unwrap_or_else(|error| format!("{error:#}"));
        let pods = tell(&["kubectl", "get", "nodes,pods", "--all-namespaces", "--output", "wide"]);
        let events = tell(&["kubectl", "get", "events", "--all-namespaces"]);
        let logs = ["kube-proxy", "kind-router"].map(|name| {
            let label = format!("--selector=k8s-app={name}");
            tell(&["kubectl", "logs", "--namespace=kube-system", &label, "--prefix", "--tail=20"])
        });
        format!("{pods}\n{events}\n{}", logs.join("\n"))
    }
}

/// Links and mounts of this host.
pub(crate) fn seen() -> Result<BTreeSet<String>> {
    let mounts = leakcheck::mounts()?.into_iter().map(|mount| format!("mount {}", mount.point.display()));
    Ok(mounts.chain(leakcheck::links()?.into_iter().map(|link| format!("link {link}"))).collect())
}

/// An error when this host has more of them than it had.
pub(crate) fn as_before(before: &BTreeSet<String>) -> Result<()> {
    let after = seen()?;
    let left: Vec<_> = after.difference(before).collect();
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}
