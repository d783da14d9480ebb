//! Plugins that are shell scripts.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use gantry_model::clock::FakeClock;

use super::config::Variable;
use super::*;
use crate::api::ServiceAccount;
use crate::api::fake::FakeApi;
use crate::pod::tests::pod;

/// A plugin called `web`, and the file that it may write to.
pub(super) struct Folder {
    root: tempfile::TempDir,
    metrics: Arc<Metrics>,
}

impl Folder {
    pub(super) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), metrics: Arc::default() }
    }

    pub(super) fn out(&self) -> PathBuf {
        self.root.path().join("out")
    }

    pub(super) fn errors(&self) -> f64 {
        self.metrics.credential_plugin_errors.get(["web"]).unwrap_or_default()
    }

    fn provider(&self, script: &str) -> Provider {
        let path = self.root.path().join("web");
        // By a shell of its own: a file that was just written may be held open by a child of another
        // test.
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let variable = |name: &str, value: String| Variable { name: name.to_owned(), value };
        Provider {
            name: "sh".into(),
            match_images: vec!["*.io".into()],
            default_cache_duration: Some(Span::seconds(60)),
            api_version: "credentialprovider.kubelet.k8s.io/v1".into(),
            args: vec![path.to_string_lossy().into_owned(), "get".into()],
            env: vec![
                variable("WORD", "word".into()),
                variable("OUT", self.out().to_string_lossy().into_owned()),
            ],
            token_attributes: None,
        }
    }

    pub(super) fn plugin(&self, script: &str) -> Plugin {
        let Provider { api_version, args, env, .. } = self.provider(script);
        let (name, metrics) = ("web".to_owned(), self.metrics.clone());
        Plugin { name, path: "/bin/sh".into(), api_version, args, env, metrics }
    }

    fn source(&self, script: &str, tokens: Option<TokenAttributes>) -> CredentialProvider {
        let provider = Provider { token_attributes: tokens, ..self.provider(script) };
        let clock = Arc::new(FakeClock::new(0));
        CredentialProvider::new(Path::new("/bin"), provider, clock, self.metrics.clone())
    }

    /// How often it was run.
    fn runs(&self) -> usize {
        std::fs::read_to_string(self.out()).map_or(0, |text| text.lines().count())
    }
}

/// Notes its request in a line, and answers.
fn script(reach: &str, duration: &str, password: &str) -> String {
    format!(
        "cat >> \"$OUT\"\necho '{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"cacheKeyType\":\"{reach}\",{duration}\"auth\":{{\"reg.io\":{{\"username\":\"u\",\"password\":\"'{password}'\"}}}}}}'\n"
    )
}

async fn password(source: &CredentialProvider, api: &FakeApi, repository: &str) -> Option<String> {
    let (_, config) = source.provide(api, &pod(), repository).await;
    config.get("reg.io").map(|login| login.password.clone())
}

#[tokio::test]
async fn an_answer_counts_as_far_as_the_plugin_says() {
    for (reach, runs) in [("Image", 3), ("Registry", 2), ("Global", 1)] {
        let (folder, api) = (Folder::new(), FakeApi::default());
        let source = folder.source(&script(reach, "", "p"), None);
        for repository in ["reg.io/a", "reg.io/a", "reg.io/b", "other.io/a"] {
            assert_eq!(password(&source, &api, repository).await.as_deref(), Some("p"), "{reach}");
        }
        assert_eq!(password(&source, &api, "reg.com/a").await, None, "not its own");
        assert_eq!(folder.runs(), runs, "{reach}");
    }
}

/// Only for so long: a plugin that runs is nothing that paused time waits for.
async fn pass(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn an_answer_counts_as_long_as_the_plugin_says() {
    for (said, after_59, after_61) in
        [("", 1, 2), ("\"cacheDuration\":\"0s\",", 2, 3), ("\"cacheDuration\":\"1h\",", 1, 1)]
    {
        let (folder, api) = (Folder::new(), FakeApi::default());
        let source = folder.source(&script("Image", said, "p"), None);
        assert!(password(&source, &api, "reg.io/a").await.is_some());
        pass(59).await;
        assert!(password(&source, &api, "reg.io/a").await.is_some());
        assert_eq!(folder.runs(), after_59, "{said}");
        pass(2).await;
        assert!(password(&source, &api, "reg.io/a").await.is_some());
        assert_eq!(folder.runs(), after_61, "{said}");
    }
}

#[tokio::test]
async fn the_same_question_is_asked_once_at_a_time() {
    let (folder, api) = (Folder::new(), FakeApi::default());
    let source = folder.source(&script("Image", "\"cacheDuration\":\"0s\",", "p"), None);
    let (one, two) = tokio::join!(password(&source, &api, "reg.io/a"), password(&source, &api, "reg.io/a"));
    assert_eq!((one.as_deref(), two.as_deref(), folder.runs()), (Some("p"), Some("p"), 1));
}

fn tokens(cache_type: &str) -> TokenAttributes {
    TokenAttributes {
        service_account_token_audience: "reg".into(),
        cache_type: cache_type.into(),
        require_service_account: Some(true),
        required_service_account_annotation_keys: vec!["role".into()],
        optional_service_account_annotation_keys: vec!["zone".into(), "none".into()],
    }
}

#[tokio::test]
async fn a_service_account_is_vouched_for_by_its_token() {
    let (folder, api) = (Folder::new(), FakeApi::default());
    let source = folder.source(&script("Image", "", "p"), Some(tokens("ServiceAccount")));
    assert_eq!(password(&source, &api, "reg.io/a").await, None, "the pod has no service account");
    let mut pod = pod();
    pod.shown.service_account = "puller".into();
    let annotate = |pairs: &[(&str, &str)]| {
        let annotations = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        api.put_service_account(
            "puller",
            ServiceAccount { uid: "sa-uid".into(), annotations: annotations.collect() },
        );
    };
    annotate(&[("zone", "z")]);
    let (_, config) = source.provide(&api, &pod, "reg.io/a").await;
    assert!(config.is_empty(), "a required annotation is missing");
    assert_eq!(folder.runs(), 0);
    annotate(&[("zone", "z"), ("role", "r"), ("more", "m")]);
    let (origin, config) = source.provide(&api, &pod, "reg.io/a").await;
    assert_eq!(config.len(), 1);
    let coordinates =
        Coordinates { uid: "sa-uid".into(), namespace: "default".into(), name: "puller".into() };
    assert_eq!(origin, Origin::ServiceAccount(coordinates));
    let asked = std::fs::read_to_string(folder.out()).unwrap();
    assert!(asked.contains("\"serviceAccountToken\":\"token-1-of-puller-for-reg\""), "{asked}");
    assert!(asked.contains("\"serviceAccountAnnotations\":{\"role\":\"r\",\"zone\":\"z\"}"), "{asked}");
    // Another token, the same account: the answer counts.
    source.provide(&api, &pod, "reg.io/a").await;
    assert_eq!(folder.runs(), 1);
    annotate(&[("role", "other")]);
    source.provide(&api, &pod, "reg.io/a").await;
    assert_eq!(folder.runs(), 2);
}

#[tokio::test]
async fn a_token_is_no_password_unless_the_plugin_says_that_it_is() {
    let mut pod = pod();
    pod.shown.service_account = "puller".into();
    let echo = script(
        "Image",
        "",
        "\"$(sed 's/.*\"serviceAccountToken\":\"\\([^\"]*\\)\".*/\\1/' \"$OUT\" | tail -1)\"",
    );
    for (cache_type, found, runs) in [("ServiceAccount", 0, 2), ("Token", 1, 2)] {
        let (folder, api) = (Folder::new(), FakeApi::default());
        let annotations = BTreeMap::from([("role".to_owned(), "r".to_owned())]);
        api.put_service_account("puller", ServiceAccount { uid: "u".into(), annotations });
        let source = folder.source(&echo, Some(tokens(cache_type)));
        for _ in 0..2 {
            let (_, config) = source.provide(&api, &pod, "reg.io/a").await;
            assert_eq!(config.len(), found, "{cache_type}");
        }
        // The fake gives a new token each time, and to whom it belongs counts then.
        assert_eq!(folder.runs(), runs, "{cache_type}");
    }
}
