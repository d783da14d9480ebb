//! The fast loop as it is handed in from outside, which alone may say that this processor has more instructions than
//! every one has. Owns the two kinds of it; decides nothing. Called by `symbols` by way of the caller's choice.

use crate::code::Tables;
use crate::fast::{self, Cursor, Stop};
use crate::{input, output};

/// One run of the fast loop, and all that it may touch.
#[expect(missing_debug_implementations, reason = "megabytes of tables and bytes")]
pub struct FastLoop<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) from: &'a input::Bytes,
    pub(crate) to: &'a mut output::Bytes,
    pub(crate) place: &'a mut Cursor,
}

/// The fast loop, for this processor: [`plain`], or what calls [`with_bmi2`].
pub type Fast = fn(FastLoop<'_>) -> Stop;

/// For processors with BMI1, BMI2 and AVX2: by a twelfth the faster of the two, since shifts by a variable amount are
/// one step instead of three.
///
/// # Safety
/// The processor must have them. To code that is compiled without them this is an unsafe function, with nothing else in
/// it that is.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,avx2")]
#[must_use]
pub fn with_bmi2(run: FastLoop<'_>) -> Stop {
    let FastLoop { tables, from, to, place } = run;
    fast::symbols(tables, from, to, place)
}

/// For any processor.
#[must_use]
pub fn plain(run: FastLoop<'_>) -> Stop {
    let FastLoop { tables, from, to, place } = run;
    fast::symbols(tables, from, to, place)
}
