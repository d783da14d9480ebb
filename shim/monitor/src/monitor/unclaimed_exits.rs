//! Processes that the monitor has reaped before it knew whose they are. An OCI runtime leaves a process behind
//! and ends; the kernel makes it the monitor's, whom its end reaches at once, maybe before the child that
//! waits for the program has told of it. Owns who such ends belong to. Pure. Called by `monitor::children`
//! and `monitor::exec`.

use super::child::ReapedProcess;

/// As many as may end while something is being started; of more, the first are forgotten.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct UnclaimedExits {
    exits: Vec<(ReapedProcess, i64)>,
}

impl UnclaimedExits {
    /// Takes note of one that nobody knew.
    pub(super) fn add(&mut self, ended: ReapedProcess, at: i64) {
        if self.exits.len() >= MOST {
            self.exits.remove(0);
        }
        self.exits.push((ended, at));
    }

    /// How the process with this number has ended, and when, if one of them had it: the last one. Those before
    /// were others, whose number was given anew; so were all of them while it `lives`.
    pub(super) fn claim(&mut self, pid: i32, lives: bool) -> Option<(i32, i64)> {
        let (own, rest) =
            std::mem::take(&mut self.exits).into_iter().partition(|(ended, _)| ended.pid == pid);
        self.exits = rest;
        let own: Vec<(ReapedProcess, i64)> = own;
        own.last().filter(|_| !lives).map(|(ended, at)| (ended.code, *at))
    }

    /// Nothing is being started: nobody will ask.
    pub(super) fn clear(&mut self) {
        self.exits = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_once_to_who_asks_for_it() {
        let mut exits = UnclaimedExits::default();
        exits.add(ReapedProcess { pid: 7, code: 3 }, 40);
        exits.add(ReapedProcess { pid: 8, code: 0 }, 41);
        assert_eq!(exits.claim(7, false), Some((3, 40)));
        assert_eq!((exits.claim(7, false), exits.claim(9, false)), (None, None));
        exits.clear();
        assert_eq!(exits.claim(8, false), None);
    }

    #[test]
    fn an_end_is_not_that_of_the_next_one_with_its_number() {
        let mut exits = UnclaimedExits::default();
        exits.add(ReapedProcess { pid: 7, code: 3 }, 40);
        assert_eq!((exits.claim(7, true), exits.claim(7, false)), (None, None));
        exits.add(ReapedProcess { pid: 7, code: 3 }, 40);
        exits.add(ReapedProcess { pid: 7, code: 0 }, 50);
        assert_eq!((exits.claim(7, false), exits.claim(7, false)), (Some((0, 50)), None));
    }

    #[test]
    fn a_flood_of_unclaimed_exits_takes_bounded_memory() {
        let mut exits = UnclaimedExits::default();
        for pid in 0..10_000 {
            exits.add(ReapedProcess { pid, code: 0 }, 1);
        }
        assert_eq!((exits.exits.len(), exits.claim(0, false)), (MOST, None));
        assert_eq!(exits.claim(9_999, false), Some((0, 1)));
    }
}
