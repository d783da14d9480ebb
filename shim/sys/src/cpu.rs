//! Code that only some processors can run. Owns the question and the call; never touches a byte. Called by
//! `unpack::inflate`.

use gantry_inflate::{Fast, plain};

/// The inflater's fast loop for this processor, which is asked the first time only (cpuid: no system call).
#[must_use]
pub fn inflate_loop() -> Fast {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("avx2")
    {
        // SAFETY: the processor has the instructions: it was asked in the lines above, and this closure goes nowhere
        // but out of here. What is called is safe otherwise.
        return |run| unsafe { gantry_inflate::with_bmi2(run) };
    }
    plain
}
