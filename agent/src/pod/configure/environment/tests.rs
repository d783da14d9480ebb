//! Order, precedence and what is missing.

use gantry_model::pod::env::{EnvFrom, EnvVar, ResourceRef};

use super::*;
use crate::api::fake::FakeApi;
use crate::pod::tests::{container, pod};

fn node() -> NodeInfo {
    NodeInfo {
        name: "n1".into(),
        ips: vec!["10.0.0.1".into()].into(),
        cluster_domain: "cluster.local".into(),
        cpu: 2000,
        memory: 1 << 30,
        ephemeral: 0,
        ..NodeInfo::default()
    }
}

fn objects() -> FakeApi {
    let api = FakeApi::default();
    api.put_config_map("c", &[("A", "map"), ("B", "map")]);
    api.put_secret("s", "Opaque", &[("B", "secret"), ("C", "$(A)")]);
    api
}

fn from(source: EnvFromSource, prefix: &str, optional: bool) -> EnvFrom {
    EnvFrom { prefix: prefix.into(), source, optional }
}

fn variable(name: &str, value: EnvValue) -> EnvVar {
    EnvVar { name: name.into(), value }
}

fn literal(name: &str, text: &str) -> EnvVar {
    variable(name, EnvValue::Literal(text.into()))
}

fn key(name: &str, key: &str, optional: bool) -> KeyRef {
    KeyRef { name: name.into(), key: key.into(), optional }
}

async fn run(
    api: &FakeApi,
    env_from: Vec<EnvFrom>,
    env: Vec<EnvVar>,
) -> Result<Vec<(String, String)>, String> {
    let env = bytes_of(api, env_from, env).await?;
    assert_eq!(texts(&env).len(), env.len(), "{env:?}");
    Ok(texts(&env))
}

async fn bytes_of(api: &FakeApi, env_from: Vec<EnvFrom>, env: Vec<EnvVar>) -> Result<Env, String> {
    let container = Container { env_from, env, ..container("web") };
    let facts = PodFacts { ips: vec!["10.1.0.2".into()] };
    let volumes = crate::volumes::fake::FakeVolumes::default();
    volumes.leave(&pod().uid, "shared", "a/env", "K='from a file'\n");
    let of = EnvOf { pod: &pod(), container: &container, facts: &facts, node: &node(), volumes: &volumes };
    environment(api, of).await
}

#[tokio::test]
async fn env_wins_over_env_from_and_the_later_over_the_earlier() {
    let map = from(EnvFromSource::ConfigMap("c".into()), "", false);
    let secret = from(EnvFromSource::Secret("s".into()), "", false);
    let prefixed = from(EnvFromSource::ConfigMap("c".into()), "P_", false);
    let env = run(
        &objects(),
        vec![map, secret, prefixed],
        vec![literal("A", "own $(B) $$(B) $(NOPE)"), literal("D", "$(A)"), literal("A", "last")],
    )
    .await
    .unwrap();
    let expected = [
        ("A", "last"),
        ("B", "secret"),
        // What comes from an object is not expanded.
        ("C", "$(A)"),
        ("P_A", "map"),
        ("P_B", "map"),
        ("D", "own secret $(B) $(NOPE)"),
    ];
    assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[tokio::test]
async fn values_come_from_keys_fields_and_resources() {
    let resource =
        ResourceRef { container: String::new(), resource: "limits.cpu".into(), divisor_milli: 1000 };
    let env = run(
        &objects(),
        vec![],
        vec![
            variable("K", EnvValue::ConfigMapKey(key("c", "A", false))),
            variable("S", EnvValue::SecretKey(key("s", "B", false))),
            variable("F", EnvValue::Field("status.podIP".into())),
            variable("R", EnvValue::Resource(resource)),
            variable("O", EnvValue::SecretKey(key("s", "none", true))),
            variable("P", EnvValue::ConfigMapKey(key("none", "A", true))),
        ],
    )
    .await
    .unwrap();
    let expected = [("K", "map"), ("S", "secret"), ("F", "10.1.0.2"), ("R", "2")];
    assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[tokio::test]
async fn what_is_missing_is_told_in_the_kubelets_words() {
    let api = objects();
    for (env_from, env, message) in [
        (vec![from(EnvFromSource::Secret("x".into()), "", false)], vec![], "secret \"x\" not found"),
        (vec![from(EnvFromSource::ConfigMap("x".into()), "", false)], vec![], "configmap \"x\" not found"),
        (
            vec![],
            vec![variable("A", EnvValue::ConfigMapKey(key("c", "k", false)))],
            "couldn't find key k in ConfigMap default/c",
        ),
        (
            vec![],
            vec![variable("A", EnvValue::SecretKey(key("s", "k", false)))],
            "couldn't find key k in Secret default/s",
        ),
        (vec![], vec![variable("A", EnvValue::SecretKey(key("y", "k", false)))], "secret \"y\" not found"),
    ] {
        assert_eq!(run(&api, env_from, env).await.unwrap_err(), message);
    }
    let optional = vec![from(EnvFromSource::Secret("x".into()), "", true)];
    assert_eq!(run(&api, optional.clone(), vec![]).await, Ok(vec![]));
    // Not found is not the same as not known.
    api.fail(Some("timed out"));
    assert_eq!(run(&api, optional, vec![]).await.unwrap_err(), "read Secret default/x: timed out");
    api.fail(None);
    api.put_secret("x", "Opaque", &[("A", "now")]);
    let late = vec![from(EnvFromSource::Secret("x".into()), "", false)];
    assert_eq!(run(&api, late, vec![]).await, Ok(vec![("A".into(), "now".into())]));
}

#[tokio::test]
async fn a_secrets_bytes_arrive_as_they_are() {
    const KEY: &[u8] = &[0xff, 0x80, b'k'];
    let api = FakeApi::default();
    api.put_secret("s", "Opaque", &[("KEY", KEY)]);
    let all = from(EnvFromSource::Secret("s".into()), "", false);
    let own = vec![
        variable("OWN", EnvValue::SecretKey(key("s", "KEY", false))),
        literal("BOTH", "a $(KEY)"),
        literal("TEXT", "t"),
    ];
    let env = bytes_of(&api, vec![all], own).await.unwrap();
    let value = |name: &str| env.iter().find(|(known, _)| known == name).unwrap().1.as_slice();
    assert_eq!((value("KEY"), value("OWN")), (KEY, KEY));
    assert_eq!(value("BOTH"), [b"a ", KEY].concat());
    // Words and paths are text: they are refused, not mended.
    let words = |word: &str| expand_all(&[word.to_owned()], &env);
    assert_eq!(words("-$(TEXT)"), Ok(vec!["-t".to_owned()]));
    assert_eq!(
        words("$(OWN)").unwrap_err(),
        "cannot expand \"$(OWN)\": the value of a variable is not UTF-8"
    );
    assert_eq!(texts(&env), [("TEXT".to_owned(), "t".to_owned())]);
}

#[tokio::test]
async fn a_value_with_nul_is_refused_by_name() {
    let api = FakeApi::default();
    api.put_secret("s", "Opaque", &[("A", "a\0b")]);
    let error =
        run(&api, vec![from(EnvFromSource::Secret("s".into()), "", false)], vec![]).await.unwrap_err();
    assert_eq!(error, "the value of environment variable \"A\" holds a NUL character");
}

#[tokio::test]
async fn a_variable_may_come_from_a_file_that_another_container_has_left() {
    let run = async |path: &str, key: &str, optional| {
        let file = FileKeyRef { volume: "shared".into(), path: path.into(), key: key.into(), optional };
        run(&FakeApi::default(), vec![], vec![variable("V", EnvValue::FileKey(file))]).await
    };
    assert_eq!(run("a/env", "K", false).await.unwrap(), [("V".to_owned(), "from a file".to_owned())]);
    assert_eq!(run("a/env", "NOPE", true).await.unwrap(), []);
    let missing = run("a/env", "NOPE", false).await.unwrap_err();
    assert_eq!(missing, "environment variable key \"NOPE\" not found in file \"a/env\"");
    assert_eq!(run("b", "K", true).await.unwrap_err(), "couldn't parse env file");
}
