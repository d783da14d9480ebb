//! A systemd that is executed anew, or hangs.

use super::*;

/// Of one that was booted by systemd, at a socket of its own.
fn fake_systemd(folder: &Path) -> Systemd {
    let booted = folder.join("booted");
    std::fs::create_dir_all(&booted).unwrap();
    Systemd { socket: folder.join("private"), booted, anew: Duration::from_secs(60) }
}

fn description_property(text: &str) -> [Property; 1] {
    [Property::text(DESCRIPTION, text)]
}

/// The first connection ends after the call, as when systemd executes itself; the next gets the answers.
fn interrupt_start(answers: Vec<BusReply>) -> (tempfile::TempDir, Systemd, JoinHandle<Vec<String>>) {
    let folder = tempfile::tempdir().unwrap();
    let systemd = fake_systemd(folder.path());
    let socket = systemd.socket.clone();
    let listener = UnixListener::bind(&socket).unwrap();
    let served = std::thread::spawn(move || {
        serve(&listener, Vec::new(), OK);
        drop(listener);
        std::fs::remove_file(&socket).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        serve(&listener, answers, OK)
    });
    (folder, systemd, served)
}

#[test]
fn a_question_whose_answer_was_lost_is_asked_again() {
    let (_folder, systemd, served) = interrupt_start(vec![job("done"), refusal(NO_SUCH_UNIT)]);
    systemd.stop("a.scope").unwrap();
    assert_eq!(served.join().unwrap(), ["StopUnit a.scope replace", "ResetFailedUnit a.scope"]);
}

#[test]
fn a_unit_that_was_made_before_the_answer_was_lost_is_ours() {
    let active = vec![
        refusal(UNIT_EXISTS),
        object(),
        told("mine"),
        object(),
        told("activating"),
        object(),
        told("active"),
    ];
    let (_folder, systemd, served) = interrupt_start(active);
    assert!(systemd.start("a.scope", &description_property("mine")).unwrap());
    served.join().unwrap();
    let (_folder, systemd, served) = interrupt_start(vec![refusal(UNIT_EXISTS), object(), told("another's")]);
    assert!(!systemd.start("a.scope", &description_property("mine")).unwrap());
    served.join().unwrap();
}

#[test]
fn one_that_hangs_is_not_waited_for_past_the_time_and_no_other_driver_is_advised() {
    let folder = tempfile::tempdir().unwrap();
    let systemd = fake_systemd(folder.path());
    let listener = UnixListener::bind(&systemd.socket).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    // Nobody takes them: the second fills the backlog.
    let deadline = || Instant::now() + Duration::from_millis(20);
    for _ in 0..3 {
        let told = Bus::connect(&systemd.socket, deadline()).unwrap_err();
        assert!(matches!(told, Error::Connect { .. }) && !told.to_string().contains("cgroupfs"), "{told}");
        assert!(!told.is_of_a_restart(), "{told:?}");
    }
}
