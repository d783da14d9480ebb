//! The images that a cluster's pods name, under their own names: built from Debian packages and Go modules, kept in a
//! registry's store that outlives the checkout, reached through mirrors. Owns the store; [`build`] fills it outside of
//! the tests' namespaces, [`serve`] serves it within. Never contains an image of anyone else's making.

mod recipes;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::registry::{Registry, free_port};
use crate::{go, image};

/// Where a cluster's registry listens.
pub(super) const REGISTRY: &str = "127.0.0.1:5995";
/// Its port.
pub const PORT: u16 = 5995;
/// The pause image of Kubernetes 1.36.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// Registries whose images the local one has, by the same repository and tag.
pub const MIRRORED: [&str; 5] = ["registry.k8s.io", "gcr.io", "k8s.gcr.io", "docker.io", "quay.io"];

/// Counts up when what is in an image changes without a change of its programs.
const EDITION: u32 = 3;

/// What is built together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// pause, busybox, agnhost, nginx; kube-proxy, CoreDNS, metrics-server; a CSI driver and its sidecars
    Cluster,
    /// What only upstream's suites name
    Suites,
}

/// An image and the names it goes by.
struct Recipe {
    /// `REPOSITORY:TAG`, without a registry.
    names: &'static [&'static str],
    /// Programs built from Go modules, and files of this checkout's build, in it.
    programs: &'static [Program],
    /// Debian packages in it, as a closure of this name.
    packages: (&'static str, &'static [&'static str]),
    make: fn() -> Result<image::Image>,
}

/// Where a program in an image is from.
#[derive(Debug, Clone, Copy)]
enum Program {
    /// Of `cluster::programs`
    Go(&'static str),
    /// Of this checkout, beside `gantry`
    Own(&'static str),
}

impl Program {
    fn path(self) -> Result<PathBuf> {
        match self {
            Program::Go(name) => super::programs::path(name),
            Program::Own(name) => Ok(crate::place::bin_dir()?.join(name)),
        }
    }

    fn read(self) -> Result<Vec<u8>> {
        let path = self.path()?;
        std::fs::read(&path).with_context(|| path.display().to_string())
    }
}

impl Recipe {
    fn first(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// Changes when the image would.
    fn stamp(&self) -> Result<String> {
        let mut text = format!("{EDITION} {:?} {:?}\n", self.names, self.packages);
        for program in self.programs {
            text.push_str(&format!("{program:?} {}\n", image::sha256(&program.read()?)));
        }
        Ok(image::sha256(text.as_bytes()))
    }
}

/// The folder of all that is made here.
fn folder() -> Result<PathBuf> {
    let parent = go::cache().parent().map(Path::to_owned).context("a cache folder at the root")?;
    Ok(parent.join("images"))
}

/// What docker-registry serves: its `rootdirectory`.
///
/// # Errors
/// When nothing was built.
pub fn store() -> Result<PathBuf> {
    let store = folder()?.join("store");
    ensure!(store.is_dir(), "{} is not there: cargo xtask cluster build", store.display());
    Ok(store)
}

/// Builds what is not up to date, and fetches the packages for it. The programs in them must have been built, Gantry's
/// own included.
///
/// # Errors
/// When apt does not know a package, or a program is missing.
pub fn build(sets: &[Set]) -> Result<()> {
    let folder = folder()?;
    let stamps = folder.join("stamps");
    std::fs::create_dir_all(&stamps).with_context(|| format!("make {}", stamps.display()))?;
    let mut registry = None;
    for recipe in sets.iter().flat_map(|set| recipes::of(*set)) {
        let at = stamps.join(recipe.first().replace(['/', ':'], "_"));
        let stamp = recipe.stamp()?;
        if std::fs::read_to_string(&at).is_ok_and(|known| known == stamp) {
            continue;
        }
        let registry = match &mut registry {
            Some(registry) => registry,
            None => registry.insert(Registry::start_on(free_port()?, &folder.join("store"))?),
        };
        push(registry, &recipe).with_context(|| format!("make the image {}", recipe.first()))?;
        std::fs::write(&at, stamp).with_context(|| at.display().to_string())?;
    }
    Ok(())
}

fn push(registry: &Registry, recipe: &Recipe) -> Result<()> {
    let (closure, packages) = recipe.packages;
    if !packages.is_empty() {
        crate::debian::fetch_closure(closure, packages)?;
    }
    let built = (recipe.make)()?.build()?;
    for name in recipe.names {
        let (repository, tag) = name.split_once(':').context("a name without a tag")?;
        registry.push(repository, tag, &built)?;
    }
    Ok(())
}

/// Serves what was built, where the mirrors look for it.
///
/// # Errors
/// When nothing was built, or something listens there.
pub fn serve() -> Result<Registry> {
    let folder = store()?;
    Registry::start_on(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT), &folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_given_once_and_the_pause_image_is_among_them() {
        let mut names: Vec<_> = [Set::Cluster, Set::Suites]
            .into_iter()
            .flat_map(recipes::of)
            .flat_map(|recipe| recipe.names.to_vec())
            .collect();
        assert!(names.iter().any(|name| PAUSE == format!("registry.k8s.io/{name}")));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(names.iter().all(|name| name.split_once(':').is_some_and(|(_, tag)| !tag.is_empty())));
    }
}
