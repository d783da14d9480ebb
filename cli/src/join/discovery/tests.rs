//! Forms by themselves; what is trusted, against an API server over TLS.

use serde_json::json;

use super::super::fake::{FakeCluster, sign};
use super::super::{admin, cluster};
use super::*;

#[test]
fn tokens_hashes_and_endpoints_have_kubeadms_forms() {
    let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
    assert_eq!((token.id(), token.secret()), ("abcdef", "0123456789abcdef"));
    assert_eq!(format!("{token:?}"), "Token(abcdef.<masked>)");
    for bad in [
        "",
        "abcdef",
        "abcdef.0123",
        "ABCDEF.0123456789abcdef",
        "abcdef.0123456789abcdef.",
        "abcde.0123456789abcdefg",
    ] {
        assert!(bad.parse::<Token>().is_err(), "{bad}");
    }
    let hash = format!("sha256:{}", "0f".repeat(32));
    assert_eq!(hash.parse::<CaHash>().unwrap().to_string(), hash);
    assert_eq!(hash.to_uppercase().replace("SHA256", "sha256").parse::<CaHash>().unwrap().to_string(), hash);
    for bad in
        ["", "0f", "sha512:0f", &hash[..70], &hash.replace("0f0f", "+f0f"), &hash.replace("0f0f", "é0f")]
    {
        assert!(bad.parse::<CaHash>().is_err(), "{bad}");
    }
    let endpoint = |text: &str| {
        text.parse::<Endpoint>().map(|found| (found.host.clone(), found.port, found.to_string()))
    };
    let same = |host: &str, text: &str| Ok((host.to_owned(), 6443, text.to_owned()));
    assert_eq!(endpoint("10.0.0.1:6443"), same("10.0.0.1", "10.0.0.1:6443"));
    assert_eq!(
        endpoint("https://kind-control-plane:6443/"),
        same("kind-control-plane", "kind-control-plane:6443")
    );
    assert_eq!(endpoint("[fd00::1]:6443"), same("fd00::1", "[fd00::1]:6443"));
    for bad in [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:99999",
        ":6443",
        "fd00::1:6443",
        "[fd00::1:6443",
        "a b:1",
        "a/b:1",
    ] {
        assert!(endpoint(bad).is_err(), "{bad}");
    }
}

#[test]
fn signatures_are_those_of_upstreams_signer() {
    // The example of k8s.io/cluster-bootstrap/token/jws.
    let token = Token { id: "joshua".into(), secret: "my voice is my passcode".into() };
    let text = "Hello from the other side. I must have called a thousand times.";
    let signature = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";
    assert_eq!(sign(text, &token), signature);
    assert_eq!(verify(signature, text, &token), Some(()));
    let other = Token { secret: "another".into(), ..token.clone() };
    assert_eq!(verify(signature, text, &other), None);
    assert_eq!(verify(signature, &format!("{text} "), &token), None);
    assert_eq!(verify(signature, text, &Token { id: "other".into(), ..token.clone() }), None);
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"joshua"}"#);
    for bad in ["", "..", "a..b", &signature.replace("..", "."), &format!("{none}..")] {
        assert_eq!(verify(bad, text, &token), None, "{bad}");
    }
}

async fn find(cluster: &FakeCluster, hashes: &[CaHash]) -> Result<ClusterInfo, Error> {
    cluster_info(&cluster.endpoint(), None, &cluster.token, hashes, Duration::ZERO).await
}

#[tokio::test]
async fn a_cluster_is_found_by_token_and_hash_and_tells_what_a_node_needs() {
    let fake = FakeCluster::start(&["127.0.0.1"]).await;
    let info = find(&fake, &[fake.hash()]).await.unwrap();
    assert_eq!(info, ClusterInfo { server: fake.endpoint(), authority: fake.ca().into_bytes() });
    let access = fake.endpoint().access(None, Trust::Data(info.authority), bearer(&fake.token)).unwrap();
    let found = cluster::read(&connect(&access).unwrap(), fake.endpoint(), info.server).await.unwrap();
    assert_eq!((found.version.as_str(), found.kube_proxy), ("v1.36.3", true));
    assert_eq!(found.pod_subnets, ["10.244.0.0/16", "fd00::/48"]);
    assert_eq!((found.kubelet.cgroup_root.as_str(), found.kubelet.fail_swap_on), ("/kubelet", Some(false)));
}

#[tokio::test]
async fn who_is_not_the_cluster_that_was_meant_is_refused() {
    let fake = FakeCluster::start(&["127.0.0.1"]).await;
    let hash = [fake.hash()];
    let other = CaHash::of(&pair::certificates_of(FakeCluster::other_ca().as_bytes()).unwrap()[0]).unwrap();
    let found = find(&fake, &[other]).await.unwrap_err();
    assert!(
        matches!(&found, Error::OtherAuthority { found } if *found == fake.hash().to_string()),
        "{found}"
    );
    assert!(find(&fake, &[other, fake.hash()]).await.is_ok(), "one of several is enough");

    let wrong: Token = "abcdef.fedcba9876543210".parse().unwrap();
    let found = cluster_info(&fake.endpoint(), None, &wrong, &hash, Duration::ZERO).await;
    assert!(matches!(found, Err(Error::BadSignature)), "{found:?}");
    let unknown: Token = "zzzzzz.0123456789abcdef".parse().unwrap();
    let found = cluster_info(&fake.endpoint(), None, &unknown, &hash, Duration::ZERO).await.unwrap_err();
    assert!(found.to_string().contains("token zzzzzz…, or it has expired"), "{found}");

    // Signed and pinned, but not whose certificate is shown.
    let mine = FakeCluster::other_ca();
    fake.publish("https://127.0.0.1:1", &format!("{mine}{}", fake.ca()));
    assert!(find(&fake, &hash).await.is_ok(), "a bundle while authorities rotate");
    fake.publish("https://127.0.0.1:1", &mine);
    let pinned = CaHash::of(&pair::certificates_of(mine.as_bytes()).unwrap()[0]).unwrap();
    assert!(matches!(find(&fake, &[pinned]).await, Err(Error::Untrusted(..))));

    fake.put_info(&json!({ "kubeconfig": "" }));
    assert!(matches!(find(&fake, &hash).await, Err(Error::NoKubeconfig)));
}

#[tokio::test]
async fn a_certificate_for_another_name_counts_under_that_name_alone() {
    let fake = FakeCluster::start(&["kind-control-plane"]).await;
    assert!(matches!(find(&fake, &[fake.hash()]).await, Err(Error::Untrusted(..))));
    let name = Some("kind-control-plane");
    let found = cluster_info(&fake.endpoint(), name, &fake.token, &[fake.hash()], Duration::ZERO).await;
    assert!(found.is_ok(), "{found:?}");
}

#[tokio::test]
async fn a_signature_that_is_on_its_way_is_waited_for() {
    let fake = FakeCluster::start(&["127.0.0.1"]).await;
    let info = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
    let whole = fake.api.get(info).unwrap();
    fake.put_info(&json!({ "kubeconfig": whole["data"]["kubeconfig"] }));
    let (endpoint, token, hashes) = (fake.endpoint(), fake.token.clone(), [fake.hash()]);
    let found = cluster_info(&endpoint, None, &token, &hashes, Duration::from_secs(60));
    let signed = async {
        fake.api.until("a first look", |api| (!api.requests().is_empty()).then_some(())).await;
        fake.api.put(info, whole.clone());
    };
    let (found, ()) = tokio::join!(found, signed);
    assert!(found.is_ok(), "{found:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    drop(listener);
    let token = "abcdef.0123456789abcdef".parse().unwrap();
    let error = cluster_info(&endpoint, None, &token, &[], Duration::ZERO).await.unwrap_err();
    let text = format!("{:#}", anyhow::Error::from(error));
    assert!(text.contains(&endpoint.to_string()) && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn an_administrator_makes_a_token_and_takes_it_away() {
    let fake = FakeCluster::start(&["127.0.0.1"]).await;
    let access = fake.endpoint().access(None, Trust::Data(fake.ca().into()), User::default()).unwrap();
    let client = admin::connect(&access).unwrap();
    assert_eq!(admin::cluster_info(&client).await.unwrap().server, fake.endpoint());
    let token = admin::make_token(&client, "n1").await.unwrap();
    let path = format!("/api/v1/namespaces/kube-system/secrets/bootstrap-token-{}", token.id());
    let made = fake.api.get(&path).unwrap();
    assert_eq!(made["type"], "bootstrap.kubernetes.io/token");
    admin::delete_token(&client, &token).await.unwrap();
    admin::delete_token(&client, &token).await.unwrap();
    assert_eq!(fake.api.get(&path), None);
    // Elsewhere, under the name of the kubeconfig's.
    let moved = admin::with_endpoint(access, &"192.0.2.1:1234".parse().unwrap()).unwrap();
    assert_eq!(
        (moved.server.to_string().as_str(), moved.server_name.as_deref()),
        ("https://192.0.2.1:1234/", Some("127.0.0.1"))
    );
}
