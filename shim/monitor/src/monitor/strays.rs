//! Processes that the monitor has reaped before it knew whose they are. An OCI runtime leaves a process behind
//! and ends; the kernel makes it the monitor's, whom its end reaches at once, maybe before the child that
//! waits for the program has told of it. Owns who such ends belong to. PURE. Called by `monitor::children`
//! and `monitor::exec`.

use super::child::Ended;

/// As many as may end while something is being started; of more, the first are forgotten.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Strays {
    ended: Vec<(Ended, i64)>,
}

impl Strays {
    /// Takes note of one that nobody knew.
    pub(super) fn keep(&mut self, ended: Ended, at: i64) {
        if self.ended.len() >= MOST {
            self.ended.remove(0);
        }
        self.ended.push((ended, at));
    }

    /// How the process with this number has ended, and when, if one of them had it: the last one. Those before
    /// were others, whose number was given anew; so were all of them while it `lives`.
    pub(super) fn claim(&mut self, pid: i32, lives: bool) -> Option<(i32, i64)> {
        let (own, rest) =
            std::mem::take(&mut self.ended).into_iter().partition(|(ended, _)| ended.pid == pid);
        self.ended = rest;
        let own: Vec<(Ended, i64)> = own;
        own.last().filter(|_| !lives).map(|(ended, at)| (ended.code, *at))
    }

    /// Nothing is being started: nobody will ask.
    pub(super) fn forget(&mut self) {
        self.ended = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_once_to_who_asks_for_it() {
        let mut strays = Strays::default();
        strays.keep(Ended { pid: 7, code: 3 }, 40);
        strays.keep(Ended { pid: 8, code: 0 }, 41);
        assert_eq!(strays.claim(7, false), Some((3, 40)));
        assert_eq!((strays.claim(7, false), strays.claim(9, false)), (None, None));
        strays.forget();
        assert_eq!(strays.claim(8, false), None);
    }

    #[test]
    fn an_end_is_not_that_of_the_next_one_with_its_number() {
        let mut strays = Strays::default();
        strays.keep(Ended { pid: 7, code: 3 }, 40);
        assert_eq!((strays.claim(7, true), strays.claim(7, false)), (None, None));
        strays.keep(Ended { pid: 7, code: 3 }, 40);
        strays.keep(Ended { pid: 7, code: 0 }, 50);
        assert_eq!((strays.claim(7, false), strays.claim(7, false)), (Some((0, 50)), None));
    }

    #[test]
    fn a_flood_of_strays_takes_bounded_memory() {
        let mut strays = Strays::default();
        for pid in 0..10_000 {
            strays.keep(Ended { pid, code: 0 }, 1);
        }
        assert_eq!((strays.ended.len(), strays.claim(0, false)), (MOST, None));
        assert_eq!(strays.claim(9_999, false), Some((0, 1)));
    }
}
