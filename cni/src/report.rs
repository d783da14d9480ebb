//! How long a plugin took. Owns the clock that says so; never
//! logs. Called by the chain, the plugins and their executables.

use std::time::{SystemTime, UNIX_EPOCH};

/// Runs `job`, and tells `on_plugin` when it began and ended: its name, and both in Unix nanoseconds.
pub(crate) fn run_timed<T>(
    on_plugin: &mut dyn FnMut(&str, i64, i64),
    plugin: &str,
    job: impl FnOnce(&mut dyn FnMut(&str, i64, i64)) -> T,
) -> T {
    let start = unix_nanos();
    let outcome = job(on_plugin);
    on_plugin(plugin, start, unix_nanos());
    outcome
}

fn unix_nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
