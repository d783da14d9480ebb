//! Mutexes whose holders may panic. Owns the rule that every critical section here leaves its data whole.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock that a panicking holder can't poison for the others: every critical section here leaves
/// its data whole.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
