//! Against a systemd of our own on a socket: what it is asked, and what becomes of what it says.

mod anew;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use super::*;
use crate::wire::tests::sent;
use crate::wire::{self, ERROR, HEAD, METHOD_RETURN, Message, SIGNAL};

/// One answer to one call: kind, error's name, body's signature, body; then the results of jobs.
type BusReply = (u8, &'static str, &'static str, Vec<u8>, Option<&'static str>);

fn text(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend(text.bytes());
    bytes.push(0);
    bytes
}

fn job(result: &'static str) -> BusReply {
    (METHOD_RETURN, "", "o", text("/job/1"), Some(result))
}

fn refusal(name: &'static str) -> BusReply {
    refusal_of(name, "no")
}

fn refusal_of(name: &'static str, message: &str) -> BusReply {
    (ERROR, name, "s", text(message), None)
}

fn object() -> BusReply {
    (METHOD_RETURN, "", "o", text("/u/1"), None)
}

/// A property's value.
fn told(value: &str) -> BusReply {
    let variant = [&b"\x01s\0\0"[..], &text(value)].concat();
    (METHOD_RETURN, "", "v", variant, None)
}

fn job_removed_signal(job: &str, result: &str) -> Vec<u8> {
    let mut body = 1u32.to_le_bytes().to_vec();
    for part in [job, "u", result] {
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(text(part));
    }
    sent(SIGNAL, &[(2, "s", b"org.freedesktop.systemd1.Manager"), (3, "s", b"JobRemoved")], "uoss", &body)
}

/// Serves a connection until all answers are given; returns the members that were called, each with the texts at the
/// front of its body.
fn serve(listener: &UnixListener, answers: Vec<BusReply>, welcome: &str) -> Vec<String> {
    let (mut stream, _) = listener.accept().unwrap();
    let mut greeting = [0; 256];
    let length = stream.read(&mut greeting).unwrap();
    let greeting = String::from_utf8_lossy(&greeting[..length]);
    // All of it at once: real systemd stops reading when a message stands behind BEGIN.
    assert!(greeting.starts_with("\0AUTH EXTERNAL 3"), "{greeting:?}");
    assert!(greeting.ends_with("\r\nBEGIN\r\n"), "{greeting:?}");
    stream.write_all(welcome.as_bytes()).unwrap();
    let mut called = Vec::new();
    for (kind, error, signature, body, result) in answers {
        let mut head = [0; HEAD];
        stream.read_exact(&mut head).unwrap();
        let mut bytes = head.to_vec();
        bytes.resize(wire::size_of(&head).unwrap(), 0);
        stream.read_exact(&mut bytes[HEAD..]).unwrap();
        let asked = Message::read(&bytes).unwrap();
        let arguments =
            if asked.body.is_empty() { String::new() } else { format!(" {}", asked.body.join(" ")) };
        called.push(format!("{}{arguments}", asked.member));
        // Before the answer: another's job, and a job's end that is faster than its own answer.
        stream.write_all(&job_removed_signal("/job/0", "failed")).unwrap();
        if let Some(result) = result {
            stream.write_all(&job_removed_signal("/job/1", result)).unwrap();
        }
        let serial = bytes[8..12].to_vec();
        let mut fields: Vec<(u8, &str, &[u8])> = vec![(5, "u", &serial)];
        if !error.is_empty() {
            fields.push((4, "s", error.as_bytes()));
        }
        stream.write_all(&sent(kind, &fields, signature, &body)).unwrap();
    }
    called
}

/// One connection's worth.
fn systemd(
    answers: Vec<BusReply>,
    welcome: &'static str,
) -> (tempfile::TempDir, Systemd, JoinHandle<Vec<String>>) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("private");
    let listener = UnixListener::bind(&socket).unwrap();
    let served = std::thread::spawn(move || serve(&listener, answers, welcome));
    (folder, Systemd::at(socket), served)
}

const OK: &str = "OK 0123456789abcdef\r\n";

#[test]
fn a_unit_is_started_when_its_job_is_done() {
    let (_folder, systemd, served) = systemd(vec![job("done")], OK);
    assert!(systemd.start("a.slice", &[Property::flag("CPUAccounting", true)]).unwrap());
    assert_eq!(served.join().unwrap(), ["StartTransientUnit a.slice replace"]);
}

#[test]
fn one_that_is_there_is_not_made_again() {
    let (_folder, systemd, served) = systemd(vec![refusal(UNIT_EXISTS)], OK);
    assert!(!systemd.start("a.slice", &[]).unwrap());
    served.join().unwrap();
}

#[test]
fn a_job_that_fails_is_an_error() {
    let (_folder, systemd, served) = systemd(vec![job("timeout")], OK);
    let told = systemd.start("a.scope", &[]).unwrap_err().to_string();
    assert_eq!(told, "systemd could not start a.scope: the job is timeout");
    served.join().unwrap();
}

#[test]
fn stopping_what_is_not_there_is_fine_and_other_refusals_are_told() {
    let (_folder, systemd_, served) = systemd(vec![refusal(NO_SUCH_UNIT), refusal(NO_SUCH_UNIT)], OK);
    systemd_.stop("a.scope").unwrap();
    assert_eq!(served.join().unwrap(), ["StopUnit a.scope replace", "ResetFailedUnit a.scope"]);
    let (_folder, systemd_, served) = systemd(vec![refusal("x.Denied")], OK);
    let told = systemd_.set("a.slice", &[Property::number("TasksMax", 1)]).unwrap_err().to_string();
    assert_eq!(told, "systemd refused to limit a.slice: no (x.Denied)");
    assert_eq!(served.join().unwrap(), ["SetUnitProperties a.slice"]);
}

#[test]
fn a_slice_that_is_ended_alone_takes_nothing_along() {
    let (_folder, systemd, served) = systemd(vec![job("done"), refusal(NO_SUCH_UNIT)], OK);
    systemd.stop_alone("a.slice").unwrap();
    assert_eq!(served.join().unwrap(), ["StopUnit a.slice ignore-dependencies", "ResetFailedUnit a.slice"]);
}

#[test]
fn a_description_is_read_of_the_units_object() {
    let (_folder, systemd_, served) = systemd(vec![object(), told("a b")], OK);
    assert_eq!(systemd_.description("a.slice").unwrap().as_deref(), Some("a b"));
    let asked = served.join().unwrap();
    assert_eq!(asked, ["GetUnit a.slice", "Get org.freedesktop.systemd1.Unit Description"]);
    let (_folder, systemd_, served) = systemd(vec![refusal(NO_SUCH_UNIT)], OK);
    assert_eq!(systemd_.description("a.slice").unwrap(), None);
    served.join().unwrap();
}

#[test]
fn a_systemd_that_knows_no_period_is_told_the_rest() {
    let unknown = "Cannot set property CPUQuotaPeriodUSec, or unknown property.";
    let read_only = "org.freedesktop.DBus.Error.PropertyReadOnly";
    let limits = [Property::number(PERIOD, 50_000), Property::number("CPUQuotaPerSecUSec", 10_000)];
    let (_folder, systemd_, served) =
        systemd(vec![refusal_of(read_only, unknown), (METHOD_RETURN, "", "", Vec::new(), None)], OK);
    systemd_.set("a.slice", &limits).unwrap();
    assert_eq!(served.join().unwrap().len(), 2);
    let (_folder, systemd_, served) = systemd(vec![refusal_of(read_only, "Cannot set property X")], OK);
    assert!(systemd_.set("a.slice", &limits).is_err());
    served.join().unwrap();
}

#[test]
fn without_systemd_the_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let systemd_ = Systemd::at(folder.path().join("private"));
    let told = systemd_.check().unwrap_err().to_string();
    assert!(told.starts_with("reach systemd at ") && told.contains("driver cgroupfs"), "{told}");
    let (_folder, systemd_, served) = systemd(Vec::new(), "REJECTED EXTERNAL\r\n");
    let told = systemd_.check().unwrap_err().to_string();
    assert_eq!(told, "systemd refused this user: REJECTED EXTERNAL");
    drop(systemd_);
    served.join().unwrap();
}

#[test]
fn a_connection_that_breaks_is_an_error() {
    let (_folder, systemd, served) = systemd(vec![(METHOD_RETURN, "", "o", text("/job/1"), None)], OK);
    let error = systemd.start("a.scope", &[]).unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error}");
    served.join().unwrap();
}
