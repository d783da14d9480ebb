//! Runs one plugin: a request on its standard input, a response from its standard output. Owns the
//! wire's format, the deadline and the words of failures; never keeps what it was told. Called by
//! [`super`].

#![expect(
    clippy::disallowed_methods,
    reason = "runs the credential plugins that the node's configuration names"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gantry_metrics::Metrics;
use gantry_model::go_duration::Span;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::config::Variable;

/// As upstream; nothing configures it.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than any response holds.
const MOST: u64 = 10 << 20;
const REQUEST: &str = "CredentialProviderRequest";
const RESPONSE: &str = "CredentialProviderResponse";

/// A program that knows credentials.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) api_version: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<Variable>,
    pub(super) metrics: Arc<Metrics>,
}

/// What it is asked.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    kind: &'static str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service_account_token: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    service_account_annotations: &'a BTreeMap<String, String>,
}

/// How far what it says goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Image,
    Registry,
    Global,
}

/// What it says.
#[derive(Debug, Clone)]
pub(super) struct Response {
    pub(super) reach: Reach,
    /// None: as configured.
    pub(super) keep_for: Option<Span>,
    pub(super) auth: BTreeMap<String, Auth>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Wire {
    kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<Span>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Auth>>,
}

/// For one address.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Auth {
    pub(super) username: String,
    pub(super) password: String,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").finish_non_exhaustive()
    }
}

impl Plugin {
    /// Asks for an image, on behalf of a service account if `token` is not empty.
    ///
    /// # Errors
    /// In upstream's words; never with what the plugin wrote to its standard output.
    pub(super) async fn ask(
        &self,
        image: &str,
        token: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Response, String> {
        let request = Request {
            kind: REQUEST,
            api_version: &self.api_version,
            image,
            service_account_token: token,
            service_account_annotations: annotations,
        };
        let mut request = serde_json::to_vec(&request)
            .map_err(|error| format!("failed to encode auth request: {error}"))?;
        request.push(b'\n');
        let began = tokio::time::Instant::now();
        let ran = match tokio::time::timeout(PATIENCE, self.run(&request)).await {
            Ok(ran) => ran,
            Err(_) => Err(("context deadline exceeded".to_owned(), String::new())),
        };
        self.metrics.credential_plugin_duration.took([&self.name], began.elapsed());
        let answer = ran.map_err(|(why, said)| {
            self.metrics.credential_plugin_errors.inc([&self.name]);
            format!("error execing credential provider plugin {} for image {image}: {why}: {said}", self.name)
        })?;
        self.read(&answer)
    }

    /// What it wrote; else why not, and what it complained of.
    async fn run(&self, request: &[u8]) -> Result<Vec<u8>, (String, String)> {
        let failed = |error: std::io::Error| (error.to_string(), String::new());
        let mut child = Command::new(&self.path)
            .args(&self.args)
            .envs(self.env.iter().map(|variable| (&variable.name, &variable.value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // One that does not read its request may know the answer all the same.
                if let Err(error) = stdin.write_all(request).await {
                    tracing::debug!(plugin = self.name, %error, "it does not read its request");
                }
            }
        };
        let read = async |pipe: Option<&mut (dyn tokio::io::AsyncRead + Unpin + Send)>| {
            let mut text = Vec::new();
            if let Some(pipe) = pipe {
                pipe.take(MOST).read_to_end(&mut text).await?;
            }
            Ok::<_, std::io::Error>(text)
        };
        let (mut stdout, mut stderr) = (stdout, stderr);
        let ((), said, complained) = tokio::join!(
            write,
            read(stdout.as_mut().map(|pipe| pipe as _)),
            read(stderr.as_mut().map(|pipe| pipe as _))
        );
        let (said, complained) = (said.map_err(failed)?, complained.map_err(failed)?);
        // Past what is read it would wait for ever for somebody who reads on.
        drop((stdout, stderr));
        let status = child.wait().await.map_err(failed)?;
        if status.success() {
            return Ok(said);
        }
        Err((describe_exit(status), String::from_utf8_lossy(&complained).into_owned()))
    }

    fn read(&self, answer: &[u8]) -> Result<Response, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            #[serde(default)]
            api_version: String,
        }
        // An object: an array would be taken for its fields.
        let object: Option<Map<String, Value>> = serde_json::from_slice(answer).ok();
        let head: Option<Head> = object.and_then(|object| serde_json::from_value(Value::Object(object)).ok());
        let head = head.ok_or_else(|| {
            "error reading GVK from response: couldn't get version/kind; json parse error".to_owned()
        })?;
        if head.api_version != self.api_version {
            return Err(format!(
                "apiVersion from credential plugin response did not match expected apiVersion:{}, actual apiVersion:{}",
                self.api_version, head.api_version
            ));
        }
        // The cause is not told: it may be a piece of the credentials.
        let bad = || "error decoding credential provider plugin response from stdout".to_owned();
        let wire: Wire = serde_json::from_slice(answer).map_err(|_| bad())?;
        if wire.kind != RESPONSE {
            return Err(bad());
        }
        let reach = match wire.cache_key_type.as_str() {
            "Image" => Reach::Image,
            "Registry" => Reach::Registry,
            "Global" => Reach::Global,
            other => {
                return Err(format!(
                    "credential provider plugin did not return a valid cacheKeyType: {other}"
                ));
            }
        };
        Ok(Response { reach, keep_for: wire.cache_duration, auth: wire.auth.unwrap_or_default() })
    }
}

/// As Go tells it.
fn describe_exit(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal: {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;

    const GOOD: &str = r#"{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry","cacheDuration":"30s","auth":{"reg.io":{"username":"u","password":"p"}}}"#;

    async fn ask(folder: &Folder, script: &str) -> Result<Response, String> {
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        folder.plugin(script).ask("reg.io/web", "tok", &annotations).await
    }

    #[tokio::test]
    async fn a_plugin_reads_its_request_and_is_understood() {
        let folder = Folder::new();
        let script = format!("cat > \"$OUT\"; echo \"$1 $WORD $HOME\" >> \"$OUT\"; echo '{GOOD}'");
        let response = ask(&folder, &script).await.unwrap();
        assert_eq!((response.reach, response.keep_for), (Reach::Registry, Some(Span::seconds(30))));
        assert_eq!(response.auth.get("reg.io").unwrap().password, "p");
        let home = std::env::var("HOME").unwrap_or_default();
        assert_eq!(
            std::fs::read_to_string(folder.out()).unwrap(),
            format!(
                "{{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"image\":\"reg.io/web\",\"serviceAccountToken\":\"tok\",\"serviceAccountAnnotations\":{{\"a\":\"b\"}}}}\nget word {home}\n"
            )
        );
    }

    #[tokio::test]
    async fn what_goes_wrong_is_told_without_what_was_said() {
        let folder = Folder::new();
        let failed = ask(&folder, "echo secret; echo no such account >&2; exit 3").await.unwrap_err();
        assert_eq!(
            failed,
            "error execing credential provider plugin web for image reg.io/web: exit status 3: no such account\n"
        );
        let version = GOOD.replace("/v1\"", "/v1beta1\"");
        assert_eq!(
            ask(&folder, &format!("echo '{version}'")).await.unwrap_err(),
            "apiVersion from credential plugin response did not match expected apiVersion:credentialprovider.kubelet.k8s.io/v1, actual apiVersion:credentialprovider.kubelet.k8s.io/v1beta1"
        );
        let unknown = GOOD.replace("username", "secret");
        for bad in [unknown.as_str(), &GOOD.replace("Response", "Request")] {
            assert_eq!(
                ask(&folder, &format!("echo '{bad}'")).await.unwrap_err(),
                "error decoding credential provider plugin response from stdout"
            );
        }
        let pod = GOOD.replace("Registry", "Pod");
        assert_eq!(
            ask(&folder, &format!("echo '{pod}'")).await.unwrap_err(),
            "credential provider plugin did not return a valid cacheKeyType: Pod"
        );
        assert!(
            ask(&folder, "echo '[]'").await.unwrap_err().starts_with("error reading GVK from response: ")
        );
        assert_eq!(folder.errors(), 1.0);
    }
}
