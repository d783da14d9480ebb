//! `/logs/?query=…` with a journalctl that is a shell script.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;

/// Knows the unit kubelet, and repeats how it was asked.
const JOURNALCTL: &str = "#!/bin/sh\nif [ \"$1\" = --field ]; then echo kubelet.service; exit; fi\necho journal $*\n\
                          echo hint >&2\n";

fn server(folder: &Path, journalctl: &str) -> Server {
    let path = folder.join("journalctl");
    std::fs::write(&path, journalctl).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let logs = folder.join("log");
    std::fs::create_dir_all(logs.join("web")).unwrap();
    for (name, text) in [("foo.log", "of foo\n"), ("plain", "of plain\n"), ("web/web.log", "of web\n")] {
        std::fs::write(logs.join(name), text).unwrap();
    }
    let client_ca = ClientCa::new(authority("ca").pem().as_bytes()).unwrap();
    let how = Authentication { client_ca, tokens_for: None, anonymous: true };
    let sources = sources(folder, no_runtime());
    let settings = Settings { system_log_query: true, journalctl: path, node_logs: logs, ..settings(folder) };
    Server::new(settings, sources, how, Mode::AlwaysAllow, None).unwrap()
}

async fn ask(server: &Server, path: &str) -> (u16, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = serve(server.inner.clone(), Door::ReadWrite(Vec::new().into()), request).await;
    let (status, text) = said(answer).await;
    (status, text)
}

#[tokio::test]
async fn logs_of_services_come_from_the_journal_or_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), JOURNALCTL);
    let (status, text) = ask(&server, "/logs/?query=kubelet&tailLines=3").await;
    assert_eq!(status, 200);
    let journal = "journal --utc --no-pager --output=short-precise --pager-end --lines=3 --unit=kubelet\n";
    assert!(text.contains(journal) && text.contains("hint\n"), "{text}");
    for (query, found) in [
        ("foo", "of foo\n"),
        ("plain", "of plain\n"),
        ("web", "of web\n"),
        ("none", "\nlog not found for none\n"),
        ("foo&query=web", "of foo\nof web\n"),
        (
            "foo&boot=0",
            "\noptions present and query resolved to log files for [foo]\ntry without specifying options\n",
        ),
    ] {
        assert_eq!(ask(&server, &format!("/logs/?query={query}")).await, (200, found.to_owned()), "{query}");
    }
    let (_, both) = ask(&server, "/logs?query=foo&query=kubelet").await;
    // Its two outputs come as they come.
    assert!(both.contains("journal --utc") && both.ends_with("of foo\n"), "{both}");
    assert_eq!(ask(&server, "/logs/?query=/web/web.log").await, (200, "of web\n".to_owned()));
    assert_eq!(ask(&server, "/logs/?query=web%5Cweb.log").await, (200, "of web\n".to_owned()));
    assert_eq!(ask(&server, "/logs/foo.log").await, (200, "of foo\n".to_owned()));
}

#[tokio::test]
async fn queries_that_are_wrong_are_refused_as_upstream_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), JOURNALCTL);
    let there = folder.path().join("log/none.log");
    let missing = format!("stat {}: no such file or directory", there.display());
    for (path, status, text) in [
        ("/logs/?query=", 400, "query: Invalid value: [\"\"]: query cannot be empty\n".to_owned()),
        ("/logs/web/?query=kubelet", 406, "path not allowed in query mode\n".to_owned()),
        ("/logs/?boot=1", 406, "[query: Required value: cannot be empty with options, boot: Invalid value: 1: must be less than 1]\n".to_owned()),
        ("/logs/?query=/none.log", 406, format!("query: Invalid value: [\"/none.log\"]: {missing}\n")),
    ] {
        assert_eq!(ask(&server, path).await, (status, text), "{path}");
    }
    assert_eq!(ask(&server, "/logs/?query=/../journalctl").await.0, 406, "nothing outside the folder");
}

#[tokio::test]
async fn without_a_journal_there_are_files() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), "#!/bin/sh\nexit 1\n");
    assert_eq!(ask(&server, "/logs/?query=foo").await, (200, "of foo\n".to_owned()));
    std::fs::remove_file(folder.path().join("journalctl")).unwrap();
    assert_eq!(ask(&server, "/logs/?query=foo").await, (200, "of foo\n".to_owned()));
}

#[tokio::test]
async fn a_log_is_compressed_for_who_takes_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path(), JOURNALCTL);
    for (accepts, zipped) in [("gzip", true), ("gzip, deflate", false)] {
        let request = Request::get("/logs/?query=foo").header("accept-encoding", accepts);
        let request = request.body(Body::empty()).unwrap();
        let answer = serve(server.inner.clone(), Door::ReadWrite(Vec::new().into()), request).await;
        assert_eq!(answer.headers()["content-type"], "text/plain;charset=UTF-8");
        assert_eq!(answer.headers().get("content-encoding").is_some(), zipped);
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let text = if zipped {
            std::io::read_to_string(flate2::read::GzDecoder::new(&*bytes)).unwrap()
        } else {
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        assert_eq!(text, "of foo\n");
    }
}

/// The reader goes in the middle of a log that never ends.
#[tokio::test]
async fn journalctl_ends_with_its_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --field ]; then echo kubelet.service; exit; fi\necho $$ > {}\nexec yes\n",
        pid.display()
    );
    let server = server(folder.path(), &script);
    let request = Request::get("/logs/?query=kubelet").body(Body::empty()).unwrap();
    let answer = serve(server.inner.clone(), Door::ReadWrite(Vec::new().into()), request).await;
    let mut pieces = answer.into_body().into_data_stream();
    assert!(futures_util::StreamExt::next(&mut pieces).await.unwrap().unwrap().starts_with(b"y\ny\n"));
    drop(pieces);
    let process = format!("/proc/{}/stat", std::fs::read_to_string(pid).unwrap().trim());
    let runs = || std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z"));
    for _ in 0..500 {
        if !runs() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it runs on");
}
