//! Files as kubeadm, e2e tests and people write them.

use gantry_base::error::chain;

use super::*;

fn read_text(text: &str) -> Result<Access, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    fs::write(&path, text).unwrap();
    read(&path).map_err(|error| chain(&error))
}

fn with(cluster: &str, user: &str) -> Result<Access, String> {
    read_text(&format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts:\n- name: x\n  context: {{cluster: c, user: u}}\n\
         clusters:\n- name: c\n  cluster: {{server: 'https://10.0.0.1:6443', {cluster}}}\nusers:\n- name: u\n  user: \
         {{{user}}}\n"
    ))
}

#[test]
fn credentials_of_every_kind_are_read() {
    let access = with("certificate-authority-data: Y2E=", "token: t").unwrap();
    assert_eq!(access.trust, Trust::Data(b"ca".to_vec()));
    assert_eq!(access.user.authorization, Some(Authorization::Header("Bearer t".to_owned())));
    let access = with("insecure-skip-tls-verify: true", "username: a, password: b").unwrap();
    assert_eq!(access.trust, Trust::Anybody);
    assert_eq!(access.user.authorization, Some(Authorization::Header("Basic YTpi".to_owned())));
    let access = with(
        "certificate-authority: ca.crt, tls-server-name: api",
        "client-certificate: c.pem, client-key: /k.pem",
    )
    .unwrap();
    let Trust::File(ca) = access.trust else { panic!("{:?}", access.trust) };
    assert!(ca.is_absolute() && ca.ends_with("ca.crt"), "seen from the file's folder: {}", ca.display());
    assert_eq!(access.server_name.as_deref(), Some("api"));
    let Some(Certificate::Files { certificate, key }) = access.user.certificate else { panic!() };
    assert!(certificate.ends_with("c.pem") && key == Path::new("/k.pem"));
    assert!(matches!(
        with("", "tokenFile: /t").unwrap().user.authorization,
        Some(Authorization::TokenFile(_))
    ));
    assert_eq!(with("", "").unwrap().trust, Trust::System);
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    let wrong = |cluster: &str, user: &str, text: &str| {
        let error = with(cluster, user).unwrap_err();
        assert!(error.contains(text), "{error}");
    };
    wrong("proxy-url: 'ftp://p'", "", "unsupported scheme \"ftp\"");
    wrong("", "exec: {command: x}", "apiVersion must be specified for u to use exec authentication plugin");
    wrong("", "auth-provider: {name: x}", "auth-provider of a user is not supported");
    wrong("", "as: admin", "as of a user is not supported");
    wrong("", "client-certificate: x", "must both be given");
    wrong(
        "insecure-skip-tls-verify: true, certificate-authority: x",
        "",
        "with the insecure flag is not allowed",
    );
    wrong("certificate-authority-data: '%'", "", "certificate-authority-data");
    assert!(read_text("{}").unwrap_err().contains("no current-context"));
    assert!(read_text("current-context: x").unwrap_err().contains("context \"x\" does not exist"));
    assert!(read_text("- a").unwrap_err().contains("is no kubeconfig"));
}

#[test]
fn a_program_stands_back_behind_a_token() {
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}";
    let program = with("", exec).unwrap().user.authorization;
    assert!(matches!(program, Some(Authorization::Program(_))), "{program:?}");
    let both = with("", &format!("token: t, {exec}")).unwrap().user.authorization;
    assert_eq!(both, Some(Authorization::Header("Bearer t".to_owned())));
}

#[test]
fn secrets_are_not_shown() {
    let access = with("", "token: geheim").unwrap();
    assert!(!format!("{access:?}").contains("geheim"));
}

#[test]
fn what_is_written_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sub/kubelet.conf");
    let cluster = "certificate-authority-data: Y2E=, tls-server-name: api, proxy-url: 'http://u:p@h'";
    let access = with(cluster, "token: t").unwrap();
    write(&path, &access, Path::new("/pki/current.pem")).unwrap();
    let again = read(&path).unwrap();
    assert_eq!(
        (&again.server, &again.trust, &again.server_name, &again.proxy),
        (&access.server, &access.trust, &access.server_name, &access.proxy)
    );
    let pem = PathBuf::from("/pki/current.pem");
    let files = Certificate::Files { certificate: pem.clone(), key: pem };
    assert_eq!(again.user, User { certificate: Some(files), authorization: None });
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}
