//! Credentials of the node itself: `config.json` and the older `.dockercfg`, in the places where
//! docker and the kubelet keep them. Owns the search and its memory; never writes. Called when
//! credentials for an image are looked for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gantry_model::clock::Clock;
use tokio::sync::Mutex;

use super::keyring::{self, DockerConfig};

/// As upstream: a changed file counts after this.
const LIFETIME: Duration = Duration::from_secs(5 * 60);

/// Where the node's credentials may be.
#[derive(Debug)]
pub(super) struct NodeConfig {
    places: Vec<(PathBuf, Format)>,
    clock: Arc<dyn Clock>,
    read: Mutex<Option<(Duration, Arc<DockerConfig>)>>,
}

#[derive(Debug, Clone, Copy)]
enum Format {
    ConfigJson,
    Dockercfg,
}

impl NodeConfig {
    /// Below the kubelet's root, in its working directory, the user's home and the root.
    pub(super) fn new(root_dir: PathBuf, home: Option<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        let (here, root, home) = (PathBuf::from("."), PathBuf::from("/"), home.unwrap_or_default());
        let json = [root_dir.clone(), here.clone(), home.join(".docker"), root.join(".docker")];
        let json = json.map(|folder| (folder.join("config.json"), Format::ConfigJson));
        let older = [root_dir, here, home, root].map(|folder| (folder.join(".dockercfg"), Format::Dockercfg));
        Self { places: json.into_iter().chain(older).collect(), clock, read: Mutex::default() }
    }

    /// What the first file says that can be read.
    pub(super) async fn get(&self) -> Arc<DockerConfig> {
        let mut read = self.read.lock().await;
        let now = self.clock.mono();
        if let Some((until, config)) = &*read
            && now < *until
        {
            return config.clone();
        }
        let config = Arc::new(self.find().await);
        *read = Some((now + LIFETIME, config.clone()));
        config
    }

    async fn find(&self) -> DockerConfig {
        for (path, format) in &self.places {
            let text = match tokio::fs::read(path).await {
                Ok(text) => text,
                Err(error) => {
                    if error.kind() != std::io::ErrorKind::NotFound {
                        tracing::warn!(path = %path.display(), %error, "credentials that cannot be read");
                    }
                    continue;
                }
            };
            let config = match format {
                Format::ConfigJson => keyring::config_json(&text),
                Format::Dockercfg => keyring::dockercfg(&text),
            };
            match config {
                Ok(config) => return config,
                Err(error) => tracing::warn!(path = %path.display(), %error, "no credentials"),
            }
        }
        DockerConfig::new()
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::clock::FakeClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_that_can_be_read_counts_for_five_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let (root, home) = (folder.path().join("kubelet"), folder.path().join("home"));
        std::fs::create_dir_all(home.join(".docker")).unwrap();
        std::fs::create_dir(&root).unwrap();
        let clock = Arc::new(FakeClock::new(0));
        let config = NodeConfig::new(root.clone(), Some(home.clone()), clock);
        let user = async || {
            let config = config.get().await;
            config.get("reg.io").map(|login| login.username.clone()).unwrap_or_default()
        };
        std::fs::write(home.join(".dockercfg"), r#"{"reg.io": {"username": "old"}}"#).unwrap();
        assert_eq!(user().await, "old");
        let json = |name: &str| format!(r#"{{"auths": {{"reg.io": {{"username": "{name}"}}}}}}"#);
        std::fs::write(home.join(".docker/config.json"), json("home")).unwrap();
        assert_eq!(user().await, "old", "it is remembered");
        tokio::time::advance(LIFETIME).await;
        assert_eq!(user().await, "home");
        std::fs::write(root.join("config.json"), "nonsense").unwrap();
        tokio::time::advance(LIFETIME).await;
        assert_eq!(user().await, "home");
        std::fs::write(root.join("config.json"), json("root")).unwrap();
        tokio::time::advance(LIFETIME).await;
        assert_eq!(user().await, "root");
    }
}
