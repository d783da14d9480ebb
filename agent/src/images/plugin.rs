//! Credential provider plugins: programs that know credentials for some registries. Owns who is asked
//! for which image, on behalf of whom, and how long an answer counts; never shows one to a pod.
//! Called when credentials for an image are looked for.

pub(super) mod config;
mod exec;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use gantry_metrics::Metrics;
use gantry_model::clock::Clock;
use gantry_model::go_duration::Span;
use gantry_model::pod::Pod;
use gantry_model::pod::token::TokenOf;

use super::glob::{self, Address};
use super::keyring::{Coordinates, DockerConfig, Login, Origin, sha256};
use crate::api::Api;
use config::{Provider, TokenAttributes};
use exec::{Plugin, Reach, Response};

/// Stands for every registry; no image is called so.
const EVERYWHERE: &str = "<global>";
/// What the API server gives when it is not asked for a life.
const TOKEN_SECONDS: i64 = 3600;

/// On whose behalf a plugin is asked: all of it makes up what an answer counts for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Account {
    namespace: String,
    name: String,
    uid: String,
    annotations: BTreeMap<String, String>,
    /// Only of plugins that give the token itself to the registry.
    token_hash: String,
}

/// Of an answer: for which image, registry or everywhere, and for whom.
type Key = (String, Option<Account>);
/// What a plugin is asked: the image, the token's sum, the annotations.
type Question = (String, String, BTreeMap<String, String>);
type Asked = Shared<BoxFuture<'static, Result<Arc<Response>, Arc<str>>>>;

/// An answer that counts until then.
#[derive(Debug)]
struct CachedConfig {
    until: Duration,
    config: Arc<DockerConfig>,
}

/// One plugin with what it has said.
#[derive(Debug)]
pub(super) struct CredentialProvider {
    plugin: Arc<Plugin>,
    images: Vec<Address>,
    keep_for: Span,
    tokens: Option<TokenAttributes>,
    clock: Arc<dyn Clock>,
    kept: Mutex<BTreeMap<Key, CachedConfig>>,
    /// Questions under way: the same one is asked once.
    asked: Mutex<BTreeMap<Question, Asked>>,
}

/// For whom a plugin is asked, with the token that proves it.
struct Caller {
    account: Account,
    token: String,
}

impl CredentialProvider {
    pub(super) fn new(bin_dir: &Path, of: Provider, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        let path = bin_dir.join(&of.name);
        let Provider { name, match_images, default_cache_duration, api_version, args, env, token_attributes } =
            of;
        Self {
            plugin: Arc::new(Plugin { name, path, api_version, args, env, metrics }),
            images: match_images.iter().filter_map(|image| Address::of(image)).collect(),
            keep_for: default_cache_duration.unwrap_or_default(),
            tokens: token_attributes.filter(|tokens| !tokens.service_account_token_audience.is_empty()),
            clock,
            kept: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    /// What it has for the pod and the image; nothing when it fails, which is logged: the image may
    /// need none.
    pub(super) async fn provide(
        &self,
        api: &dyn Api,
        pod: &Pod,
        repository: &str,
    ) -> (Origin, Arc<DockerConfig>) {
        match self.try_provide(api, pod, repository).await {
            Ok(found) => found,
            Err(error) => {
                let provider = &self.plugin.name;
                let pod = pod.full_name();
                tracing::error!(
                    error,
                    provider,
                    image = repository,
                    pod,
                    "Failed to provide credentials for image"
                );
                (Origin::Node, Arc::default())
            }
        }
    }

    async fn try_provide(
        &self,
        api: &dyn Api,
        pod: &Pod,
        repository: &str,
    ) -> Result<(Origin, Arc<DockerConfig>), String> {
        let nothing = || (Origin::Node, Arc::default());
        let fits = Address::of(repository)
            .is_some_and(|image| self.images.iter().any(|pattern| glob::fits(pattern, &image)));
        if !fits {
            return Ok(nothing());
        }
        let caller = match &self.tokens {
            None => None,
            Some(tokens) => match caller(api, pod, tokens).await? {
                Called::Nobody => None,
                Called::By(caller) => Some(caller),
                Called::NotMeant => return Ok(nothing()),
            },
        };
        let origin = caller.as_ref().map_or(Origin::Node, |caller| {
            let Account { uid, namespace, name, .. } = caller.account.clone();
            Origin::ServiceAccount(Coordinates { uid, namespace, name })
        });
        let account = caller.as_ref().map(|caller| self.key_of(&caller.account));
        if let Some(config) = self.known(repository, account.as_ref()) {
            return Ok((origin, config));
        }
        let response = self.ask(repository, caller.as_ref()).await?;
        Ok((origin, self.keep(repository, account, &response)))
    }

    /// A token matters only to plugins that pass it on.
    fn key_of(&self, account: &Account) -> Account {
        let of_token = self.tokens.as_ref().is_some_and(|tokens| tokens.cache_type == "Token");
        let token_hash = if of_token { account.token_hash.clone() } else { String::new() };
        Account { token_hash, ..account.clone() }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<Key, CachedConfig>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, repository: &str, account: Option<&Account>) -> Option<Arc<DockerConfig>> {
        let now = self.clock.mono();
        let mut kept = self.kept();
        kept.retain(|_, kept| now <= kept.until);
        [repository, registry(repository), EVERYWHERE]
            .iter()
            .find_map(|what| kept.get(&((*what).to_owned(), account.cloned())))
            .map(|kept| kept.config.clone())
    }

    async fn ask(&self, repository: &str, caller: Option<&Caller>) -> Result<Arc<Response>, String> {
        let token = caller.map(|caller| caller.token.clone()).unwrap_or_default();
        let account = caller.map(|caller| caller.account.clone()).unwrap_or_default();
        let question = (repository.to_owned(), account.token_hash, account.annotations);
        let asked = {
            let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that nobody waits for any more are not to be gone on with.
            all.retain(|_, asked| {
                asked.strong_count().is_some_and(|count| count > 1) && asked.peek().is_none()
            });
            let begin = || {
                let (plugin, token) = (self.plugin.clone(), token.clone());
                let (image, _, annotations) = question.clone();
                async move {
                    let answer = plugin.ask(&image, &token, &annotations).await;
                    answer.map(Arc::new).map_err(Arc::from)
                }
                .boxed()
                .shared()
            };
            all.entry(question.clone()).or_insert_with(begin).clone()
        };
        let answer = asked.await;
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, asked| asked.peek().is_none());
        let response = answer.map_err(|error: Arc<str>| {
            format!("failed to get credential from external registry credential provider: {error}")
        })?;
        let passes_on = self.tokens.as_ref().is_some_and(|tokens| tokens.cache_type == "Token");
        if !token.is_empty() && !passes_on && response.auth.values().any(|auth| auth.password == token) {
            return Err(
                "credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'".to_owned(),
            );
        }
        Ok(response)
    }

    fn keep(&self, repository: &str, account: Option<Account>, response: &Response) -> Arc<DockerConfig> {
        let login = |(address, auth): (&String, &exec::Auth)| {
            let (username, password) = (auth.username.clone(), auth.password.clone());
            (address.clone(), Login { username, password, ..Login::default() })
        };
        let config: Arc<DockerConfig> = Arc::new(response.auth.iter().map(login).collect());
        let keep_for = response.keep_for.unwrap_or(self.keep_for).duration();
        if keep_for > Duration::ZERO {
            let what = match response.reach {
                Reach::Image => repository,
                Reach::Registry => registry(repository),
                Reach::Global => EVERYWHERE,
            };
            let until = self.clock.mono().saturating_add(keep_for);
            self.kept().insert((what.to_owned(), account), CachedConfig { until, config: config.clone() });
        }
        config
    }
}

/// Host and port.
fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or(repository)
}

enum Called {
    /// The pod has no service account, and the plugin does without.
    Nobody,
    By(Caller),
    /// The plugin wants a service account, or one with annotations that this one has not.
    NotMeant,
}

async fn caller(api: &dyn Api, pod: &Pod, tokens: &TokenAttributes) -> Result<Called, String> {
    let (namespace, name) = (&pod.namespace, &pod.shown.service_account);
    if name.is_empty() {
        let needed = tokens.require_service_account == Some(true);
        return Ok(if needed { Called::NotMeant } else { Called::Nobody });
    }
    let account = api
        .service_account(namespace, name)
        .await
        .map_err(|error| format!("failed to get service account: {error}"))?
        .ok_or_else(|| format!("failed to get service account: serviceaccounts {name:?} not found"))?;
    let mut annotations = BTreeMap::new();
    for key in &tokens.required_service_account_annotation_keys {
        // That may be how single workloads ask for it.
        let Some(value) = account.annotations.get(key) else { return Ok(Called::NotMeant) };
        annotations.insert(key.clone(), value.clone());
    }
    for key in &tokens.optional_service_account_annotation_keys {
        if let Some(value) = account.annotations.get(key) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let of = TokenOf {
        namespace: namespace.clone(),
        service_account: name.clone(),
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        audiences: vec![tokens.service_account_token_audience.clone()],
        seconds: TOKEN_SECONDS,
    };
    let token = api.token(&of).await;
    let token = token.map_err(|error| format!("failed to get service account token: {error}"))?.text;
    let account = Account {
        namespace: namespace.clone(),
        name: name.clone(),
        uid: account.uid.clone(),
        annotations,
        token_hash: format!("sha256:{}", sha256(token.as_bytes())),
    };
    Ok(Called::By(Caller { account, token }))
}

#[cfg(test)]
pub(super) mod tests;
