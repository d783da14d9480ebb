//! What containerd reads from the same files.

use super::*;

fn default() -> Url {
    Url::parse("https://reg.example/v2/").unwrap()
}

/// Writes `certs.d/FOLDER/hosts.toml` and asks for `reg.example:5000`.
fn parse(folder: &str, text: &str) -> Result<Vec<Host>, HostsError> {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join(folder);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("ca.pem"), "CA").unwrap();
    fs::write(path.join("client.pem"), "CERT").unwrap();
    fs::write(path.join("client.key"), "KEY").unwrap();
    fs::write(path.join("hosts.toml"), text).unwrap();
    of_registry(Some(root.path()), "reg.example:5000", &default())
}

fn bases(hosts: &[Host]) -> Vec<&str> {
    hosts.iter().map(|host| host.base.as_str()).collect()
}

#[test]
fn without_a_folder_the_registry_itself_is_asked() {
    let root = tempfile::tempdir().unwrap();
    for folder in [None, Some(root.path())] {
        let hosts = of_registry(folder, "reg.example", &default()).unwrap();
        assert_eq!(bases(&hosts), ["https://reg.example/v2/"]);
        assert!(hosts[0].own && hosts[0].resolve && hosts[0].pull);
    }
}

#[test]
fn mirrors_stand_in_the_order_of_the_file_and_before_the_server() {
    let text = r#"
        server = "https://real.example"
        [host."https://z.example:8443"]
        capabilities = ["pull"]
        [host."http://a.example/some/path?of=nothing#here"]
        capabilities = ["pull", "resolve", "push"]
        [host."b.example/api"]
        override_path = true
        [host."b.example/api".header]
        x-one = "1"
        x-two = ["2", "3"]
    "#;
    for folder in ["reg.example_5000_", "reg.example:5000", "_default"] {
        let hosts = parse(folder, text).unwrap();
        assert_eq!(
            bases(&hosts),
            [
                "https://z.example:8443/v2/",
                "http://a.example/some/path/v2/",
                "https://b.example/api/",
                "https://real.example/v2/"
            ]
        );
        assert_eq!(hosts.iter().map(|host| host.own).collect::<Vec<_>>(), [false, false, false, true]);
        assert!(!hosts[0].resolve && hosts[0].pull && hosts[1].resolve);
        assert_eq!(hosts[2].headers.get_all("x-two").iter().count(), 2);
    }
}

#[test]
fn the_exact_folder_wins_over_the_default() {
    let root = tempfile::tempdir().unwrap();
    for (folder, server) in [("_default", "https://d.example"), ("reg.example", "https://r.example")] {
        fs::create_dir(root.path().join(folder)).unwrap();
        fs::write(root.path().join(folder).join("hosts.toml"), format!("server = {server:?}")).unwrap();
    }
    let of = |domain: &str| of_registry(Some(root.path()), domain, &default()).unwrap();
    assert_eq!(bases(&of("reg.example")), ["https://r.example/v2/"]);
    assert_eq!(bases(&of("other.example")), ["https://d.example/v2/"]);
}

#[test]
fn certificates_are_read_in_every_form() {
    for (client, want) in [
        ("\"client.pem\"", "CERT"),
        ("[\"client.pem\"]", "CERT"),
        ("[[\"client.pem\", \"client.key\"]]", "CERT\nKEY"),
    ] {
        for ca in ["\"ca.pem\"", "[\"ca.pem\", \"ca.pem\"]"] {
            let text = format!("ca = {ca}\nclient = {client}\nskip_verify = true\ndial_timeout = \"1m2s\"");
            let hosts = parse("_default", &text).unwrap();
            assert_eq!(hosts[0].tls.authorities[0], b"CA");
            assert_eq!(hosts[0].tls.client.as_deref(), Some(want.as_bytes()), "{client}");
            assert!(hosts[0].tls.skip_verify);
            assert_eq!(hosts[0].dial_timeout, Some(Duration::from_secs(62)));
        }
    }
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("reg.example");
    fs::create_dir(&folder).unwrap();
    for (name, text) in [("a.crt", "CA"), ("c.cert", "CERT"), ("c.key", "KEY")] {
        fs::write(folder.join(name), text).unwrap();
    }
    let hosts = of_registry(Some(root.path()), "reg.example", &default()).unwrap();
    assert_eq!(hosts[0].tls.authorities, [b"CA"]);
    assert_eq!(hosts[0].tls.client.as_deref(), Some(&b"CERT\nKEY"[..]));
}

#[test]
fn what_makes_no_sense_is_refused_with_file_and_key() {
    for (text, want) in [
        ("server = ", "does not parse"),
        ("server = 7", "server: want a string"),
        ("host = 7", "host: want tables"),
        ("[host.\"x y\"]", "not a URL"),
        ("[host.\"ftp://x\"]", "want http:// or https://"),
        ("[host.\"https://u:p@x\"]", "credentials belong"),
        ("capabilities = [\"fly\"]", "unknown capability \"fly\""),
        ("skip_verify = \"no\"", "the server"),
        ("ca = \"none.pem\"", "none.pem"),
        ("dial_timeout = \"soon\"", "dial_timeout"),
        // Each a number, but not their sum.
        ("dial_timeout = \"18446744073709551615s18446744073709551615s\"", "dial_timeout"),
        ("[header]\n\"a b\" = \"c\"", "can't be sent"),
    ] {
        let error = parse("_default", text).unwrap_err().to_string();
        assert!(error.contains("_default") && error.contains(want), "{text}: {error}");
    }
}
