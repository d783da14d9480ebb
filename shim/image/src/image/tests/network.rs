//! Credentials, redirects, stalls, cancelled pulls.

use super::archive::PushedLayer;
use super::server::Gate;
use super::*;
use crate::image::Auth;
use crate::image::digest::Digest;

const USER: &str = "Basic dXNlcjpwYXNz";

fn user() -> Option<Auth> {
    Some(Auth { username: "user".into(), password: "pass".into(), ..Auth::default() })
}

async fn pull(node: &TestNode, name: &str, auth: Option<Auth>) -> Result<Arc<Image>, Error> {
    node.images.pull(&Reference::parse(name).unwrap(), auth, &Recorder::default()).await
}

fn auth_of(request: &RegistryRequest) -> &str {
    request.headers.get("authorization").map_or("", String::as_str)
}

#[tokio::test]
async fn basic_credentials_are_shown_when_asked_for() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    registry.script(|request| {
        let denied = TestAnswer::new(401).header("www-authenticate", "Basic realm=\"x\"");
        (auth_of(request) != USER).then_some(denied)
    });
    let error = pull(&node, &registry.name("a:t"), None).await.unwrap_err();
    assert_eq!(error.class(), Class::Unauthorized, "{}", chain(&error));
    let wrong = Auth { password: "wrong".into(), ..user().unwrap() };
    let error = pull(&node, &registry.name("a:t"), Some(wrong)).await.unwrap_err();
    assert_eq!(error.class(), Class::Unauthorized, "{}", chain(&error));
    assert!(!chain(&error).contains("wrong"), "no secret in {}", chain(&error));
    let elsewhere = Auth { server_address: "other.example".into(), ..user().unwrap() };
    assert!(pull(&node, &registry.name("a:t"), Some(elsewhere)).await.is_err());
    pull(&node, &registry.name("a:t"), user()).await.unwrap();
}

#[tokio::test]
async fn a_token_is_fetched_once_and_used_for_all() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let layers = [PushedLayer::gzip(&hello()), PushedLayer::gzip(&Archive::new().file("x", b"x"))];
    registry.image("a", "t", &layers, "V=1");
    let realm = format!("http://{}/token", registry.address);
    let tokens = Registry::new();
    registry.script(move |request| {
        if request.path.starts_with("/token") {
            let answer = TestAnswer::new(if auth_of(request) == USER { 200 } else { 401 });
            return Some(answer.body(br#"{"token":"t0ken"}"#));
        }
        let challenge = format!(r#"Bearer realm="{realm}",service="s v",scope="repository:a:pull""#);
        (auth_of(request) != "Bearer t0ken")
            .then(|| TestAnswer::new(401).header("www-authenticate", challenge.clone()))
    });
    pull(&node, &registry.name("a:t"), user()).await.unwrap();
    assert_eq!(registry.hits("/token?service=s+v&scope=repository%3Aa%3Apull"), 1, "{:?}", registry.log());
    assert!(tokens.log().is_empty());
    let error = pull(&node, &registry.name("a:t"), None).await.unwrap_err();
    assert_eq!(error.class(), Class::Unauthorized, "{}", chain(&error));
}

#[tokio::test]
async fn an_identity_token_is_posted() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    let realm = format!("http://{}/token", registry.address);
    registry.script(move |request| {
        if request.path.starts_with("/token") {
            let good = request.method == "POST" && request.body.contains("&refresh_token=id%20token&");
            return Some(TestAnswer::new(if good { 200 } else { 400 }).body(br#"{"access_token":"t"}"#));
        }
        let challenge = format!(r#"Bearer realm="{realm}",service="s""#);
        (auth_of(request) != "Bearer t")
            .then(|| TestAnswer::new(401).header("www-authenticate", challenge.clone()))
    });
    let auth = Auth { identity_token: "id token".into(), ..Auth::default() };
    pull(&node, &registry.name("a:t"), Some(auth)).await.unwrap();
}

#[tokio::test]
async fn cve_2020_15157_credentials_go_to_no_plain_http_token_server_elsewhere() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.script(|_| {
        Some(TestAnswer::new(401).header("www-authenticate", r#"Bearer realm="http://192.0.2.1/token""#))
    });
    let error = pull(&node, &registry.name("a:t"), user()).await.unwrap_err();
    assert!(chain(&error).contains("does not speak https"), "{}", chain(&error));
    assert_eq!(error.class(), Class::Unauthorized);
}

#[tokio::test]
async fn cve_2020_15157_redirects_to_another_host_carry_no_credentials() {
    let node = TestNode::new();
    let (registry, store) = (Registry::new(), Registry::on("127.0.0.2:0"));
    let layer = PushedLayer::gzip(&hello());
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    store.blob("a", &layer.blob);
    let (digest, to) = (Digest::of(&layer.blob).to_string(), store.address);
    registry.script(move |request| {
        if auth_of(request) != USER {
            return Some(TestAnswer::new(401).header("www-authenticate", "Basic realm=x"));
        }
        let location = format!("http://{to}{}", request.path);
        request.path.ends_with(&digest).then(|| TestAnswer::new(307).header("location", location))
    });
    pull(&node, &registry.name("a:t"), user()).await.unwrap();
    let seen = store.log();
    assert_eq!(seen.len(), 1);
    assert_eq!(auth_of(&seen[0]), "", "{seen:?}");
}

#[tokio::test]
async fn cve_2020_15157_a_redirect_target_cannot_ask_for_credentials() {
    let node = TestNode::new();
    let (registry, thief) = (Registry::new(), Registry::on("127.0.0.2:0"));
    let layer = PushedLayer::gzip(&hello());
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    thief.script(|_| {
        Some(TestAnswer::new(401).header("www-authenticate", "Basic realm=x").body(b"secret page"))
    });
    let (digest, to) = (Digest::of(&layer.blob).to_string(), thief.address);
    registry.script(move |request| {
        let location = format!("http://{to}/x?signature=abc");
        request.path.ends_with(&digest).then(|| TestAnswer::new(302).header("location", location))
    });
    let error = pull(&node, &registry.name("a:t"), user()).await.unwrap_err();
    let text = chain(&error);
    assert_eq!(error.class(), Class::Unauthorized, "{text}");
    assert!(!text.contains("signature") && !text.contains("secret page"), "{text}");
    assert_eq!(thief.log().len(), 1);
    assert_eq!(auth_of(&thief.log()[0]), "");
}

#[tokio::test]
async fn circles_of_redirects_end() {
    let (node, registry) = (TestNode::new(), Registry::new());
    registry.script(|request| Some(TestAnswer::new(302).header("location", request.path.clone())));
    let error = pull(&node, &registry.name("a:t"), None).await.unwrap_err();
    assert_eq!(error.class(), Class::Unavailable, "{}", chain(&error));
    assert_eq!(registry.log().len(), 6);
}

#[tokio::test]
async fn silence_is_a_stall() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let patience = TransferLimits {
        connect: Duration::from_secs(20),
        stall: Duration::from_millis(200),
        ..TransferLimits::default()
    };
    let store = open_store(&config(folder.path()), &HashMap::new()).unwrap();
    let images = Images::with(&config(folder.path()), store, patience, None, HashMap::new());
    let registry = Registry::new();
    let layer = PushedLayer::gzip(&hello());
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let (_open, gate) = Gate::new();
    let digest = Digest::of(&layer.blob).to_string();
    registry.script(move |request| {
        let cut = TestAnswer::new(200).body(layer.blob.clone()).cut(12, Some(&gate));
        request.path.ends_with(&digest).then_some(cut)
    });
    let reference = Reference::parse(&registry.name("a:t")).unwrap();
    let error = images.pull(&reference, None, &Recorder::default()).await.unwrap_err();
    assert_eq!(error.class(), Class::Unavailable, "{}", chain(&error));
    assert!(chain(&error).contains("no data for"), "{}", chain(&error));
    until("the folder is gone", || count(&folder.path().join("root/ingest")) == 0).await;
}

#[tokio::test]
async fn a_trickle_is_given_up_and_holds_up_no_later_pull() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    // As if the minute were over with the first bytes.
    let patience = TransferLimits { window: Duration::ZERO, ..TransferLimits::default() };
    let store = open_store(&config(folder.path()), &HashMap::new()).unwrap();
    let images = Images::with(&config(folder.path()), store, patience, None, HashMap::new());
    let registry = Registry::new();
    registry.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    let reference = Reference::parse(&registry.name("a:t")).unwrap();
    let error = images.pull(&reference, None, &Recorder::default()).await.unwrap_err();
    assert_eq!(error.class(), Class::Unavailable, "{}", chain(&error));
    assert!(chain(&error).contains("too slow to wait for"), "{}", chain(&error));
    let asked = registry.log().len();
    images.pull(&reference, None, &Recorder::default()).await.unwrap_err();
    assert!(registry.log().len() > asked, "a flight of its own");
    until("the folder is gone", || count(&folder.path().join("root/ingest")) == 0).await;
}

#[tokio::test]
async fn a_cancelled_pull_leaves_nothing_and_can_be_repeated() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let layer = PushedLayer::gzip(&hello());
    registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    let (open, gate) = Gate::new();
    let digest = Digest::of(&layer.blob).to_string();
    let wanted = digest.clone();
    registry.script(move |request| {
        let cut = TestAnswer::new(200).body(layer.blob.clone()).cut(12, Some(&gate));
        request.path.ends_with(&wanted).then_some(cut)
    });
    let name = registry.name("a:t");
    {
        let pull = node.pull(&name);
        tokio::pin!(pull);
        tokio::select! {
            done = &mut pull => panic!("ended early: {done:?}"),
            () = until("the folder is there", || node.ingest() == 1) => {}
        }
    }
    until("the folder is gone", || node.ingest() == 0).await;
    assert_eq!((node.layer_folders(), node.images.list().len()), (0, 0));
    drop(open);
    node.pull(&name).await.unwrap();
    assert_eq!(registry.hits(&digest), 2);
}

#[tokio::test]
async fn a_failure_of_the_first_is_not_that_of_the_second() {
    let node = TestNode::new();
    let (broken, good) = (Registry::new(), Registry::on("127.0.0.2:0"));
    let layer = PushedLayer::gzip(&hello());
    for registry in [&broken, &good] {
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    }
    let (open, gate) = Gate::new();
    let digest = Digest::of(&layer.blob).to_string();
    let wanted = digest.clone();
    // The right length, the wrong bytes, once the second pull has joined.
    let wrong = vec![b'x'; layer.blob.len()];
    broken.script(move |request| {
        let held = TestAnswer::new(200).body(wrong.clone()).cut(1, Some(&gate));
        request.path.ends_with(&wanted).then_some(held)
    });
    let (first, second) = (broken.name("a:t"), good.name("a:t"));
    let watch = async {
        until("both wait for one flight", || node.images.inner.layers.waiting(&layer.diff_id) == 2).await;
        open.send(()).unwrap();
    };
    let late = async {
        until("the first leads", || broken.hits(&digest) == 1).await;
        node.pull(&second).await
    };
    let (first, second, ()) = tokio::join!(node.pull(&first), late, watch);
    assert_eq!(first.unwrap_err().class(), Class::Corrupt);
    second.unwrap();
    assert_eq!(good.hits(&digest), 1);
    assert_eq!(node.layer_folders(), 1);
}

/// A node for which no flight of another pull is fast enough for long.
fn hasty(folder: &Path) -> Images {
    let patience = TransferLimits { hedge_after: Duration::from_millis(50), ..TransferLimits::default() };
    let config = config(folder);
    let store = open_store(&config, &HashMap::new()).unwrap();
    Images::with(&config, store, patience, None, HashMap::new())
}

#[tokio::test]
async fn a_slow_flight_holds_up_no_pull_from_another_registry() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let images = hasty(folder.path());
    let (slow, good) = (Registry::new(), Registry::on("127.0.0.2:0"));
    let layer = PushedLayer::gzip(&hello());
    for (registry, repository) in [(&slow, "a"), (&slow, "b"), (&good, "a")] {
        registry.image(repository, "t", std::slice::from_ref(&layer), &format!("V={repository}"));
    }
    let (_open, gate) = Gate::new();
    let digest = Digest::of(&layer.blob).to_string();
    let wanted = digest.clone();
    let held = layer.blob.clone();
    slow.script(move |request| {
        let held = TestAnswer::new(200).body(held.clone()).cut(10, Some(&gate));
        request.path.ends_with(&wanted).then_some(held)
    });
    let references = [slow.name("a:t"), slow.name("b:t"), good.name("a:t")];
    let [first, second, third] = references.map(|name| Reference::parse(&name).unwrap());
    let spans = Recorder::default();
    let late = async {
        until("the first leads", || slow.hits(&digest) == 1).await;
        tokio::join!(images.pull(&second, None, &spans), images.pull(&third, None, &spans))
    };
    let all = async { tokio::join!(images.pull(&first, None, &spans), late) };
    let (first, (second, third)) = tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    assert_eq!(first.unwrap().diff_ids, third.unwrap().diff_ids);
    second.unwrap();
    // The second would have got it from where it is slow.
    assert_eq!((slow.hits(&digest), good.hits(&digest)), (1, 1));
    until("the slow one's folder is gone", || count(&folder.path().join("root/ingest")) == 0).await;
    assert_eq!(count(&folder.path().join("root/layers")), 1);
}

#[tokio::test]
async fn a_rival_that_fails_leaves_the_slow_flight_alone() {
    require_root();
    let folder = tempfile::tempdir().unwrap();
    let images = hasty(folder.path());
    let (slow, broken) = (Registry::new(), Registry::on("127.0.0.2:0"));
    let layer = PushedLayer::gzip(&hello());
    for registry in [&slow, &broken] {
        registry.image("a", "t", std::slice::from_ref(&layer), "V=1");
    }
    let (open, gate) = Gate::new();
    let digest = Digest::of(&layer.blob).to_string();
    let (wanted, held) = (digest.clone(), layer.blob.clone());
    slow.script(move |request| {
        let held = TestAnswer::new(200).body(held.clone()).cut(10, Some(&gate));
        request.path.ends_with(&wanted).then_some(held)
    });
    let wanted = digest.clone();
    broken.script(move |request| request.path.ends_with(&wanted).then(|| TestAnswer::new(404)));
    let (first, second) = (slow.name("a:t"), broken.name("a:t"));
    let [first, second] = [first, second].map(|name| Reference::parse(&name).unwrap());
    let spans = Recorder::default();
    let late = async {
        until("the first leads", || slow.hits(&digest) == 1).await;
        images.pull(&second, None, &spans).await
    };
    let watch = async {
        until("the hedge has asked", || broken.hits(&digest) == 1).await;
        open.send(()).unwrap();
    };
    let all = async { tokio::join!(images.pull(&first, None, &spans), late, watch) };
    let (first, second, ()) = tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    assert_eq!(first.unwrap().diff_ids, second.unwrap().diff_ids);
    assert_eq!((slow.hits(&digest), broken.hits(&digest)), (1, 1));
}

#[tokio::test]
async fn a_registry_that_stalls_leaves_desks_for_other_pulls() {
    let node = TestNode::new();
    let (stalled, good) = (Registry::new(), Registry::on("127.0.0.2:0"));
    let layers: Vec<PushedLayer> =
        (0..20_u8).map(|index| PushedLayer::gzip(&Archive::new().file("x", &[index; 9]))).collect();
    stalled.image("a", "t", &layers, "V=1");
    good.image("a", "t", &[PushedLayer::gzip(&hello())], "V=1");
    let (_open, gate) = Gate::new();
    let digests: Vec<String> = layers.iter().map(|layer| Digest::of(&layer.blob).to_string()).collect();
    let (held, first) = (digests.clone(), layers[0].blob.clone());
    stalled.script(move |request| {
        let is_layer = held.iter().any(|digest| request.path.ends_with(digest));
        is_layer.then(|| {
            TestAnswer::new(200).body(first.clone()).header("content-length", "").cut(1, Some(&gate))
        })
    });
    let asked = || digests.iter().map(|digest| stalled.hits(digest)).sum::<usize>();
    let (stalled_name, good_name) = (stalled.name("a:t"), good.name("a:t"));
    let pull = node.pull(&stalled_name);
    tokio::pin!(pull);
    let most = node.images.inner.unpack_slots.most();
    tokio::select! {
        done = &mut pull => panic!("ended early: {done:?}"),
        () = until("all slots are taken", || asked() == most) => {}
    }
    let good = tokio::time::timeout(Duration::from_secs(60), node.pull(&good_name));
    tokio::select! {
        done = &mut pull => panic!("ended early: {done:?}"),
        done = good => drop(done.unwrap().unwrap()),
    }
    assert_eq!(asked(), most, "no more than the node has slots for");
}
