//! Eviction thresholds as upstream reads them. Pure: owns their syntax and what is wrong with one;
//! never evicts ([`crate::eviction`] does), and never judges what is left for pods. Called by the command line's
//! wiring before anything of the kubelet is begun.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_model::go_duration::Span;
use gantry_model::quantity::{self, QuantityError};
use gantry_model::signal::Signal;

use super::fields::KubeletConfiguration;

/// What hard thresholds keep from pods.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HardReserved {
    /// Of memory.available.
    pub memory: Threshold,
    /// Of nodefs.available.
    pub storage: Threshold,
}

/// Of a hard eviction signal.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Threshold {
    /// Not set.
    #[default]
    None,
    /// So much.
    Bytes(i64),
    /// From 0 to 1.
    Share(f32),
}

impl Threshold {
    /// Of so much.
    pub(crate) fn of(self, all: i64) -> i64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => share_of(all, share),
        }
    }
}

/// When a node counts as short of something.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Of what.
    pub signal: Signal,
    /// Less than this.
    pub value: Threshold,
    /// As the operator wrote it.
    pub written: String,
    /// How long, before anybody is ended for it; zero for a hard threshold.
    pub grace: Duration,
    /// How much more than the threshold is freed, once it was crossed.
    pub reclaim: Threshold,
}

impl Rule {
    /// Whether pods are ended at once.
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// Less than so much of `capacity`.
    #[must_use]
    pub fn quantity(&self, capacity: i64) -> i64 {
        self.value.of(capacity)
    }

    /// The same, as upstream prints it.
    #[must_use]
    pub fn shown(&self, capacity: i64) -> String {
        match self.value {
            Threshold::Share(_) => quantity::binary(self.quantity(capacity)),
            Threshold::None | Threshold::Bytes(_) => self.written.clone(),
        }
    }
}

/// All that the operator says of eviction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// Hard ones first.
    pub rules: Vec<Rule>,
    /// evictionPressureTransitionPeriod: how long a condition stays after its cause.
    pub transition: Duration,
    /// evictionMaxPodGracePeriod: what pods get at most for a soft threshold.
    pub longest_grace: Duration,
    /// localStorageCapacityIsolation: pods end that keep more on the node's disk than their limits say.
    pub local_limits: bool,
}

/// As upstream's percentages: a float, cut to whole bytes.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "upstream's own arithmetic")]
fn share_of(all: i64, share: f32) -> i64 {
    (all as f64 * f64::from(share)) as i64
}

type Texts = BTreeMap<String, String>;
type Thresholds = BTreeMap<Signal, Threshold>;

/// Reads all thresholds; with `ignored` (`--experimental-allocatable-ignore-eviction`) the hard ones
/// keep nothing.
///
/// # Errors
/// In upstream's words, at the first that is wrong.
pub fn parse(config: &KubeletConfiguration, ignored: bool) -> Result<HardReserved, String> {
    let hard = thresholds(&config.eviction_hard);
    let kept = match &hard {
        _ if ignored => HardReserved::default(),
        Ok(hard) => {
            let of = |signal| hard.get(&signal).copied().unwrap_or_default();
            HardReserved { memory: of(Signal::Memory), storage: of(Signal::NodeFs) }
        }
        Err(error) => return Err(error.clone()),
    };
    // The rest is read where upstream makes what evicts.
    policy(config)?;
    Ok(kept)
}

/// Reads all that eviction goes by.
///
/// # Errors
/// In upstream's words, at the first that is wrong.
pub fn policy(config: &KubeletConfiguration) -> Result<Policy, String> {
    let rules = rules(config).map_err(|error| format!("failed to create kubelet: {error}"))?;
    let longest = u64::try_from(config.eviction_max_pod_grace_period).unwrap_or(0);
    Ok(Policy {
        rules,
        transition: config.eviction_pressure_transition_period.duration(),
        longest_grace: Duration::from_secs(longest),
        local_limits: config.local_storage_capacity_isolation.unwrap_or(true),
    })
}

fn rules(config: &KubeletConfiguration) -> Result<Vec<Rule>, String> {
    let hard = thresholds(&config.eviction_hard)?;
    let soft = thresholds(&config.eviction_soft)?;
    let graces = graces(&config.eviction_soft_grace_period)?;
    let reclaims = reclaims(&config.eviction_minimum_reclaim)?;
    let rule = |signal: Signal, value, written: &Texts, grace| Rule {
        signal,
        value,
        written: written.get(signal.as_str()).cloned().unwrap_or_default(),
        grace,
        reclaim: reclaims.get(&signal).copied().unwrap_or_default(),
    };
    let mut rules = Vec::new();
    for (signal, value) in hard {
        rules.push(rule(signal, value, &config.eviction_hard, Duration::ZERO));
    }
    for (signal, value) in soft {
        let Some(grace) = graces.get(&signal) else {
            return Err(format!("grace period must be specified for the soft eviction threshold {signal}"));
        };
        rules.push(rule(signal, value, &config.eviction_soft, *grace));
    }
    if config.enforce_node_allocatable.iter().flatten().any(|level| level == "pods") {
        // What all pods together are held to must not be used up either.
        let memory = rules.iter().filter(|rule| rule.signal == Signal::Memory && rule.is_hard());
        let more: Vec<Rule> =
            memory.map(|rule| Rule { signal: Signal::AllocatableMemory, ..rule.clone() }).collect();
        rules.extend(more);
    }
    Ok(rules)
}

fn known(signal: &str) -> Result<Signal, String> {
    Signal::parse(signal).ok_or_else(|| format!("unsupported eviction signal {signal}"))
}

/// Those that are thresholds at all: nothing and everything are none.
fn thresholds(texts: &Texts) -> Result<Thresholds, String> {
    let mut found = Thresholds::new();
    for (signal, value) in texts {
        let known = known(signal)?;
        if let Some(threshold) = threshold(signal, value)? {
            found.insert(known, threshold);
        }
    }
    Ok(found)
}

fn threshold(signal: &str, value: &str) -> Result<Option<Threshold>, String> {
    if matches!(value, "0%" | "100%") {
        return Ok(None);
    }
    if value.ends_with('%') {
        let share = share(value)?;
        if share < 0.0 {
            return Err(format!("eviction percentage threshold {signal} must be >= 0%: {value}"));
        }
        if share > 1.0 {
            return Err(format!("eviction percentage threshold {signal} must be <= 100%: {value}"));
        }
        return Ok(Some(Threshold::Share(share)));
    }
    match amount(value)? {
        Some(bytes) if bytes > 0 => Ok(Some(Threshold::Bytes(bytes))),
        Some(_) => Err(format!("eviction threshold {signal} must be positive: 0")),
        None => Err(format!("eviction threshold {signal} must be positive: {value}")),
    }
}

fn share(value: &str) -> Result<f32, String> {
    let number = value.trim_end_matches('%');
    number
        .parse::<f32>()
        .map(|percent| percent / 100.0)
        .map_err(|_| format!("strconv.ParseFloat: parsing {number:?}: invalid syntax"))
}

/// None is less than nothing.
fn amount(value: &str) -> Result<Option<i64>, String> {
    match quantity::parse_units(value) {
        Ok(amount) => Ok(Some(amount)),
        Err(QuantityError::Negative { .. }) => Ok(None),
        // Go's quantities end there, too.
        Err(QuantityError::TooLarge { .. }) => Ok(Some(i64::MAX)),
        Err(QuantityError::Syntax { .. }) => Err(quantity::in_go(value).to_owned()),
    }
}

fn graces(texts: &Texts) -> Result<BTreeMap<Signal, Duration>, String> {
    let mut found = BTreeMap::new();
    for (signal, value) in texts {
        let (signal, grace) = (known(signal)?, Span::parse(value)?);
        if grace < Span::default() {
            return Err(format!(
                "invalid eviction grace period specified: {value}, must be a positive value"
            ));
        }
        found.insert(signal, grace.duration());
    }
    Ok(found)
}

fn reclaims(texts: &Texts) -> Result<Thresholds, String> {
    let mut found = Thresholds::new();
    for (signal, value) in texts {
        let known = known(signal)?;
        let reclaim = if value.ends_with('%') {
            let share = share(value)?;
            if share <= 0.0 {
                return Err(format!(
                    "eviction percentage minimum reclaim {signal} must be positive: {value}"
                ));
            }
            Threshold::Share(share)
        } else {
            let negative = || format!("negative eviction minimum reclaim specified for {signal}");
            Threshold::Bytes(amount(value)?.ok_or_else(negative)?)
        };
        found.insert(known, reclaim);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Texts {
        let pair = |pair: &str| pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
        text.split(',').filter_map(pair).collect()
    }

    fn hard(text: &str) -> Result<HardReserved, String> {
        parse(&KubeletConfiguration { eviction_hard: texts(text), ..Default::default() }, false)
    }

    #[test]
    fn nothing_and_everything_are_no_threshold() {
        for none in ["memory.available=0%,nodefs.available=100%", "memory.available=100%", ""] {
            assert_eq!(hard(none), Ok(HardReserved::default()), "{none}");
        }
        let kept = HardReserved { memory: Threshold::Bytes(100 << 20), storage: Threshold::Share(0.1) };
        assert_eq!(hard("memory.available=100Mi,nodefs.available=10%,pid.available=5"), Ok(kept));
    }

    #[test]
    fn what_is_no_threshold_is_told_in_upstreams_words() {
        for (text, told) in [
            ("memory.avialable=1Gi", "unsupported eviction signal memory.avialable"),
            ("nodefs.available=10 %", "strconv.ParseFloat: parsing \"10 \": invalid syntax"),
            ("nodefs.available=-1%", "eviction percentage threshold nodefs.available must be >= 0%: -1%"),
            ("nodefs.available=101%", "eviction percentage threshold nodefs.available must be <= 100%: 101%"),
            ("memory.available=0", "eviction threshold memory.available must be positive: 0"),
            ("memory.available=0Mi", "eviction threshold memory.available must be positive: 0"),
            ("memory.available=-1Gi", "eviction threshold memory.available must be positive: -1Gi"),
            ("memory.available=1 Gi", quantity::in_go("1 Gi")),
        ] {
            assert_eq!(hard(text).unwrap_err(), told, "{text}");
        }
    }

    #[test]
    fn soft_thresholds_need_a_grace_period_and_all_of_it_is_read() {
        let of = |soft: &str, grace: &str, reclaim: &str| {
            let config = KubeletConfiguration {
                eviction_soft: texts(soft),
                eviction_soft_grace_period: texts(grace),
                eviction_minimum_reclaim: texts(reclaim),
                ..Default::default()
            };
            parse(&config, false)
        };
        let soft = "memory.available=1Gi";
        assert_eq!(of(soft, "memory.available=1m", "memory.available=10%"), Ok(HardReserved::default()));
        // 100% is no threshold, which needs no grace period.
        assert_eq!(of("memory.available=100%", "", ""), Ok(HardReserved::default()));
        for (soft, grace, reclaim, told) in [
            (soft, "", "", "grace period must be specified for the soft eviction threshold memory.available"),
            (soft, "memory.available=1", "", "time: missing unit in duration \"1\""),
            (
                soft,
                "memory.available=-1s",
                "",
                "invalid eviction grace period specified: -1s, must be a positive value",
            ),
            ("", "a.b=1s", "", "unsupported eviction signal a.b"),
            ("", "", "a.b=1", "unsupported eviction signal a.b"),
            ("", "", "pid.available=x", quantity::in_go("x")),
            ("", "", "pid.available=-1", "negative eviction minimum reclaim specified for pid.available"),
            (
                "",
                "",
                "pid.available=0%",
                "eviction percentage minimum reclaim pid.available must be positive: 0%",
            ),
        ] {
            assert_eq!(of(soft, grace, reclaim).unwrap_err(), format!("failed to create kubelet: {told}"));
        }
    }

    #[test]
    fn thresholds_that_allocatable_ignores_are_read_all_the_same() {
        let of = |text: &str| {
            parse(&KubeletConfiguration { eviction_hard: texts(text), ..Default::default() }, true)
        };
        assert_eq!(of("memory.available=1Gi"), Ok(HardReserved::default()));
        assert_eq!(of("a.b=1").unwrap_err(), "failed to create kubelet: unsupported eviction signal a.b");
    }
}
