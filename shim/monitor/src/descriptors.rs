//! One descriptor over a unix socket (SCM_RIGHTS). Owns nothing. Called by the child that makes a
//! terminal, the monitor and the runtime, who hand ends of streams to each other this way.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Sends one descriptor with one byte.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send(socket: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(b"d")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// recvmsg(2): bytes into `chunk`, descriptors to the end of `descriptors`.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive(
    socket: BorrowedFd<'_>,
    chunk: &mut [u8],
    descriptors: &mut impl Extend<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut chunks = [IoSliceMut::new(chunk)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(socket, &mut chunks, &mut ancillary, flags)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(received.bytes)
}

/// Takes the one descriptor that `send` has sent.
///
/// # Errors
/// `UnexpectedEof` when there is none, `WouldBlock` when it is not there yet.
pub fn receive_one(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut descriptors = Vec::new();
    receive(socket.as_fd(), &mut [0u8; 1], &mut descriptors)?;
    descriptors.pop().ok_or_else(|| ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_sent_is_the_open_file_itself() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send(ours.as_fd(), writer.as_fd()).unwrap();
        drop(writer);
        let received = receive_one(&theirs.into()).unwrap();
        std::fs::File::from(received).write_all(b"through").unwrap();
        let mut text = String::new();
        std::fs::File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }
}
