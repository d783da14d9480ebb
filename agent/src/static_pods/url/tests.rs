//! A server whose answers change.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::{HeaderMap as Asked, StatusCode as Code};
use axum::routing::get as on_get;
use tokio::net::TcpListener;

use super::*;
use crate::static_pods::follow_all;

/// What is answered next, and with which headers it was last asked.
#[derive(Clone, Default)]
struct Web(Arc<Mutex<(u16, String, Asked)>>);

impl Web {
    async fn serve(self) -> String {
        let answer = move |asked: Asked| {
            let mut state = self.0.lock().unwrap();
            state.2 = asked;
            let answer = (Code::from_u16(state.0).unwrap(), state.1.clone());
            async move { answer }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(
            async move { axum::serve(listener, Router::new().route("/pods", on_get(answer))).await },
        );
        format!("http://{address}/pods?token=secret")
    }

    fn set(&self, status: u16, body: impl Into<String>) {
        let mut state = self.0.lock().unwrap();
        (state.0, state.1) = (status, body.into());
    }
}

fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
    )
}

fn address(url: &str) -> Address {
    let header = BTreeMap::from([("X-Who".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
    Address { url: url.to_owned(), header, every: Duration::from_millis(20) }
}

async fn until(found: &mut watch::Receiver<StaticPods>, names: &[&str]) {
    let fits = |found: &StaticPods| {
        let seen: Vec<&str> = found.pods.iter().map(|pod| pod.name.as_str()).collect();
        found.read && seen == names
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), found.wait_for(fits)).await;
    assert!(waited.is_ok(), "{names:?}");
}

#[tokio::test]
async fn a_url_is_asked_again_and_one_that_fails_keeps_its_pods() {
    let web = Web::default();
    web.set(503, "");
    let url = web.clone().serve().await;
    let mut found = follow(address(&url), "n".to_owned());
    assert!(!found.borrow().read, "nothing is known before it answers");
    web.set(200, pod("a"));
    until(&mut found, &["a-n"]).await;
    let asked = web.0.lock().unwrap().2.clone();
    assert_eq!(asked.get_all("x-who").iter().collect::<Vec<_>>(), ["a", "b"]);
    for (status, body) in [(404, pod("b")), (204, String::new()), (200, "kind: [".to_owned())] {
        web.set(status, body);
        let before = std::mem::take(&mut web.0.lock().unwrap().2);
        assert!(!before.is_empty());
        while web.0.lock().unwrap().2.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    until(&mut found, &["a-n"]).await;
    web.set(200, pod("b"));
    until(&mut found, &["b-n"]).await;
    // An empty answer is nobody, as upstream.
    web.set(200, "");
    until(&mut found, &[]).await;
}

#[tokio::test]
async fn pods_of_the_folder_run_before_the_url_answers_and_beside_its_pods() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.yaml"), pod("a")).unwrap();
    let web = Web::default();
    web.set(500, "");
    let url = web.clone().serve().await;
    let folder = Some((root.path().to_owned(), Duration::from_secs(3600)));
    let mut found = follow_all(folder, Some(address(&url)), "n".to_owned()).await.unwrap();
    {
        let first = found.borrow();
        assert_eq!((first.pods.len(), first.read), (1, false));
    }
    web.set(200, pod("b"));
    until(&mut found, &["a-n", "b-n"]).await;
    std::fs::remove_file(root.path().join("a.yaml")).unwrap();
    until(&mut found, &["b-n"]).await;
    assert!(follow_all(None, None, "n".to_owned()).await.is_none());
}

#[tokio::test]
async fn failures_name_the_url_without_its_secrets() {
    let web = Web::default();
    web.set(403, "");
    let url = web.clone().serve().await;
    let shown = url.split('?').next().unwrap();
    assert_eq!(get(&address(&url)).await.unwrap_err(), format!("{shown}: 403 Forbidden"));
    web.set(200, "a".repeat(usize::try_from(MAX_BYTES).unwrap() + 1));
    let error = get(&address(&url)).await.unwrap_err();
    assert_eq!(error, format!("{shown}: larger than {MAX_BYTES} bytes"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://u:secret@{}/", listener.local_addr().unwrap());
    drop(listener);
    for (url, why) in
        [(nobody.as_str(), "refused"), ("ftp://h/secret", "staticPod"), ("secret", "staticPodURL: ")]
    {
        let error = get(&address(url)).await.unwrap_err();
        assert!(!error.contains("secret@") && (error.contains(why) || url.starts_with("ftp")), "{error}");
    }
    let bad = Address { header: BTreeMap::from([("a b".to_owned(), vec![String::new()])]), ..address(&url) };
    assert_eq!(get(&bad).await.unwrap_err(), "staticPodURLHeader: \"a b\" is no header's name");
}
