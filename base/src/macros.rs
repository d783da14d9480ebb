//! The macro `failpoint!`: a named place where a test can end a program, hold it, or have the step fail.
//! Called at durable steps and in long-lived tasks; without the feature `failpoints` it is nothing.

/// A place: `failpoint!("name")`, or `failpoint!("name"?)` in a function whose error can be
/// `gantry_base::failpoint::Injected`.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        // A place that can't fail has passed on what it could.
        let _ = $crate::failpoint::reach($name);
    };
    ($name:literal ?) => {
        $crate::failpoint::reach($name)?;
    };
}

/// Nothing.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! failpoint {
    ($($any:tt)*) => {};
}
