//! sd_notify(3): tells the service manager a state, if it wants to hear. Owns the message's way; never
//! what the state means. Called by the runtime and by the kubelet.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says whether somebody listens.
pub(crate) fn notify(state: &str) -> io::Result<bool> {
    let Some(to) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(false) };
    send(to, state).map(|()| true)
}

fn send(to: OsString, state: &str) -> io::Result<()> {
    let to = to.into_vec();
    let address = match to.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(OsString::from_vec(to))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_at_a_path_and_at_an_abstract_name() {
        let name = format!("gantry-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, to) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            send(to, "READY=1").unwrap();
            let mut heard = [0; 64];
            let size = socket.recv(&mut heard).unwrap();
            assert_eq!(&heard[..size], b"READY=1");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(send(path.into_os_string(), "READY=1").is_err());
    }
}
