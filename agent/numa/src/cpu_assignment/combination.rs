//! Every choice of some of a list's numbers, in its order. Pure. Walked by the choice that distributes.
//!
//! A choice that the walk's caller keeps is a Go slice, not a copy: choices that differ only in their last numbers share an
//! array, and a later one writes over an earlier one that upstream holds for the best. So with five or more NUMA nodes upstream
//! gives CPUs of other nodes than the ones it found best. To give the same CPUs, the arrays are shared here as there.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;

/// The first `len` numbers of an array that others may write to.
#[derive(Clone, Default)]
pub(super) struct Combination {
    array: Rc<RefCell<Vec<u32>>>,
    len: usize,
}

impl Combination {
    /// As they are now.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.array.borrow().iter().take(self.len).copied().collect()
    }

    /// As Go's append: in the same array while that has room, else in a new one of twice the size.
    fn with(&self, id: u32) -> Self {
        let len = self.len.saturating_add(1);
        if let Some(next) = self.array.borrow_mut().get_mut(self.len) {
            *next = id;
            return Self { array: Rc::clone(&self.array), len };
        }
        let mut array = self.ids();
        array.push(id);
        array.resize(self.len.saturating_mul(2).max(1), 0);
        Self { array: Rc::new(RefCell::new(array)), len }
    }
}

/// Every choice of `size` of `ids`, until `each` says to break. None for a `size` of 0.
pub(super) fn walk(ids: &[u32], size: usize, each: &mut dyn FnMut(&Combination) -> ControlFlow<()>) {
    if size > 0 {
        // What ends the walk is of no use to the caller.
        let _ended = step(ids, size, &Combination::default(), each);
    }
}

fn step(
    ids: &[u32],
    size: usize,
    chosen: &Combination,
    each: &mut dyn FnMut(&Combination) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if size == 0 {
        return each(chosen);
    }
    let mut rest = ids;
    while let Some((first, more)) = rest.split_first() {
        if rest.len() < size {
            break;
        }
        step(more, size - 1, &chosen.with(*first), each)?;
        rest = more;
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_comes_once_and_in_order() {
        let mut seen = Vec::new();
        walk(&[0, 1, 2], 2, &mut |chosen| {
            seen.push(chosen.ids());
            if chosen.ids() == [0, 2] { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(seen, [[0, 1], [0, 2]]);
        for (size, count) in [(0, 0), (1, 5), (3, 10), (5, 1), (6, 0)] {
            let mut seen = 0;
            walk(&[7, 1, 2, 3, 4], size, &mut |_| {
                seen += 1;
                ControlFlow::Continue(())
            });
            assert_eq!(seen, count, "{size}");
        }
    }

    /// What upstream keeps of the first choice when it has walked all: measured on its `iterateCombinations`.
    #[test]
    fn a_choice_of_four_that_is_kept_ends_as_the_last_one_that_shares_its_array() {
        for (size, kept) in [(2, &[0, 1][..]), (3, &[0, 1, 2]), (4, &[0, 1, 2, 5]), (5, &[0, 1, 2, 3, 4])] {
            let mut first = None;
            walk(&[0, 1, 2, 3, 4, 5], size, &mut |chosen| {
                first.get_or_insert_with(|| chosen.clone());
                ControlFlow::Continue(())
            });
            assert_eq!(first.unwrap().ids(), kept);
        }
    }
}
