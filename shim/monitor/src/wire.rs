//! Frames between runtime and monitor: a u32 little-endian length, then one protobuf message.
//! Owns the framing only; never a socket. Called by the monitor (sync) and by `monitor_client`.

use prost::Message;

/// Longest message either side takes: a container's environment and mounts fit many times over.
pub const MAX_FRAME: usize = 8 << 20;

/// The other side sent something that is not a frame of ours.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The announced length is over [`MAX_FRAME`].
    #[error("frame of {0} bytes is over the limit of {MAX_FRAME}")]
    TooLong(usize),
    /// The bytes are not the message they should be.
    #[error("frame does not decode")]
    Decode(#[source] prost::DecodeError),
}

/// The bytes of one frame.
#[must_use]
pub fn encode<M: Message>(message: &M) -> Vec<u8> {
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(4 + length);
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&message.encode_to_vec());
    bytes
}

/// Takes the first whole frame out of `buffer`; None when more bytes are needed.
///
/// # Errors
/// When the bytes can't be a frame: the connection is of no use any more.
pub fn take<M: Message + Default>(buffer: &mut Vec<u8>) -> Result<Option<M>, Error> {
    let Some(prefix) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length > MAX_FRAME {
        return Err(Error::TooLong(length));
    }
    let Some(body) = buffer.get(4..4 + length) else { return Ok(None) };
    let message = M::decode(body).map_err(Error::Decode)?;
    buffer.drain(..4 + length);
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::monitor::{Hello, Request, request};

    #[test]
    fn frames_arrive_whole_however_the_bytes_are_cut() {
        let hello = Request { id: 7, op: Some(request::Op::Hello(Hello { protocol_version: 1 })) };
        let mut sent = encode(&hello);
        sent.extend(encode(&Request { id: 8, op: None }));
        let (mut buffer, mut got) = (Vec::new(), Vec::new());
        for byte in sent {
            buffer.push(byte);
            while let Some(request) = take::<Request>(&mut buffer).unwrap() {
                got.push(request.id);
            }
        }
        assert_eq!((got, buffer.len()), (vec![7, 8], 0));
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_any_memory_is_taken() {
        let mut buffer = u32::MAX.to_le_bytes().to_vec();
        assert!(matches!(take::<Request>(&mut buffer), Err(Error::TooLong(_))));
    }
}
