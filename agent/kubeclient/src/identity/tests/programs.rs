//! Credential programs, and proxies on the way, with a real server.

use std::os::unix::fs::PermissionsExt as _;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::*;

/// A user whose program answers with what stands in the file `says`.
fn program(folder: &Path) -> Value {
    let path = folder.join("plugin");
    std::fs::write(&path, format!("#!/bin/sh\ncat {}/says\n", folder.display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": path, "interactiveMode": "Never" } })
}

fn says(folder: &Path, status: &Value) {
    let answer = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status });
    std::fs::write(folder.join("says"), answer.to_string()).unwrap();
}

#[tokio::test]
async fn a_token_of_a_program_is_asked_for_again_when_the_server_refuses_it() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    says(folder.path(), &json!({ "token": "one" }));
    let user = program(folder.path());
    let (_, nobody) = watch::channel(None);
    let access = access(&api, folder.path(), &user);
    let clients = Clients::new(&access, &nobody, limits(), false, &Arc::default()).unwrap();
    get(&clients.pods, "/first").await;
    says(folder.path(), &json!({ "token": "two" }));
    get(&clients.lease, "/kept").await;
    "Bearer one".clone_into(&mut api.refuses.lock().unwrap());
    let request = Request::get("/refused").body(kube::client::Body::empty()).unwrap();
    assert_eq!(clients.pods.send(request).await.unwrap().status(), 401);
    get(&clients.lease, "/again").await;
    let tokens: Vec<String> = ["/first", "/kept", "/refused", "/again"]
        .iter()
        .map(|path| api.seen(path)[0].token.clone())
        .collect();
    assert_eq!(tokens, ["Bearer one", "Bearer one", "Bearer one", "Bearer two"]);
    let broken = json!({});
    says(folder.path(), &broken);
    "Bearer two".clone_into(&mut api.refuses.lock().unwrap());
    let request = Request::get("/third").body(kube::client::Body::empty()).unwrap();
    assert_eq!(clients.pods.send(request).await.unwrap().status(), 401, "what cannot be renewed is kept");
}

#[tokio::test]
async fn a_certificate_of_a_program_is_shown_and_a_new_one_on_new_connections() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    let certificate = |name: &str| {
        let key = csr::new_key().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        live(&mut params, -60, 3600);
        let pem = params.signed_by(&key, &api.authority).unwrap().pem();
        // Over at once: it is asked for before each request.
        json!({
            "clientCertificateData": pem, "clientKeyData": key.serialize_pem(),
            "expirationTimestamp": "2020-01-01T00:00:00Z",
        })
    };
    let first = certificate("one");
    says(folder.path(), &first);
    let user = program(folder.path());
    let (_, nobody) = watch::channel(None);
    let client = client::single(&access(&api, folder.path(), &user), &nobody, &Arc::default()).unwrap();
    get(&client, "/first").await;
    get(&client, "/same").await;
    says(folder.path(), &certificate("two"));
    get(&client, "/second").await;
    let seen = |path| api.seen(path).remove(0);
    let (first, same, second) = (seen("/first"), seen("/same"), seen("/second"));
    assert_eq!((first.user.as_str(), second.user.as_str()), ("one", "two"));
    assert_eq!(first.connection, same.connection);
    assert_ne!(first.connection, second.connection);
}

#[tokio::test]
async fn a_program_that_fails_fails_the_request_with_its_reason() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    let user = json!({ "exec": { "apiVersion": "client.authentication.k8s.io/v1beta1", "command": "no-such-plugin",
        "installHint": "apt install it" } });
    let (_, nobody) = watch::channel(None);
    let client = client::single(&access(&api, folder.path(), &user), &nobody, &Arc::default()).unwrap();
    let request = Request::get("/x").body(Vec::new()).unwrap();
    let error = chain(&client.request::<Value>(request).await.unwrap_err());
    assert!(error.contains("getting credentials: exec: executable no-such-plugin not found"), "{error}");
    assert!(error.contains("apt install it"), "{error}");
    assert!(api.seen("").is_empty());
}

#[tokio::test]
async fn a_kubelet_that_rotates_asks_with_the_program_and_goes_on_with_its_certificate() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    says(folder.path(), &json!({ "token": "t" }));
    let user = program(folder.path());
    access(&api, folder.path(), &user);
    let settings = Settings {
        kubeconfig: folder.path().join("kubeconfig"),
        bootstrap: None,
        cert_dir: folder.path().join("pki"),
        node: "n1".to_owned(),
        rotate: true,
        limits: limits(),
        metrics: Arc::default(),
    };
    let (notices, _heard) = mpsc::channel(8);
    let identity = bootstrap::start(settings, notices).await.unwrap();
    get(&identity.clients.pods, "/work").await;
    let (asked, worked) = (api.seen("certificatesigningrequests").remove(0), api.seen("/work").remove(0));
    assert_eq!((asked.token.as_str(), asked.user.as_str()), ("Bearer t", ""));
    assert_eq!((worked.token.as_str(), worked.user.as_str()), ("", "system:node:n1"));
}

/// Takes one connection after another by CONNECT, and keeps what it was asked.
async fn proxy(asked: Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let asked = asked.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    assert_ne!(stream.read_line(&mut head).await.unwrap(), 0);
                }
                let to = head.split(' ').nth(1).unwrap().to_owned();
                asked.lock().unwrap().push(head);
                let mut server = TcpStream::connect(to).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
            });
        }
    });
    address
}

async fn socks() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = [0; 3];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!(hello, [5, 1, 0], "version 5, no login");
        stream.write_all(&[5, 0]).await.unwrap();
        let mut ask = [0; 10];
        stream.read_exact(&mut ask).await.unwrap();
        assert_eq!(&ask[..4], [5, 1, 0, 1], "connect to an address of IPv4");
        let to = ([ask[4], ask[5], ask[6], ask[7]], u16::from_be_bytes([ask[8], ask[9]]));
        let mut server = TcpStream::connect(SocketAddr::from(to)).await.unwrap();
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
    });
    address
}

fn through(api: &Api, folder: &Path, url: &str) -> kube::Client {
    let mut file: Value = serde_json::from_str(&api.kubeconfig(&json!({ "token": "t" }))).unwrap();
    file["clusters"][0]["cluster"]["proxy-url"] = url.into();
    let access = kubeconfig::parse(&file.to_string(), &folder.join("kubeconfig")).unwrap();
    client::single(&access, &watch::channel(None).1, &Arc::default()).unwrap()
}

#[tokio::test]
async fn the_server_is_reached_through_the_proxy_of_the_file() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let address = proxy(asked.clone()).await;
    get(&through(&api, folder.path(), &format!("http://me:pw@{address}")), "/proxied").await;
    assert_eq!(api.seen("/proxied")[0].token, "Bearer t");
    let head = asked.lock().unwrap().remove(0);
    assert!(head.starts_with(&format!("CONNECT {} HTTP/1.1\r\n", api.address)), "{head}");
    assert!(head.contains("Proxy-Authorization: Basic bWU6cHc=\r\n") && !head.contains("Bearer"), "{head}");
    let address = socks().await;
    get(&through(&api, folder.path(), &format!("socks5://{address}")), "/socks").await;
    assert_eq!(api.seen("/socks").len(), 1);
}

#[tokio::test]
async fn a_proxy_may_speak_tls_and_one_that_refuses_is_told() {
    let (api, folder) = (Api::start(Duration::from_secs(3600), false).await, tempfile::tempdir().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let plain = proxy(asked.clone()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tls = api.tls();
    tls.alpn_protocols = Vec::new();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(tcp).await.unwrap();
        let mut behind = TcpStream::connect(plain).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut behind).await;
    });
    get(&through(&api, folder.path(), &format!("https://{address}")), "/tls").await;
    assert_eq!((api.seen("/tls").len(), asked.lock().unwrap().len()), (1, 1));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 407 No\r\n\r\n").await;
    });
    let client = through(&api, folder.path(), &format!("http://{address}"));
    let request = Request::get("/x").body(Vec::new()).unwrap();
    let error = chain(&client.request::<Value>(request).await.unwrap_err());
    assert!(error.contains("proxyconnect: ") && error.contains("proxy authorization required"), "{error}");
}
