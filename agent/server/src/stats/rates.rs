//! Cores in use, from two looks at the time used. Pure: owns the looks; never reads a clock. Called
//! by [`super::Stats`].

use std::collections::HashMap;

use super::summary::CpuStats;

/// Two looks must be so far apart; a rate over less is noise. Nanoseconds.
const APART: i64 = 1_000_000_000;

#[derive(Debug, Clone, Copy)]
struct UsageSample {
    time: i64,
    used: u64,
    rate: Option<u64>,
}

/// The last look at each thing, by key.
#[derive(Debug, Default)]
pub(super) struct Rates {
    looks: HashMap<String, UsageSample>,
}

impl Rates {
    /// Adds the rate where it is missing.
    pub(super) fn fill(&mut self, key: &str, cpu: Option<&mut CpuStats>) {
        let Some(cpu) = cpu else { return };
        let (Some(used), time) = (cpu.usage_core_nano_seconds, cpu.time) else { return };
        let look = match self.looks.get(key).copied() {
            // Less time used than before: it is another one under the same name.
            Some(last) if used >= last.used => {
                let apart = time.saturating_sub(last.time);
                if apart < APART {
                    last
                } else {
                    let rate =
                        u128::from(used - last.used) * 1_000_000_000 / u128::try_from(apart).unwrap_or(1);
                    UsageSample { time, used, rate: u64::try_from(rate).ok() }
                }
            }
            _ => UsageSample { time, used, rate: None },
        };
        self.looks.insert(key.to_owned(), look);
        if cpu.usage_nano_cores.is_none() {
            cpu.usage_nano_cores = look.rate;
        }
    }

    /// Forgets the others.
    pub(super) fn keep(&mut self, still_there: impl Fn(&str) -> bool) {
        self.looks.retain(|key, _| still_there(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(rates: &mut Rates, time: i64, used: u64) -> Option<u64> {
        let mut cpu = CpuStats { time, usage_core_nano_seconds: Some(used), ..CpuStats::default() };
        rates.fill("a", Some(&mut cpu));
        cpu.usage_nano_cores
    }

    #[test]
    fn a_rate_needs_two_looks_and_time_between() {
        let (mut rates, second) = (Rates::default(), 1_000_000_000);
        assert_eq!(look(&mut rates, second, 100), None);
        assert_eq!(look(&mut rates, second + 5, 200), None);
        assert_eq!(look(&mut rates, 3 * second, 1_000_000_100), Some(500_000_000));
        assert_eq!(look(&mut rates, 3 * second + 5, 1_000_000_105), Some(500_000_000));
        // Restarted: counted from nothing again.
        assert_eq!(look(&mut rates, 9 * second, 5), None);
        rates.keep(|key| key != "a");
        assert_eq!(look(&mut rates, 99 * second, 10), None);
    }
}
