//! What must hold for any bytes between runtime and monitor: the body of the fuzz target `frames`. Owns the checks;
//! never the bytes. Called by the target in `fuzz/`, and by the tests here with the corpus that is kept.

use gantry_proto::monitor;

use crate::wire;

/// A monitor reads what a runtime says, and a runtime what a monitor says that a container may have taken over.
pub fn frames(data: &[u8]) {
    of_kind::<monitor::Request>(data);
    of_kind::<monitor::Frame>(data);
}

fn of_kind<M: prost::Message + Default + PartialEq + std::fmt::Debug>(data: &[u8]) {
    let (mut buffer, mut piecemeal, mut whole) = (data.to_vec(), Vec::new(), Vec::new());
    while let Ok(Some(message)) = wire::take::<M>(&mut buffer) {
        let mut again = wire::encode(&message);
        assert_eq!(wire::take::<M>(&mut again).ok().flatten().as_ref(), Some(&message));
        assert!(again.is_empty());
        whole.push(message);
    }
    let mut arriving = Vec::new();
    for byte in data {
        arriving.push(*byte);
        match wire::take::<M>(&mut arriving) {
            Ok(Some(message)) => piecemeal.push(message),
            Ok(None) => {}
            Err(_) => break,
        }
    }
    assert!(whole == piecemeal, "frames differ by how their bytes arrive");
}

#[cfg(test)]
mod tests {
    use gantry_shim_testing::corpus::{replay, write_seeds};

    use super::*;

    #[test]
    fn frames() {
        replay("frames", super::frames);
    }

    #[test]
    fn seeds_are_written_where_they_are_asked_for() {
        let hello = monitor::Hello { protocol_version: 2 };
        let request = monitor::Request { id: 7, op: Some(monitor::request::Op::Hello(hello)) };
        let reply = monitor::Reply { id: 7, ..Default::default() };
        let frame = monitor::Frame { frame: Some(monitor::frame::Frame::Reply(reply)) };
        let twice = [wire::encode(&request), wire::encode(&request)].concat();
        write_seeds(&[("frames", vec![wire::encode(&request), twice, wire::encode(&frame)])]);
    }
}
