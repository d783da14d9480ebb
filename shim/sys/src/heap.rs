//! The heap of this process. Owns the call that gives free memory back; never decides when. Called by the daemons.

/// Gives pages of the heap that nothing uses back to the kernel; whether there were any (`malloc_trim(3)`).
///
/// By itself the C library gives back only what lies at the top of a heap: one small piece there keeps all below it.
pub fn trim() -> bool {
    // SAFETY: it takes a number and no pointer, may be called at any time by any thread, and moves nothing that is in use.
    unsafe { libc::malloc_trim(0) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB of memory that this process has (`proc_pid_status(5)`).
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn what_a_burst_has_left_below_a_small_piece_is_given_back() {
        let (mut burst, mut kept) = (Vec::new(), Vec::new());
        // Below the size from which each piece has pages of its own.
        for _ in 0..1024 {
            burst.push(vec![1_u8; 64 << 10]);
            kept.push(vec![1_u8; 64]);
        }
        drop(burst);
        let before = resident();
        assert!(trim());
        let freed = before.saturating_sub(resident());
        assert!(freed > 32 << 10, "{freed} KiB of 64 MiB were given back");
        assert_eq!(kept.len(), 1024);
    }
}
