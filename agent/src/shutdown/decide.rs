//! Which pods end together, how long each may take, and what logind is told of that. Pure: owns the arithmetic; never
//! ends a pod, never writes a file. Called by [`super::run`], [`super::end`] and [`super::bus`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::shutdown::ShutdownPeriod;

/// No pod is killed by force, whatever its group has left.
const SHORTEST_GRACE: Duration = Duration::from_secs(1);
/// The drop-in that raises logind's limit, by upstream's name.
pub(super) const DROP_IN: &str = "99-kubelet.conf";
/// What it sets.
const KEY: &str = "InhibitDelayMaxSec";

/// Pods that end at the same time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group<T> {
    /// Theirs.
    pub(super) period: ShutdownPeriod,
    /// May be none.
    pub(super) pods: Vec<T>,
}

/// By rising priority; `periods` are sorted. A pod belongs to the highest period that is not above its priority, and
/// one below all of them to the lowest.
pub(super) fn groups<T>(
    periods: &[ShutdownPeriod],
    pods: impl IntoIterator<Item = T>,
    priority: impl Fn(&T) -> i32,
) -> Vec<Group<T>> {
    let mut groups: Vec<Group<T>> =
        periods.iter().map(|period| Group { period: *period, pods: Vec::new() }).collect();
    for pod in pods {
        let priority = priority(&pod);
        let at = periods.partition_point(|period| period.priority <= priority).saturating_sub(1);
        if let Some(group) = groups.get_mut(at) {
            group.pods.push(pod);
        }
    }
    groups
}

/// A pod's own grace, or that of its group if that is shorter.
pub(super) fn grace(own: Duration, group: Duration) -> Duration {
    own.min(group).max(SHORTEST_GRACE)
}

/// How long a shutdown is to be delayed.
pub(super) fn requested(periods: &[ShutdownPeriod]) -> Duration {
    periods.iter().map(|period| period.duration()).sum()
}

/// The periods within what logind grants: each gets its share, so that the last group, the critical one, is not the one
/// that gets nothing.
pub(super) fn within(periods: &[ShutdownPeriod], granted: Duration) -> Vec<ShutdownPeriod> {
    let requested = requested(periods);
    if requested <= granted {
        return periods.to_vec();
    }
    let share = |period: &ShutdownPeriod| {
        let whole = u128::from(period.duration().as_secs()) * u128::from(granted.as_secs());
        let part = whole / u128::from(requested.as_secs()).max(1);
        ShutdownPeriod { seconds: i64::try_from(part).unwrap_or(period.seconds), ..*period }
    };
    periods.iter().map(share).collect()
}

/// The drop-in's text. logind counts whole seconds.
pub(super) fn drop_in(delay: Duration) -> String {
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    format!("# By the kubelet: a shutdown waits for its pods.\n[Login]\n{KEY}={seconds}\n")
}

/// The drop-in that wins over ours: logind takes them by the order of their names, whatever folder each is in (#102818).
/// `files` are those of all folders.
pub(super) fn overruling(files: &[(PathBuf, String)]) -> Option<&Path> {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let sets = |text: &str| text.lines().any(|line| line.trim_start().starts_with(KEY));
    let later = |(path, text): &&(PathBuf, String)| {
        sets(text) && name(path).is_some_and(|name| name.as_str() > DROP_IN)
    };
    files.iter().filter(later).max_by_key(|(path, _)| name(path)).map(|(path, _)| path.as_path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(priority: i32, seconds: i64) -> ShutdownPeriod {
        ShutdownPeriod { priority, seconds }
    }

    #[test]
    fn a_pod_belongs_to_the_highest_period_that_is_not_above_it() {
        let periods = [period(0, 20), period(100, 10), period(2_000_000_000, 5)];
        let found = groups(&periods, [-7, 0, 99, 100, 5000, 2_000_001_000], |priority| *priority);
        let found: Vec<_> = found.into_iter().map(|group| (group.period.seconds, group.pods)).collect();
        assert_eq!(found, [(20, vec![-7, 0, 99]), (10, vec![100, 5000]), (5, vec![2_000_001_000])]);
    }

    #[test]
    fn a_pods_own_grace_counts_where_it_is_shorter_and_nobody_is_killed_by_force() {
        let seconds = Duration::from_secs;
        assert_eq!(grace(seconds(30), seconds(10)), seconds(10));
        assert_eq!(grace(seconds(3), seconds(10)), seconds(3));
        assert_eq!(grace(seconds(30), Duration::ZERO), seconds(1));
    }

    #[test]
    fn issue_102818_a_shorter_delay_is_shared_by_all_groups() {
        let periods = [period(0, 40), period(2_000_000_000, 20)];
        assert_eq!(requested(&periods), Duration::from_secs(60));
        assert_eq!(within(&periods, Duration::from_secs(60)), periods);
        assert_eq!(within(&periods, Duration::from_secs(30)), [period(0, 20), period(2_000_000_000, 10)]);
        assert_eq!(within(&periods, Duration::ZERO), [period(0, 0), period(2_000_000_000, 0)]);
        assert_eq!(within(&[period(0, -5)], Duration::ZERO), [period(0, -5)]);
    }

    #[test]
    fn issue_102818_the_drop_in_that_wins_is_named() {
        let file = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
        let ours = file("/etc/systemd/logind.conf.d/99-kubelet.conf", "[Login]\nInhibitDelayMaxSec=60\n");
        let debian = file(
            "/usr/lib/systemd/logind.conf.d/unattended-upgrades-logind-maxdelay.conf",
            "[Login]\nInhibitDelayMaxSec=30\n",
        );
        let other = file("/etc/systemd/logind.conf.d/zz.conf", "[Login]\n#InhibitDelayMaxSec=1\n");
        let early = file("/etc/systemd/logind.conf.d/10.conf", "[Login]\nInhibitDelayMaxSec=1\n");
        assert_eq!(overruling(&[early.clone(), ours.clone(), other.clone()]), None);
        let all = [debian.clone(), ours, other, early];
        assert_eq!(overruling(&all), Some(debian.0.as_path()));
    }

    #[test]
    fn the_drop_in_asks_for_whole_seconds_and_never_less() {
        assert!(drop_in(Duration::from_secs(30)).ends_with("\n[Login]\nInhibitDelayMaxSec=30\n"));
        assert!(drop_in(Duration::from_millis(30_001)).ends_with("=31\n"));
    }
}
