//! What the files of a projected volume say. Owns the lookups and the kubelet's words for what is
//! missing; never writes. Called by [`super::host`].

use std::collections::BTreeMap;

use gantry_model::pod::Pod;
use gantry_model::pod::volume::{DownwardFile, DownwardValue, KeysOf, Projection};

use super::PodFacts;
use super::atomic::{Payload, PayloadFile};
use crate::api::Api;
use crate::node::NodeInfo;
use crate::volumes::downward;

/// The files of all sources; the later source wins.
pub(super) async fn payload(
    api: &dyn Api,
    node: &NodeInfo,
    pod: &Pod,
    sources: &[Projection],
    default_mode: u32,
) -> Result<Payload, String> {
    let mut files = Payload::new();
    for source in sources {
        match source {
            Projection::ConfigMap(keys) => {
                let found = api.config_map(&pod.namespace, &keys.name).await.map_err(|e| e.to_string())?;
                let data = found.map(|map| {
                    let text = map.data.iter().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
                    text.chain(map.binary.clone()).collect()
                });
                let missing = format!("configmap {:?} not found", keys.name);
                files.extend(project(
                    data,
                    keys,
                    default_mode,
                    &missing,
                    "configmap references non-existent config key",
                )?);
            }
            Projection::Secret(keys) => {
                let found = api.secret(&pod.namespace, &keys.name).await.map_err(|e| e.to_string())?;
                let data = found.map(|secret| secret.data.clone());
                let missing = format!("secret {:?} not found", keys.name);
                files.extend(project(
                    data,
                    keys,
                    default_mode,
                    &missing,
                    "references non-existent secret key",
                )?);
            }
            Projection::Token(token) => {
                let of = token.of(pod);
                let content = api.token(&of).await.map_err(|e| e.to_string())?.text.into_bytes();
                let user = only_user(pod);
                // Whoever is to read it: a fsGroup adds its bits later.
                let own = user.is_some() || pod.security.fs_group.is_some();
                let mode = if own { 0o600 } else { default_mode };
                files.insert(token.path.clone(), PayloadFile { content, mode, user });
            }
            Projection::Downward(list) => {
                for file in list {
                    files.insert(file.path.clone(), downward_file(pod, node, file, default_mode)?);
                }
            }
        }
    }
    Ok(files)
}

fn project(
    data: Option<BTreeMap<String, Vec<u8>>>,
    keys: &KeysOf,
    default_mode: u32,
    missing: &str,
    no_key: &str,
) -> Result<Payload, String> {
    let Some(data) = data else {
        return if keys.optional { Ok(Payload::new()) } else { Err(missing.to_owned()) };
    };
    if keys.items.is_empty() {
        let file = |content| PayloadFile { content, mode: default_mode, user: None };
        return Ok(data.into_iter().map(|(key, content)| (key, file(content))).collect());
    }
    let mut files = Payload::new();
    for item in &keys.items {
        match data.get(&item.key) {
            Some(content) => {
                let mode = item.mode.unwrap_or(default_mode);
                files.insert(item.path.clone(), PayloadFile { content: content.clone(), mode, user: None });
            }
            None if keys.optional => {}
            None => return Err(format!("{no_key}: {}", item.key)),
        }
    }
    Ok(files)
}

/// The one user that all containers run as, where that is written down.
fn only_user(pod: &Pod) -> Option<u32> {
    let mut users = pod.all_containers().map(|c| c.security.run_as_user.or(pod.security.run_as_user));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

fn downward_file(
    pod: &Pod,
    node: &NodeInfo,
    file: &DownwardFile,
    default_mode: u32,
) -> Result<PayloadFile, String> {
    let text = match &file.value {
        DownwardValue::Field(path) => downward::field(pod, path, &PodFacts::default(), node)?,
        DownwardValue::Resource(resource) => downward::resource(pod, None, resource, node)?,
    };
    Ok(PayloadFile { content: text.into_bytes(), mode: file.mode.unwrap_or(default_mode), user: None })
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::volume::{KeyToPath, TokenFile};

    use super::*;
    use crate::api::fake::FakeApi;
    use crate::pod::tests::{container, pod};

    fn keys(name: &str, items: &[(&str, &str)], optional: bool) -> KeysOf {
        let item = |(key, path): &(&str, &str)| KeyToPath {
            key: (*key).into(),
            path: (*path).into(),
            mode: Some(0o400),
        };
        KeysOf { name: name.into(), items: items.iter().map(item).collect(), optional }
    }

    async fn run(sources: &[Projection]) -> Result<Vec<(String, String, u32)>, String> {
        let api = FakeApi::default();
        api.put_config_map("c", &[("a", "1"), ("b", "2")]);
        api.put_secret("s", "Opaque", &[("b", "3")]);
        let node = NodeInfo {
            name: "n".into(),
            ips: Vec::new().into(),
            cluster_domain: String::new(),
            cpu: 0,
            memory: 0,
            ephemeral: 0,
            ..NodeInfo::default()
        };
        let files = payload(&api, &node, &pod(), sources, 0o644).await?;
        let text = |file: PayloadFile| (String::from_utf8(file.content).unwrap(), file.mode);
        Ok(files.into_iter().map(|(path, file)| (path, text(file))).map(|(p, (t, m))| (p, t, m)).collect())
    }

    #[tokio::test]
    async fn the_later_source_wins_and_items_choose() {
        let label = DownwardFile {
            path: "l".into(),
            value: DownwardValue::Field("metadata.labels".into()),
            mode: None,
        };
        let files = run(&[
            Projection::ConfigMap(keys("c", &[], false)),
            Projection::Secret(keys("s", &[("b", "b"), ("b", "d/e")], false)),
            Projection::Downward(vec![label]),
            Projection::Secret(keys("none", &[], true)),
            Projection::ConfigMap(keys("c", &[("none", "x")], true)),
        ])
        .await
        .unwrap();
        let expected =
            [("a", "1", 0o644), ("b", "3", 0o400), ("d/e", "3", 0o400), ("l", "app=\"web\"", 0o644)];
        assert_eq!(files, expected.map(|(path, text, mode)| (path.to_owned(), text.to_owned(), mode)));
    }

    #[tokio::test]
    async fn a_token_is_for_whoever_reads_it() {
        let api = FakeApi::default();
        let node = NodeInfo::default();
        let token = TokenFile { path: "token".into(), audience: "vault".into(), seconds: 3600 };
        let sources = [Projection::Token(token)];
        let mut pod = pod();
        pod.shown.service_account = "default".into();
        let read =
            async |pod: &Pod| payload(&api, &node, pod, &sources, 0o644).await.unwrap()["token"].clone();
        let plain = read(&pod).await;
        assert_eq!((plain.mode, plain.user), (0o644, None));
        assert_eq!(plain.content, b"token-1-of-default-for-vault");
        pod.security.run_as_user = Some(1000);
        assert_eq!((read(&pod).await.mode, read(&pod).await.user), (0o600, Some(1000)));
        let mut other = container("other");
        other.security.run_as_user = Some(0);
        pod.containers.push(other);
        assert_eq!(read(&pod).await.user, None, "two users");
        pod.security.fs_group = Some(7);
        assert_eq!((read(&pod).await.mode, read(&pod).await.user), (0o600, None));
    }

    #[tokio::test]
    async fn what_is_missing_is_told_in_the_kubelets_words() {
        for (source, message) in [
            (Projection::Secret(keys("x", &[], false)), "secret \"x\" not found"),
            (Projection::ConfigMap(keys("x", &[], false)), "configmap \"x\" not found"),
            (Projection::Secret(keys("s", &[("k", "p")], false)), "references non-existent secret key: k"),
            (
                Projection::ConfigMap(keys("c", &[("k", "p")], false)),
                "configmap references non-existent config key: k",
            ),
        ] {
            assert_eq!(run(&[source]).await.unwrap_err(), message);
        }
    }
}
