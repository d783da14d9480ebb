//! Which instructions this processor has. Owns the crate's only `unsafe`; never touches a byte. Called once for each
//! stream.

use crate::code::Tables;
use crate::fast::{self, Place, Stop};
use crate::{input, output};

/// The fast loop, for this processor.
pub(crate) type Fast = fn(&Tables, &input::Bytes, &mut output::Bytes, &mut Place) -> Stop;

/// Where BMI2 is, by a twelfth the faster of the two: shifts by a variable amount are one step instead of three.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2,avx2")]
fn with_bmi2(tables: &Tables, from: &input::Bytes, to: &mut output::Bytes, place: &mut Place) -> Stop {
    fast::symbols(tables, from, to, place)
}

/// For any processor.
pub(crate) fn plain(tables: &Tables, from: &input::Bytes, to: &mut output::Bytes, place: &mut Place) -> Stop {
    fast::symbols(tables, from, to, place)
}

/// Asks the processor (cpuid: no system call), but the first time only.
pub(crate) fn best() -> Fast {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("avx2")
    {
        #[expect(
            unsafe_code,
            reason = "the one place for it; safe code with instructions that not all have"
        )]
        // SAFETY: the processor has the instructions: it was asked in the line above, and this closure goes nowhere
        // but out of here. What is called is safe otherwise.
        return |tables, from, to, place| unsafe { with_bmi2(tables, from, to, place) };
    }
    plain
}
