//! Names of cipher suites as operators write them. Pure: owns which names there are and what TLS
//! library calls one; never chooses one. Called by [`super::listen`] and the wiring.

/// Made by tests/go/kubelet.
const KNOWN: &str = include_str!("../../src/config/upstream/ciphers.txt");

/// Names from before their hash was named.
const LEGACY: &str = "_WITH_CHACHA20_POLY1305";

/// Whether upstream knows all of them.
///
/// # Errors
/// In its words.
pub fn check(names: &[String]) -> Result<(), String> {
    match names.iter().find(|name| !KNOWN.lines().any(|known| known == *name)) {
        Some(name) => Err(format!("Cipher suite {name} not supported or doesn't exist")),
        None => Ok(()),
    }
}

/// As IANA has it.
pub(super) fn iana(name: &str) -> String {
    if name.ends_with(LEGACY) { format!("{name}_SHA256") } else { name.to_owned() }
}

/// Those of TLS 1.3 name no key exchange, and nobody can choose them.
pub(super) fn is_13(name: &str) -> bool {
    !name.contains("_WITH_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_that_nobody_knows_is_told_in_upstreams_words() {
        let known = ["TLS_RSA_WITH_RC4_128_SHA", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"].map(str::to_owned);
        assert_eq!(check(&known), Ok(()));
        let told = check(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA".to_owned()]).unwrap_err();
        assert_eq!(told, "Cipher suite TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA not supported or doesn't exist");
    }
}
