//! What a credential program answers. Pure but for parsing: owns the format and the words of what is wrong with it;
//! never keeps it, and shows nothing of it. Called by [`super`].

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::identity::Pair;

/// What it gave.
#[derive(Clone, Default)]
pub(super) struct Answer {
    pub(super) token: String,
    pub(super) certificate: Option<Arc<Pair>>,
    /// When it is no good any more; for ever without one.
    pub(super) until: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<Timestamp>,
    token: String,
    client_certificate_data: String,
    client_key_data: String,
}

/// Reads the answer of a program that speaks this version.
///
/// # Errors
/// In upstream's words, without a piece of the answer.
pub(super) fn read(stdout: &[u8], api_version: &str) -> Result<Answer, String> {
    // serde would quote what it found.
    let broken = |what: &str| format!("decoding stdout: {what}");
    let value: Value =
        serde_json::from_slice(stdout).map_err(|_| broken("couldn't get version/kind; json parse error"))?;
    if !value.is_object() {
        return Err(broken("couldn't get version/kind; json parse error"));
    }
    let wire: Wire = serde_json::from_value(value).map_err(|_| broken("a field of the wrong type"))?;
    if wire.kind != "ExecCredential" {
        return Err(broken(&format!(
            "no kind {:?} is registered for version {:?}",
            wire.kind, wire.api_version
        )));
    }
    if wire.api_version != api_version {
        return Err(format!(
            "exec plugin is configured to use API version {api_version}, plugin returned version {}",
            wire.api_version
        ));
    }
    let status = wire.status.ok_or("exec plugin didn't return a status field")?;
    let (certificate, key) = (status.client_certificate_data, status.client_key_data);
    if status.token.is_empty() && certificate.is_empty() && key.is_empty() {
        return Err("exec plugin didn't return a token or cert/key pair".to_owned());
    }
    if certificate.is_empty() != key.is_empty() {
        return Err("exec plugin returned only certificate or key, not both".to_owned());
    }
    let pair = if certificate.is_empty() {
        None
    } else {
        let pair = Pair::parse(certificate.as_bytes(), key.as_bytes());
        Some(Arc::new(pair.map_err(|error| {
            format!("failed parsing client key/certificate: {}", gantry_base::error::chain(&error))
        })?))
    };
    Ok(Answer { token: status.token, certificate: pair, until: status.expiration_timestamp })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const V1: &str = "client.authentication.k8s.io/v1";

    fn answer(status: &Value) -> Result<Answer, String> {
        let text = json!({ "kind": "ExecCredential", "apiVersion": V1, "status": status }).to_string();
        read(text.as_bytes(), V1)
    }

    #[test]
    fn a_token_counts_until_its_time() {
        let found = answer(&json!({ "token": "t", "expirationTimestamp": "2030-01-01T00:00:00Z" })).unwrap();
        assert_eq!((found.token.as_str(), found.certificate.is_none()), ("t", true));
        assert_eq!(found.until, Some("2030-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(answer(&json!({ "token": "t" })).unwrap().until, None);
    }

    #[test]
    fn what_is_wrong_is_told_without_the_secret() {
        let wrong = |answer: Result<Answer, String>| answer.err().unwrap();
        assert_eq!(wrong(answer(&Value::Null)), "exec plugin didn't return a status field");
        assert_eq!(wrong(answer(&json!({}))), "exec plugin didn't return a token or cert/key pair");
        assert_eq!(
            wrong(answer(&json!({ "clientKeyData": "secret" }))),
            "exec plugin returned only certificate or key, not both"
        );
        let error = wrong(answer(&json!({ "clientKeyData": "secret", "clientCertificateData": "secret" })));
        assert!(error.starts_with("failed parsing client key/certificate: "), "{error}");
        let beta = json!({ "kind": "ExecCredential", "apiVersion": format!("{V1}beta1"), "status": { "token": "t" } });
        assert_eq!(
            wrong(read(beta.to_string().as_bytes(), V1)),
            format!("exec plugin is configured to use API version {V1}, plugin returned version {V1}beta1")
        );
        for text in ["secret", "[]", "\"secret\"", r#"{"kind":"Pod"}"#, r#"{"status":{"token":["secret"]}}"#]
        {
            let error = wrong(read(text.as_bytes(), V1));
            assert!(error.starts_with("decoding stdout: ") && !error.contains("secret"), "{error}");
        }
    }
}
