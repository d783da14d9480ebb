//! The texts of manifests that a command line names: files, folders, standard input, and addresses of the web. Owns
//! fetching the latter, with bounds on time, size and redirects; never looks at what a text says. Called by run, apply
//! and stop.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use gantry_agent::manifest::{self, Text};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, Response, Url};

/// As of a file.
const MAX_BYTES: usize = 10 << 20;
const CONNECT: Duration = Duration::from_secs(15);
/// For all of it: somebody waits at a terminal.
const WHOLE: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 5;

/// Reads all of them, in this order.
///
/// # Errors
/// The first that can't be read.
pub(crate) async fn read(paths: &[PathBuf]) -> Result<Vec<Text>> {
    let mut texts = Vec::new();
    for path in paths {
        match address(path) {
            Some(text) => texts.push(fetch(text).await?),
            None => texts.extend(manifest::read_all(std::slice::from_ref(path))?),
        }
    }
    Ok(texts)
}

/// Whether it is read over the network.
pub(crate) fn is_address(path: &Path) -> bool {
    address(path).is_some()
}

fn address(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.starts_with("http://") || text.starts_with("https://"))
}

async fn fetch(text: &str) -> Result<Text> {
    let url = Url::parse(text).with_context(|| format!("{text:?} is no URL"))?;
    let path = PathBuf::from(display_url(&url));
    let text = get(url).await.with_context(|| format!("fetch {}", path.display()))?;
    Ok(Text { path, text })
}

async fn get(url: Url) -> Result<String> {
    let mut client = Client::builder()
        .user_agent(concat!("gantry/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .timeout(WHOLE)
        .redirect(Policy::custom(follow));
    if is_loopback(&url) {
        // A proxy of the environment has another loopback.
        client = client.no_proxy();
    }
    let client =
        client.build().context("set up the HTTP client (https needs the package ca-certificates)")?;
    let response = client.get(url).send().await.map_err(reqwest::Error::without_url)?;
    let status = response.status();
    if !status.is_success() {
        bail!("the server answers {status}");
    }
    if is_page(&response) {
        bail!(
            "it is a web page and no manifest: give the address of the file itself, as behind a button \"Raw\""
        );
    }
    String::from_utf8(body(response).await?).context("it is not UTF-8 text")
}

async fn body(mut response: Response) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(reqwest::Error::without_url)? {
        if bytes.len() + chunk.len() > MAX_BYTES {
            bail!("it is larger than {MAX_BYTES} bytes");
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn follow(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let before = attempt.previous();
    if before.len() > MAX_REDIRECTS {
        return attempt.error(anyhow!("more than {MAX_REDIRECTS} redirects"));
    }
    let encrypted = before.iter().any(|url| url.scheme() == "https");
    if !keeps_encryption(encrypted, attempt.url()) {
        let text =
            format!("it redirects to {}, and what began as https stays https", display_url(attempt.url()));
        return attempt.error(anyhow!(text));
    }
    attempt.follow()
}

fn keeps_encryption(encrypted: bool, to: &Url) -> bool {
    match to.scheme() {
        "https" => true,
        "http" => !encrypted,
        _ => false,
    }
}

fn is_page(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/html"))
}

/// Whether it is this machine, where no proxy of the environment leads.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// As messages may have it: what stands before the host or in the query may be a secret.
pub(crate) fn display_url(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Both fail only for URLs without a host, which have no such part.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::response::{Html, Redirect};
    use axum::routing::get;
    use tokio::net::TcpListener;

    use super::*;

    async fn server() -> String {
        let app = Router::new()
            .route("/a.yaml", get(|| async { "kind: Pod" }))
            .route("/page", get(|| async { Html("<p>") }))
            .route("/bytes", get(|| async { vec![0xff_u8] }))
            .route("/large", get(|| async { vec![b'a'; MAX_BYTES + 1] }))
            .route("/most", get(|| async { vec![b'a'; MAX_BYTES] }))
            .route("/fails", get(|| async { StatusCode::FORBIDDEN }))
            .route("/there", get(|| async { Redirect::temporary("/a.yaml") }))
            .route("/file", get(|| async { Redirect::temporary("file:///etc/passwd") }))
            .route("/loop", get(|| async { Redirect::temporary("/loop") }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        format!("http://{address}")
    }

    async fn one(url: String) -> Result<Text, String> {
        let texts = read(&[PathBuf::from(url)]).await.map_err(|error| format!("{error:#}"))?;
        Ok(texts.into_iter().next().unwrap())
    }

    #[tokio::test]
    async fn a_manifest_comes_from_the_web_as_from_a_file() {
        let server = server().await;
        let text = one(format!("{server}/a.yaml?token=secret")).await.unwrap();
        assert_eq!(text.text, "kind: Pod");
        assert_eq!(text.path, PathBuf::from(format!("{server}/a.yaml")), "a token is shown to nobody");
        assert_eq!(one(format!("{server}/there")).await.unwrap().text, "kind: Pod");
        assert_eq!(one(format!("{server}/most")).await.unwrap().text.len(), MAX_BYTES);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("b.yaml");
        std::fs::write(&file, "kind: Secret").unwrap();
        let both = read(&[file, format!("{server}/a.yaml").into()]).await.unwrap();
        let texts: Vec<&str> = both.iter().map(|text| text.text.as_str()).collect();
        assert_eq!(texts, ["kind: Secret", "kind: Pod"], "in the order of the command line");
    }

    #[tokio::test]
    async fn what_is_no_manifest_is_refused_with_its_address() {
        let server = server().await;
        for (path, why) in [
            ("/none", "the server answers 404 Not Found"),
            ("/fails", "the server answers 403 Forbidden"),
            ("/page", "it is a web page"),
            ("/bytes", "it is not UTF-8 text"),
            ("/large", "it is larger than 10485760 bytes"),
            ("/file", "the server answers 307 Temporary Redirect"),
            ("/loop", "more than 5 redirects"),
        ] {
            let error = one(format!("{server}{path}?token=secret")).await.unwrap_err();
            assert!(error.starts_with(&format!("fetch {server}{path}: ")), "{error}");
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
        let error = one("http://".to_owned()).await.unwrap_err();
        assert!(error.contains("is no URL"), "{error}");
    }

    #[test]
    fn redirects_never_lose_encryption() {
        let keeps = |encrypted, to: &str| keeps_encryption(encrypted, &Url::parse(to).unwrap());
        assert!(keeps(true, "https://b/") && keeps(false, "https://b/") && keeps(false, "http://b/"));
        assert!(!keeps(true, "http://b/") && !keeps(false, "file:///b"));
    }

    #[test]
    fn files_are_no_addresses() {
        assert!(is_address(Path::new("https://a/b")) && is_address(Path::new("http://a")));
        assert!(
            !is_address(Path::new("http:/a")) && !is_address(Path::new("-")) && !is_address(Path::new("a"))
        );
    }
}
