//! Failpoints: named places at durable steps and in long-lived tasks, where a test can end this program,
//! hold it, or have the step fail. Owns what such a place does. A program that is built without the feature
//! `failpoints`, as every shipped one is, has nothing of it. Called by durable steps
//! and long-lived tasks of runtime, images and monitor.
//!
//! A test names a folder by `GANTRY_FAILPOINTS`. A file in it with the name of a place says what the place
//! does once: `crash`, `panic`, `stall` or `fail`. Before it acts the place renames the file to `NAME.reached`; a
//! stall lasts for as long as that is there.

#[cfg(feature = "failpoints")]
mod place;
#[cfg(feature = "failpoints")]
pub use self::place::{Injected, look_in, reach, variable};

/// A place: `failpoint!("name")`, or `failpoint!("name"?)` in a function whose error can be
/// [`Injected`].
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        // A place that can't fail has passed on what it could.
        let _ = $crate::reach($name);
    };
    ($name:literal ?) => {
        $crate::reach($name)?;
    };
}

/// Nothing.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! failpoint {
    ($($any:tt)*) => {};
}
