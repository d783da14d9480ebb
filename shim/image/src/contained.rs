//! Panics of others' code on foreign bytes that must cost no more than that work. Owns what counts as such work; the
//! processes that serve end at every other panic (the hook of `cli`, which asks here). Called by `image::store` when
//! it opens the index, which may be damaged.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread, now, is taken for an error by whoever called what panicked.
#[must_use]
pub fn is_contained() -> bool {
    WITHIN.get()
}

/// Does the work, and says in words why it panicked if it did. `work` owns what it changes: nobody must see it
/// half done. Not to be nested.
pub fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    WITHIN.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    WITHIN.set(false);
    done.map_err(|said| {
        let text = said.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| said.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contained_panic_is_an_error_in_words_and_the_next_one_is_none() {
        assert_eq!(contained(is_contained), Ok(true));
        assert_eq!(contained(|| panic!("page 7")), Err::<(), _>("page 7".to_owned()));
        let page = 8;
        assert_eq!(contained(|| panic!("page {page}")), Err::<(), _>("page 8".to_owned()));
        assert!(!is_contained());
    }
}
