//! Ids of a pod's users and those of the node behind them. Pure. Called by the runtime, which checks what
//! a request asks for, and by the set-up of a container.

use gantry_proto::monitor::{IdMapping, UserMapping};

/// The node's id behind one of the pod's; None when it has none.
#[must_use]
pub fn to_host(line: Option<&IdMapping>, id: u32) -> Option<u32> {
    let line = line?;
    let offset = id.checked_sub(line.container_id).filter(|offset| *offset < line.length)?;
    line.host_id.checked_add(offset)
}

/// The node's user and group behind two of the pod's.
#[must_use]
pub fn owner(of: &UserMapping, uid: u32, gid: u32) -> Option<(u32, u32)> {
    to_host(of.uids.as_ref(), uid).zip(to_host(of.gids.as_ref(), gid))
}

/// A line of /proc/PID/uid_map.
#[must_use]
pub fn line(of: &IdMapping) -> String {
    format!("{} {} {}\n", of.container_id, of.host_id, of.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_mapped_within_its_line_only() {
        let line = IdMapping { container_id: 10, host_id: 65_536, length: 5 };
        for (id, expected) in [(9, None), (10, Some(65_536)), (14, Some(65_540)), (15, None)] {
            assert_eq!(to_host(Some(&line), id), expected, "{id}");
        }
        assert_eq!(to_host(None, 0), None);
        let end = IdMapping { container_id: 0, host_id: u32::MAX, length: 2 };
        assert_eq!(to_host(Some(&end), 1), None);
    }
}
