//! Mirrors and the node's own registry configuration: who is asked, in which order, and who sees what.

use super::archive::PushedLayer;
use super::*;
use crate::image::Auth;
use crate::image::digest::Digest;

const USER: &str = "Basic dXNlcjpwYXNz";

impl TestNode {
    /// Writes the registry's hosts.toml.
    fn hosts(&self, registry: &Registry, text: &str) {
        let folder = self.folder.path().join("certs.d").join(registry.address.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("hosts.toml"), text).unwrap();
    }

    async fn pull_as(&self, name: &str, auth: Option<Auth>) -> Result<Arc<Image>, Error> {
        self.images.pull(&Reference::parse(name).unwrap(), auth, &Recorder::default()).await
    }
}

fn mirror(registry: &Registry) -> String {
    format!("[host.\"http://{}\"]\n", registry.address)
}

fn user() -> Option<Auth> {
    Some(Auth { username: "user".into(), password: "pass".into(), ..Auth::default() })
}

fn auth_of(request: &RegistryRequest) -> &str {
    request.headers.get("authorization").map_or("", String::as_str)
}

#[tokio::test]
async fn mirrors_are_asked_in_order_and_the_image_keeps_its_name() {
    let (node, registry, first, second) =
        (TestNode::new(), Registry::new(), Registry::new(), Registry::new());
    second.image("a/b", "t", &[PushedLayer::gzip(&hello())], "V=1");
    node.hosts(&registry, &format!("{}{}", mirror(&first), mirror(&second)));
    let image = node.pull(&registry.name("a/b:t")).await.unwrap();
    assert_eq!(image.repo_tags, [registry.name("a/b:t")]);
    assert!(registry.log().is_empty());
    let namespace = format!("?ns={}", registry.address.to_string().replace(':', "%3A"));
    assert_eq!(first.log()[0].path, format!("/v2/a/b/manifests/t{namespace}"));
    assert_eq!(second.hits("/manifests/"), 1);
}

#[tokio::test]
async fn the_registry_itself_comes_last() {
    let (node, registry, down) = (TestNode::new(), Registry::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    down.script(|_| Some(TestAnswer::new(500)));
    node.hosts(&registry, &mirror(&down));
    node.pull(&registry.name("a:t")).await.unwrap();
    assert_eq!(down.hits("/manifests/"), 1);
    let error = node.pull(&registry.name("a:none")).await.unwrap_err();
    assert_eq!(error.class(), Class::NotFound, "{}", chain(&error));
    assert!(chain(&error).contains(&down.address.to_string()), "each failure is told: {}", chain(&error));
}

#[tokio::test]
async fn a_mirror_without_the_capability_is_not_asked() {
    let (node, registry, pulls) = (TestNode::new(), Registry::new(), Registry::new());
    for registry in [&registry, &pulls] {
        registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    }
    node.hosts(&registry, &format!("{}capabilities = [\"pull\"]\n", mirror(&pulls)));
    node.pull(&registry.name("a:t")).await.unwrap();
    assert_eq!((pulls.hits("/manifests/"), pulls.hits("/blobs/")), (0, 2));
    assert_eq!((registry.hits("/manifests/"), registry.hits("/blobs/")), (1, 0));

    node.hosts(&registry, "capabilities = [\"push\"]\n");
    let error = node.pull(&registry.name("a:u")).await.unwrap_err();
    assert!(chain(&error).contains("hosts.toml leaves no server"), "{}", chain(&error));
}

#[tokio::test]
async fn a_lying_mirror_is_found_out_and_the_next_place_asked() {
    let layer = PushedLayer::gzip(&hello());
    for lie in ["manifest", "config", "layer", "short layer", "endless layer"] {
        let (node, registry, liar) = (TestNode::new(), Registry::new(), Registry::new());
        let (manifest, config) = registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
        liar.image("a", "t", std::slice::from_ref(&layer), "V=1");
        let blob = Digest::of(&layer.blob).to_string();
        let bytes = layer.blob.clone();
        liar.script(move |request| {
            let about = |what: &str| request.path.contains(what);
            match lie {
                "manifest" if about("/manifests/") => Some(TestAnswer::new(200).body("{}")),
                "config" if about(&config.to_string()) => Some(TestAnswer::new(200).body("{}")),
                "layer" if about(&blob) => Some(TestAnswer::new(200).body(vec![1; bytes.len()])),
                "short layer" if about(&blob) => Some(TestAnswer::new(200).body(bytes.clone()).cut(9, None)),
                "endless layer" if about(&blob) => Some(
                    TestAnswer::new(200)
                        .header("transfer-encoding", "chunked")
                        .body(format!("ffff\r\n{}", "x".repeat(65536))),
                ),
                _ => None,
            }
        });
        node.hosts(&registry, &mirror(&liar));
        let image = node.pull(&registry.name(&format!("a@{manifest}"))).await.unwrap();
        assert_eq!(std::fs::read(node.file(&image, 0, "etc/hello")).unwrap(), b"hello\n", "{lie}");
        assert!(!registry.log().is_empty(), "{lie}");
        node.wait_settled(1).await;
    }
}

/// Nobody waits for the end of its lie, and so nobody knows its digest.
#[tokio::test]
async fn a_mirror_whose_bytes_nobody_can_unpack_is_found_out_early() {
    let (node, registry, liar) = (TestNode::new(), Registry::new(), Registry::new());
    let layer = PushedLayer::plain(&Archive::new().file("large", &vec![7; 9 << 20]));
    for registry in [&registry, &liar] {
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    }
    let (_open, gate) = super::server::Gate::new();
    let (digest, length) = (Digest::of(&layer.blob).to_string(), layer.blob.len());
    liar.script(move |request| {
        let lie = TestAnswer::new(200).body(vec![b'j'; length]).cut(3 << 20, Some(&gate));
        request.path.contains(&digest).then_some(lie)
    });
    node.hosts(&registry, &mirror(&liar));
    let name = registry.name("a:t");
    tokio::time::timeout(Duration::from_secs(60), node.pull(&name)).await.unwrap().unwrap();
    node.wait_settled(1).await;
}

#[tokio::test]
async fn a_mirror_never_sees_the_credentials_of_the_registry() {
    let (node, registry, thief) = (TestNode::new(), Registry::new(), Registry::on("127.0.0.2:0"));
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    let challenge = || TestAnswer::new(401).header("www-authenticate", "Basic realm=x");
    thief.script(move |_| Some(challenge()));
    registry.script(move |request| (auth_of(request) != USER).then(challenge));
    node.hosts(&registry, &mirror(&thief));
    std::fs::write(
        node.folder.path().join("config.json"),
        format!(r#"{{"auths":{{"{}":{{"auth":"dXNlcjpwYXNz"}}}}}}"#, registry.address),
    )
    .unwrap();
    node.pull_as(&registry.name("a:t"), user()).await.unwrap();
    assert!(!thief.log().is_empty());
    assert!(thief.log().iter().all(|request| auth_of(request).is_empty()), "{:?}", thief.log());
}

#[tokio::test]
async fn the_nodes_own_credentials_are_used_where_a_pull_brings_none() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    let challenge = || TestAnswer::new(401).header("www-authenticate", "Basic realm=x");
    registry.script(move |request| (auth_of(request) != USER).then(challenge));
    assert!(node.pull(&registry.name("a:t")).await.is_err());
    let config = node.folder.path().join("config.json");
    let entry = |value: &str| format!(r#"{{"{}":{value}}}"#, registry.address);
    std::fs::write(&config, format!(r#"{{"auths":{}}}"#, entry(r#"{"auth":"dXNlcjpwYXNz"}"#))).unwrap();
    node.pull(&registry.name("a:t")).await.unwrap();
    std::fs::write(&config, format!(r#"{{"credHelpers":{}}}"#, entry("\"gcr\""))).unwrap();
    let error = node.pull(&registry.name("a:t")).await.unwrap_err();
    assert!(chain(&error).contains("credential helper \"gcr\""), "{}", chain(&error));
}

#[tokio::test]
async fn headers_of_a_host_go_to_that_host_alone() {
    let (node, registry, blobs) = (TestNode::new(), Registry::new(), Registry::on("127.0.0.2:0"));
    let layer = PushedLayer::gzip(&hello());
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    blobs.blob("a", &layer.blob);
    let (digest, to) = (Digest::of(&layer.blob).to_string(), blobs.address);
    registry.script(move |request| {
        let location = format!("http://{to}{}", request.path);
        request.path.ends_with(&digest).then(|| TestAnswer::new(307).header("location", location))
    });
    node.hosts(&registry, "[header]\nx-secret = \"s\"\n");
    node.pull(&registry.name("a:t")).await.unwrap();
    assert!(registry.log().iter().all(|request| request.headers["x-secret"] == "s"));
    assert!(!blobs.log()[0].headers.contains_key("x-secret"));
}

#[tokio::test]
async fn a_broken_configuration_is_named_and_nothing_is_sent() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    node.hosts(&registry, "server = ");
    let error = node.pull(&registry.name("a:t")).await.unwrap_err();
    assert_eq!(error.class(), Class::Invalid);
    assert!(chain(&error).contains("hosts.toml does not parse"), "{}", chain(&error));
    assert!(registry.log().is_empty());
}
