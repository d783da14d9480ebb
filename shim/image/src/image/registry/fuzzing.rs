//! What must hold for any hosts.toml and config.json: they are read from a folder as on a node. Called by
//! `image::fuzzing`.

#![expect(clippy::disallowed_methods, reason = "what a fuzzer is fed with")]

use std::fs;

use reqwest::Url;

use super::{DockerConfigError, docker_config as config, hosts as toml};
use crate::image::auth::Credentials;
use gantry_shim_testing::place::ScratchFolder;

const DOMAIN: &str = "reg.example:5000";

/// `certs.d/reg.example_5000_/hosts.toml`, beside certificates that it may name.
pub fn hosts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(default) = Url::parse("https://reg.example:5000/v2/") else { return };
    let folder = ScratchFolder::new("hosts");
    let own = folder.join("reg.example_5000_");
    let written =
        fs::create_dir_all(&own).and_then(|()| fs::write(own.join("hosts.toml"), text)).and_then(|()| {
            ["ca.crt", "client.cert", "client.key"].iter().try_for_each(|f| fs::write(own.join(f), f))
        });
    assert!(written.is_ok(), "{written:?}");
    let found = match toml::of_registry(Some(&folder), DOMAIN, &default) {
        Ok(found) => found,
        Err(error) => {
            assert!(error.to_string().contains("hosts.toml") || error.to_string().starts_with("read "));
            return;
        }
    };
    let (last, mirrors) = match found.split_last() {
        Some(parts) => parts,
        None => unreachable!("no place to ask"),
    };
    assert!(
        last.own && mirrors.iter().all(|mirror| !mirror.own),
        "a mirror would see the pull's credentials"
    );
    for host in &found {
        let base = &host.base;
        assert!(
            matches!(base.scheme(), "http" | "https") && base.host_str().is_some_and(|host| !host.is_empty())
        );
        assert!(base.username().is_empty() && base.password().is_none() && base.path().ends_with('/'));
        // API paths are appended to it.
        assert!(base.query().is_none() && base.fragment().is_none(), "{base}");
        assert_eq!(Url::parse(base.as_str()).as_ref(), Ok(base));
        assert!(!format!("{:?}", host.tls).contains("client.key"));
    }
}

/// Credentials of one host.
pub(crate) fn docker_config(text: &str) {
    let folder = ScratchFolder::new("docker");
    let path = folder.join("config.json");
    let written = fs::create_dir_all(&*folder).and_then(|()| fs::write(&path, text));
    assert!(written.is_ok(), "{written:?}");
    for host in [DOMAIN, "docker.io"] {
        match config::credentials(&path, host) {
            // The text is not repeated: it may hold passwords.
            Err(error @ (DockerConfigError::Parse { .. } | DockerConfigError::Auth { .. })) => {
                assert!(!error.to_string().contains("hunter2"));
            }
            Err(error) => assert!(error.to_string().contains("config.json")),
            Ok(Credentials::Basic { .. }) => assert!(text.contains("auths")),
            Ok(_) => {}
        }
    }
}
