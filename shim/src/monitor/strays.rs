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

    /// How the process has ended, and when, if it was one of them.
    pub(super) fn claim(&mut self, pid: i32) -> Option<(i32, i64)> {
        let index = self.ended.iter().position(|(ended, _)| ended.pid == pid)?;
        let (ended, at) = self.ended.remove(index);
        Some((ended.code, at))
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
        assert_eq!(strays.claim(7), Some((3, 40)));
        assert_eq!((strays.claim(7), strays.claim(9)), (None, None));
        strays.forget();
        assert_eq!(strays.claim(8), None);
    }

    #[test]
    fn a_flood_of_strays_takes_bounded_memory() {
        let mut strays = Strays::default();
        for pid in 0..10_000 {
            strays.keep(Ended { pid, code: 0 }, 1);
        }
        assert_eq!((strays.ended.len(), strays.claim(0)), (MOST, None));
        assert_eq!(strays.claim(9_999), Some((0, 1)));
    }
}
