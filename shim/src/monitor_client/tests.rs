//! The protocol window, against monitors made of a socket pair.

use gantry_proto::monitor::{Exec, Frame, Mount, Reply, StartContainer, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A monitor that answers the first request with a Welcome of `version`, and hangs up after the next.
async fn greeted_by(version: u32) -> Result<MonitorClient, Error> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    tokio::spawn(async move {
        let mut buffer = Vec::new();
        let request = loop {
            theirs.read_buf(&mut buffer).await.unwrap();
            if let Some(request) = wire::take::<Request>(&mut buffer).unwrap() {
                break request;
            }
        };
        let welcome = Welcome { protocol_version: version, monitor_pid: 1, running: Vec::new() };
        let reply = Reply { id: request.id, result: Some(reply::Result::Welcome(welcome)) };
        let bytes = wire::encode(&Frame { frame: Some(frame::Frame::Reply(reply)) });
        theirs.write_all(&bytes).await.unwrap();
        let _ = theirs.read_buf(&mut buffer).await;
    });
    let (events, _receiver) = mpsc::unbounded_channel();
    MonitorClient::connect(ours, "s", events).await.map(|(client, _)| client)
}

#[tokio::test]
async fn rt_2_15_every_released_protocol_is_spoken_and_a_newer_one_is_named() {
    for version in 1..=PROTOCOL_VERSION {
        assert_eq!(greeted_by(version).await.unwrap().version, version);
    }
    for version in [0, PROTOCOL_VERSION + 1] {
        let error = greeted_by(version).await.unwrap_err();
        assert!(matches!(error, Error::Version { theirs, .. } if theirs == version), "{error:?}");
    }
}

#[tokio::test]
async fn rt_2_15_an_old_monitor_is_not_asked_for_what_it_does_not_know() {
    let old = greeted_by(1).await.unwrap();
    let error = old.send_request(request::Op::Exec(Exec::default())).await.unwrap_err();
    assert!(matches!(error, Error::TooOld { theirs: 1, needed: 2, .. }), "{error}");
    let mounts = vec![Mount { recursive_readonly: true, ..Mount::default() }];
    let start = StartContainer { mounts, ..StartContainer::default() };
    let error = old.send_request(request::Op::StartContainer(start)).await.unwrap_err();
    assert!(matches!(error, Error::TooOld { theirs: 1, needed: 2, .. }), "{error}");
    let start = StartContainer { pid: NamespaceMode::Target.into(), ..StartContainer::default() };
    let mounts = vec![Mount { image: Some(Default::default()), ..Mount::default() }];
    let mounting = StartContainer { mounts, ..StartContainer::default() };
    let hooked = StartContainer { hooks: Some(Default::default()), ..StartContainer::default() };
    let labelled = StartContainer { apparmor_profile: "p".into(), ..StartContainer::default() };
    let own_users = StartContainer { users: Some(Default::default()), ..StartContainer::default() };
    let mounts = vec![Mount { users: Some(Default::default()), ..Mount::default() }];
    let mapped = StartContainer { mounts, ..StartContainer::default() };
    for start in [start, mounting, hooked, labelled, own_users, mapped] {
        let second = greeted_by(2).await.unwrap();
        let error = second.send_request(request::Op::StartContainer(start)).await.unwrap_err();
        assert!(matches!(error, Error::TooOld { theirs: 2, needed: 3, .. }), "{error}");
    }
    // What it does know is sent: this one hangs up instead of answering.
    let error = old.send_request(request::Op::StartContainer(Default::default())).await.unwrap_err();
    assert!(matches!(error, Error::Gone { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn rt_2_5_a_monitor_that_hangs_is_named_in_time_and_told_what_is_over() {
    let (requests, mut receiver) = mpsc::channel(16);
    let client = MonitorClient { sandbox: "web-1".into(), version: PROTOCOL_VERSION, requests };
    let error = client.send_request(request::Op::ReopenLog(Default::default())).await.unwrap_err();
    assert!(matches!(&error, Error::Stuck { sandbox, seconds: 20 } if sandbox == "web-1"), "{error}");
    assert!(error.to_string().contains("remove the pod"), "{error}");
    assert!(receiver.recv().await.is_some(), "it was asked");
    let error = client.open(request::Op::Exec(Exec::default()), "e", Vec::new()).await.unwrap_err();
    assert!(matches!(error, Error::Stuck { seconds: 110, .. }), "{error}");
    receiver.recv().await.unwrap();
    let over = receiver.recv().await.unwrap();
    assert!(matches!(over.op, request::Op::SignalExec(signal) if signal.id == "e" && signal.signal == 9));
    // One that takes no more requests hangs, too.
    for _ in 0..16 {
        client.end_later("e");
    }
    let error = client.send_request(request::Op::Attach(Default::default())).await.unwrap_err();
    assert!(matches!(error, Error::Stuck { .. }), "{error}");
}
