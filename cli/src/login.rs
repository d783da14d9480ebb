//! `gantry login` and `gantry logout`: a registry's credentials in docker's `config.json`, where pulls find them. Owns
//! the order (the file can keep them, the registry accepts them, they are kept) and the words; how they are shown to a
//! registry and how they are kept is the image crate's. Called by main.

mod ask;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use gantry_image::login::{self, Domain, LoginVerdict};
use gantry_image::{Auth, RegistryError};

use crate::args::{LoginArgs, LogoutArgs};
use crate::{output, runtime};
use ask::{LoginCredentials, Password};

/// As a shell reports a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

pub(crate) async fn login(args: LoginArgs) -> Result<ExitCode> {
    let LoginArgs { registry, username, password, password_stdin, registry_auth_file, registry_hosts_dir } =
        args;
    let domain: Domain = registry.parse()?;
    let file = auth_file(registry_auth_file)?;
    // Before anybody types a password for nothing.
    login::check_file(&file, &domain)?;
    let password = match password {
        Some(password) => {
            output::say("WARNING! Using --password via the CLI is insecure. Use --password-stdin.");
            Password::Given(password)
        }
        None if password_stdin => Password::Stdin,
        None => Password::Terminal,
    };
    let Some(asked) = ask::credentials(username, password).await? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    check_and_keep(&domain, asked, &file, &registry_hosts_dir).await?;
    output::print(b"Login Succeeded\n")?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn logout(args: LogoutArgs) -> Result<ExitCode> {
    let LogoutArgs { registry, registry_auth_file } = args;
    let domain: Domain = registry.parse()?;
    let text = match login::forget(&auth_file(registry_auth_file)?, &domain)? {
        true => format!("Removing login credentials for {domain}\n"),
        false => format!("Not logged in to {domain}\n"),
    };
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The file that pulls of `gantry run` read, too.
fn auth_file(named: Option<PathBuf>) -> Result<PathBuf> {
    named.or_else(runtime::own_auth_file).context("HOME is not set: name a file with --registry-auth-file")
}

async fn check_and_keep(
    domain: &Domain,
    asked: LoginCredentials,
    file: &Path,
    hosts_dir: &Path,
) -> Result<()> {
    let LoginCredentials { username, password } = asked;
    if username.contains(':') {
        bail!("a user name with a colon can't be sent to a registry (RFC 7617)");
    }
    let auth = Auth { username: username.clone(), password: password.0.clone(), ..Auth::default() };
    match login::check(domain, &auth, Some(hosts_dir)).await {
        Ok(LoginVerdict::Accepted) => {}
        Ok(LoginVerdict::NotAsked) => output::say(&format!(
            "WARNING! {domain} asks for no credentials: nobody has checked the user name and the password."
        )),
        Err(error) => return Err(refusal_error(domain, error)),
    }
    login::remember(file, domain, &username, &password.0)?;
    output::say(&format!("WARNING! Your credentials are stored unencrypted in '{}'.", file.display()));
    Ok(())
}

/// Why there is no login, and what to do.
fn refusal_error(domain: &Domain, error: RegistryError) -> anyhow::Error {
    match error {
        RegistryError::Unauthorized { status, detail, .. } => anyhow!(
            "{domain} refuses this user name and password ({status}: {}): correct them; an account with a second \
             factor wants an access token in place of the password",
            output::one_line(&detail)
        ),
        error => anyhow::Error::from(error).context(format!("log in to {domain}")),
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::{HeaderMap, StatusCode};
    use axum::response::IntoResponse;
    use axum::routing::get;
    use tokio::net::TcpListener;

    use super::*;
    use crate::args::Secret;

    /// A registry on loopback that knows `user` with `pass`.
    async fn registry() -> Domain {
        let answer = |headers: HeaderMap| async move {
            match headers.get("authorization").is_some_and(|value| value == "Basic dXNlcjpwYXNz") {
                true => StatusCode::OK.into_response(),
                false => {
                    let words = r#"{"errors":[{"code":"UNAUTHORIZED","message":"no\u001b[1m"}]}"#;
                    (StatusCode::UNAUTHORIZED, [("www-authenticate", "Basic realm=\"x\"")], words)
                        .into_response()
                }
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/v2/", get(answer));
        tokio::spawn(async move { axum::serve(listener, app).await });
        address.to_string().parse().unwrap()
    }

    fn asked(password: &str) -> LoginCredentials {
        LoginCredentials { username: "user".to_owned(), password: Secret(password.to_owned()) }
    }

    #[tokio::test]
    async fn what_a_registry_accepts_is_kept_and_what_it_refuses_is_not() {
        let (folder, domain) = (tempfile::tempdir().unwrap(), registry().await);
        let file = folder.path().join("config.json");
        std::fs::write(&file, r#"{"auths": {"other.io": {"auth": "eDp5"}}}"#).unwrap();
        let before = std::fs::read(&file).unwrap();
        let error = check_and_keep(&domain, asked("hunter2"), &file, folder.path()).await.unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with(&format!("{domain} refuses this user name and password (401: ")), "{text}");
        assert!(
            text.contains("access token") && !text.contains("hunter2") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert_eq!(std::fs::read(&file).unwrap(), before);
        check_and_keep(&domain, asked("pass"), &file, folder.path()).await.unwrap();
        let now: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(now["auths"][domain.as_str()]["auth"], "dXNlcjpwYXNz");
        assert_eq!(now["auths"]["other.io"]["auth"], "eDp5");
    }

    #[tokio::test]
    async fn a_registry_that_is_not_there_is_no_login() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        // Bound and dropped: nobody listens.
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let domain = format!("127.0.0.1:{port}").parse().unwrap();
        let error = check_and_keep(&domain, asked("pass"), &file, folder.path()).await.unwrap_err();
        assert!(
            format!("{error:#}").starts_with(&format!("log in to {domain}: registry unreachable: ")),
            "{error:#}"
        );
        let colon = LoginCredentials { username: "a:b".to_owned(), ..asked("pass") };
        assert!(check_and_keep(&domain, colon, &file, folder.path()).await.is_err());
        assert!(!file.exists());
    }
}
