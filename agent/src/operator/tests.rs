//! The operator API over its real socket, with pods on the fake runtime.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gantry_model::clock::SystemClock;
use gantry_model::pod::{Pod, PodUid};
use gantry_proto::operator::operator_client::OperatorClient;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::socket::{Error, Socket};
use super::*;
use crate::logs::dir::LogDir;
use crate::node::NodeInfo;
use crate::pod::tests::{deps, node_info, pod as a_pod};
use crate::pod_workers::PodWorkers;
use crate::runtime::fake::FakeRuntime;
use crate::timeline::Span;
use crate::volumes::fake::FakeVolumes;

fn agent(runtime: &FakeRuntime, folder: &Path) -> PodWorkers {
    let logs = Arc::new(LogDir::new(folder.join("logs")));
    PodWorkers::start(vec![a_pod()], deps(runtime, logs, Arc::new(SystemClock::new())))
}

fn sources(agent: &PodWorkers) -> OperatorDeps {
    OperatorDeps {
        pods: agent.watch_pods(),
        node: Arc::new(NodeInfo { name: "node-1".into(), ..node_info() }),
        clock: Arc::new(SystemClock::new()),
        runtime: None,
        pulls: None,
        volumes: Arc::new(FakeVolumes::default()),
        additions: None,
        ending: watch::channel(Ending::Not).0,
    }
}

async fn dial(path: &Path) -> OperatorClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
    OperatorClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn pods_are_listed_stopped_and_their_stages_shown() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(&["reg/img:v1"]);
    let agent = agent(&runtime, folder.path());
    let path = folder.path().join("deep/agent.sock");
    let socket = Socket::bind(&path).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(socket.serve(sources(&agent), async {
        let _ = stopped.await;
    }));
    let mut client = dial(&path).await;
    agent.pods().first().unwrap().wait(|s| s.reason == "Running").await;
    assert!(folder.path().join("logs/default_web_uid-1").exists());

    let pods = client.list_pods(wire::ListPodsRequest::default()).await.unwrap().into_inner().pods;
    let seen = pods.first().unwrap();
    assert_eq!((seen.name.as_str(), seen.phase.as_str(), seen.ip.as_str()), ("web", "Running", "10.88.0.2"));
    assert_eq!(seen.containers.first().unwrap().log_path, "/logs/web/0.log");

    let ask = wire::GetTimelineRequest { namespace: String::new(), name: "web".into() };
    let spans = client.get_timeline(ask).await.unwrap().into_inner().spans;
    assert!(spans.iter().any(|s| s.name == "sandbox"), "{spans:?}");

    let ask = wire::StopPodRequest { namespace: "default".into(), name: "none".into(), grace_seconds: None };
    assert_eq!(client.stop_pod(ask).await.unwrap_err().code(), Code::NotFound);
    let ask =
        wire::StopPodRequest { namespace: "default".into(), name: "web".into(), grace_seconds: Some(-1) };
    assert_eq!(client.stop_pod(ask.clone()).await.unwrap_err().code(), Code::InvalidArgument);
    let ask = wire::StopPodRequest { grace_seconds: Some(5), ..ask };
    let pod = client.stop_pod(ask).await.unwrap().into_inner().pod.unwrap();
    let web = pod.containers.first().unwrap();
    assert_eq!((web.state.as_str(), web.exit_code, runtime.residue()), ("terminated", 143, 0));

    let listed = client.list_pods(wire::ListPodsRequest::default()).await.unwrap().into_inner().pods;
    assert!(listed.is_empty(), "a removed pod is not there: {listed:?}");
    let ask = wire::StopPodRequest { namespace: "default".into(), name: "none".into(), grace_seconds: None };
    let refused = client.stop_pod(ask).await.unwrap_err();
    assert_eq!(refused.message(), "this agent has no pod default/none; it has none");

    assert!(!folder.path().join("logs/default_web_uid-1").exists());
    assert!(agent.clean_up().await.is_empty());
    stop.send(()).unwrap();
    drop(client);
    server.await.unwrap().unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_shutdown_takes_along_the_pod_that_was_just_being_added() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(&["reg/img:v1"]);
    let mut agent = agent(&runtime, folder.path());
    let sources = sources(&agent);
    let adds = sources.ending.clone();
    let mut ending = sources.ending.subscribe();
    agent.pods().first().unwrap().wait(|s| s.reason == "Running").await;
    let service = Service { sources };
    let asked = tokio::spawn(async move {
        service.shutdown(Request::new(wire::ShutdownRequest { grace_seconds: Some(1) })).await
    });
    ending.wait_for(|ending| *ending == Ending::Begun).await.unwrap();
    let late = Pod { name: "late".into(), uid: PodUid::parse("uid-2").unwrap(), ..a_pod() };
    agent.apply(vec![a_pod(), late]);
    adds.send_replace(Ending::Closed);
    let answer = asked.await.unwrap().unwrap().into_inner();
    assert_eq!((answer.left_behind, *ending.borrow(), runtime.residue()), (vec![], Ending::Over, 0));
    assert!(agent.pods().iter().all(|handle| handle.status.borrow().life == Life::Gone));
    assert!(agent.clean_up().await.is_empty());
}

#[tokio::test]
async fn a_live_socket_is_refused_a_stale_one_replaced_a_file_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let first = Socket::bind(&path).await.unwrap();
    assert!(matches!(Socket::bind(&path).await, Err(Error::InUse { .. })));
    drop(first);
    assert!(!path.exists());

    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Socket::bind(&path).await.unwrap());

    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Socket::bind(&path).await, Err(Error::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_worker_has_ended_is_told_once_not_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(&["reg/img:v1"]);
    let agent = agent(&runtime, folder.path());
    let handle = agent.pods().first().unwrap().clone();
    handle.remove();
    handle.wait(|s| s.life == Life::Gone).await;
    while !handle.is_done() {
        tokio::task::yield_now().await;
    }
    let (sender, mut lists) = mpsc::channel(16);
    let following = tokio::spawn(follow(agent.watch_pods(), "node-1".into(), false, sender));
    lists.recv().await.unwrap();
    let more = tokio::time::timeout(Duration::from_secs(3600), lists.recv()).await;
    assert!(more.is_err(), "{more:?}");
    following.abort();
}

#[test]
fn a_pull_under_way_says_in_the_timeline_how_far_it_is() {
    let pulls = Pulls::default();
    let span =
        Span { name: "image".into(), container: "web".into(), start: 1, end: 0, detail: "reg/web".into() };
    let shown = |end| form::span(&Span { end, ..span.clone() }, Some(&pulls)).detail;
    assert_eq!(shown(0), "reg/web");
    let _pull = pulls.begin("reg/web:latest");
    assert_eq!((shown(0), shown(2)), ("reg/web: resolving".into(), "reg/web".into()));
}

#[tokio::test]
async fn manifests_reach_whoever_owns_the_pods_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = FakeRuntime::new(&["reg/img:v1"]);
    let agent = agent(&runtime, folder.path());
    let text =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: more}\nspec:\n  containers:\n  - {name: c, image: i}\n";
    let ask = |text: &str| {
        let manifests = vec![wire::Manifest { path: "more.yaml".into(), text: text.into() }];
        Request::new(wire::ApplyManifestsRequest { manifests, replace: true })
    };
    let service = Service { sources: sources(&agent) };
    let refused = service.apply_manifests(ask(text)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "the pods of an API server");

    let (additions, mut asked) = mpsc::channel::<Addition>(1);
    let service = Service { sources: OperatorDeps { additions: Some(additions), ..sources(&agent) } };
    let refused = service.apply_manifests(ask("kind: Nonsense\n")).await.unwrap_err();
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("more.yaml"), "{refused}");
    let owner = async {
        let Addition { loaded, replace, answer } = asked.recv().await.unwrap();
        assert!(replace && loaded.pods.len() == 1);
        let added = additions::Added {
            kind: "pod",
            namespace: "default".into(),
            name: "more".into(),
            change: crate::api::files::Change::Created,
        };
        answer.send(Ok(vec![added])).unwrap();
        // It ends before it answers the next one.
        drop(asked.recv().await.unwrap());
    };
    let asker = async {
        let applied = service.apply_manifests(ask(text)).await.unwrap().into_inner().applied;
        assert_eq!(applied[0].outcome, "created");
        assert_eq!(service.apply_manifests(ask(text)).await.unwrap_err().code(), Code::Unavailable);
    };
    tokio::join!(owner, asker);
}
