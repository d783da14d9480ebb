//! Memory that the allocator holds and nobody uses. Owns the call that gives it back; never decides when. Called by the
//! runtime's library for the long-lived programs.

/// Gives free pages of the heap back to the kernel (malloc_trim(3)); whether there were any. It holds each arena's lock
/// in turn.
#[cfg(target_env = "gnu")]
pub fn trim() -> bool {
    // SAFETY: the call takes no pointer, locks what it looks at, and gives back only what no allocation holds.
    unsafe { libc::malloc_trim(0) != 0 }
}

/// The allocator of this C library has no such call.
#[cfg(not(target_env = "gnu"))]
pub fn trim() -> bool {
    false
}

#[cfg(test)]
mod tests {
    #[cfg(target_env = "gnu")]
    use super::*;

    #[cfg(target_env = "gnu")]
    fn resident_kib() -> usize {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn holes_between_what_is_used_are_given_back() {
        // Below the size from which each allocation has a mapping of its own; each second one stays.
        let mut all: Vec<Option<Vec<u8>>> = (0..4096).map(|_| Some(vec![1; 16 << 10])).collect();
        let full = resident_kib();
        for hole in all.iter_mut().skip(1).step_by(2) {
            *hole = None;
        }
        // 16 KiB freed between 16 KiB used: free(3) gives none of it back.
        assert!(trim());
        let after = resident_kib();
        assert!(after + (16 << 10) < full, "{full} KiB, then {after} KiB");
        assert_eq!(all.iter().flatten().count(), 2048);
    }
}
