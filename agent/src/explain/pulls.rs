//! Why an image does not come. Pure: what the runtime said and whether the registry answers in, a
//! cause and a remedy out. Called by [`super::decide`].

use super::look::registry_of;

/// Cause and remedy.
pub(super) fn explain(image: &str, said: &str, registry: Option<&Result<(), String>>) -> (String, String) {
    let text = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let host = registry_of(image).unwrap_or_default();
    if let Some(Err(error)) = registry {
        return (
            format!("nothing answers at the registry {host} now: {error}"),
            format!(
                "check that the registry runs and that this machine reaches {host}; a mirror is set in certs.d/<host>/hosts.toml"
            ),
        );
    }
    if has(&["no space left", "disk quota", "enospc"]) {
        return (
            "the disk of the image store is full".to_owned(),
            "make room: `gantry rmi IMAGE` removes images, `gantry doctor` shows the space left".to_owned(),
        );
    }
    if has(&["digest", "does not match", "corrupt", "truncated"]) && !has(&["not found"]) {
        return (
            format!("the registry {host} sent bytes that are not what the image's digests promise"),
            "push the image again, or look at the mirror or proxy between here and the registry".to_owned(),
        );
    }
    if has(&["signature validation", "signaturevalidationfailed"]) {
        return (
            format!("the signature of {image} is missing, or not by a key that this node trusts"),
            "sign the image, or give the runtime's signature policy its key".to_owned(),
        );
    }
    if has(&["unauthorized", "401", "denied", "403", "forbidden"]) {
        return (
            format!("the registry {host} wants other credentials for {image}"),
            "give the pod an imagePullSecret, or the node a config.json; a registry also says this of names that do not exist".to_owned(),
        );
    }
    if has(&["certificate", "tls", "handshake", "unknown issuer"]) {
        return (
            format!("the certificate of {host} is not trusted, or it speaks plain HTTP"),
            format!(
                "put the CA into certs.d/{host}/hosts.toml, or an http:// server for a registry without TLS"
            ),
        );
    }
    if has(&["platform", "architecture"]) {
        return (
            format!("{image} is not made for this machine's architecture"),
            "push an image for linux/amd64, or use another tag".to_owned(),
        );
    }
    if has(&["not found", "404", "manifest unknown", "name unknown"]) {
        return (
            format!("the registry {host} answers, but has no image {image}"),
            "check name and tag for typing errors, and that it was pushed there".to_owned(),
        );
    }
    if has(&["resolve", "lookup", "dns", "name or service"]) {
        return (
            format!("the name {host} cannot be resolved"),
            "check the registry's name and /etc/resolv.conf".to_owned(),
        );
    }
    if has(&["refused", "unreachable", "timed out", "timeout", "reset"]) {
        return (
            format!("the registry {host} could not be reached at the last try; it accepts connections now"),
            "wait for the next try, or `gantry pull` it by hand".to_owned(),
        );
    }
    (format!("the pull of {image} failed"), "the runtime's words are below".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_now_goes_before_what_was_said() {
        let down = Err("connection refused".to_owned());
        let (cause, remedy) = explain("127.0.0.1:5000/a", "manifest unknown", Some(&down));
        assert!(cause.contains("127.0.0.1:5000") && cause.contains("refused"), "{cause}");
        assert!(remedy.contains("hosts.toml"));
        let (cause, _) = explain("127.0.0.1:5000/a", "connection refused", Some(&Ok(())));
        assert!(cause.contains("accepts connections now"), "{cause}");
    }

    #[test]
    fn each_failure_has_its_own_remedy() {
        let mut remedies = std::collections::BTreeSet::new();
        for said in [
            "manifest unknown: not found",
            "401 Unauthorized",
            "write layer: No space left on device",
            "layer digest does not match",
            "invalid peer certificate: UnknownIssuer",
            "no image for platform linux/amd64",
            "image pull failed for a because the signature validation failed: no signature",
            "failed to lookup address",
        ] {
            assert!(remedies.insert(explain("reg.test/a:1", said, Some(&Ok(()))).1), "{said}");
        }
    }
}
