//! What the settings of the server do.

use super::*;
use gantry_model::drain;

/// The other kind's entries are old at once.
#[tokio::test]
async fn an_answer_is_kept_as_long_as_answers_of_its_kind_are() {
    for (allowed, denied, asked) in [(300, 0, 1 + 3), (0, 300, 3 + 1)] {
        let (allowed_for, denied_for) = (Duration::from_secs(allowed), Duration::from_secs(denied));
        let house = house(false, Mode::Webhook { allowed_for, denied_for }).await;
        let bob = house.certificate("may-stats");
        for _ in 0..3 {
            assert_eq!(house.ask("GET", "/logs/", &bob).await.0, 403);
            assert_eq!(house.ask("GET", "/metrics", &token("may-metrics")).await.0, 200);
        }
        assert_eq!(house.asked.lock().unwrap().access.len(), asked);
    }
}

#[tokio::test]
async fn a_token_is_nobodys_where_no_reviewer_is_asked() {
    let client_ca = ClientCa::new(authority("ca").pem().as_bytes()).unwrap();
    let how = Authentication { client_ca, tokens_for: None, anonymous: false };
    let folder = tempfile::tempdir().unwrap();
    let sources = sources(folder.path(), no_runtime());
    let server = Server::new(settings(folder.path()), sources, how, Mode::AlwaysAllow, None).unwrap();
    let request = Request::get("/pods").header("authorization", "Bearer of-bob").body(Body::empty()).unwrap();
    assert_eq!(
        said(serve(server.inner.clone(), Door::ReadWrite(Vec::new().into()), request).await).await.0,
        401
    );
}

/// The period's end is what it waits for; 0 is never.
#[tokio::test(start_paused = true)]
async fn volumes_are_measured_once_in_a_period() {
    for (period, times) in [(30, 4), (0, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let sources = sources(folder.path(), no_runtime());
        let settings =
            stats::Settings { volume_period: Duration::from_secs(period), ..stats_of(folder.path()) };
        let stats = stats::Stats::new(settings).unwrap();
        let (_trigger, drain) = drain::token();
        let mut measured = 0;
        let looks = async {
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                measured += usize::from(stats.forget_volumes());
            }
        };
        tokio::select! {
            // Neither is gone on with: the test is over with the first.
            () = stats.run(sources.stats_sources(), drain) => unreachable!("nobody ends it"),
            () = looks => {}
        }
        assert_eq!(measured, times, "every {period} s");
    }
}

#[tokio::test]
async fn cgroups_of_the_runtime_are_told_as_its_own() {
    let folder = tempfile::tempdir().unwrap();
    for (runtime_cgroups, told) in [("/", true), ("", false)] {
        let settings =
            stats::Settings { runtime_cgroups: runtime_cgroups.to_owned(), ..stats_of(folder.path()) };
        let names = stats::Stats::new(settings).unwrap().system_containers().await;
        assert_eq!(names.contains(&"runtime".to_owned()), told, "{names:?}");
    }
}
