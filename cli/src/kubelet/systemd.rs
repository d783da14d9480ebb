//! What systemd's watchdog expects of this process, by its environment. Owns the two variables; never a sign of life.
//! Called by [`super::process`].

use std::time::Duration;

use anyhow::{Result, bail};

/// How long systemd waits for a sign of life, if it does.
pub(super) fn watchdog() -> Result<Option<Duration>> {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    period(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id())
}

fn period(micros: Option<String>, pid: Option<String>, own: u32) -> Result<Option<Duration>> {
    let Some(micros) = micros else { return Ok(None) };
    let wrong = |name: &str, text: &str| {
        anyhow::anyhow!(
            "create health checker: configure watchdog: error converting {name}: {text:?} is no number"
        )
    };
    let period = micros.parse::<u64>().map_err(|_| wrong("WATCHDOG_USEC", &micros))?;
    if let Some(pid) = pid
        && pid.parse::<u32>().map_err(|_| wrong("WATCHDOG_PID", &pid))? != own
    {
        return Ok(None);
    }
    let period = Duration::from_micros(period);
    if period <= Duration::from_secs(1) {
        bail!("create health checker: configure watchdog timeout too small: {period:?}");
    }
    Ok(Some(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(micros: &str, pid: Option<&str>) -> Result<Option<Duration>> {
        period(Some(micros.to_owned()), pid.map(str::to_owned), 7)
    }

    #[test]
    fn the_watchdog_is_for_this_process_and_not_too_fast() {
        assert_eq!(period(None, None, 7).unwrap(), None);
        assert_eq!(of("4000000", None).unwrap(), Some(Duration::from_secs(4)));
        assert_eq!(of("4000000", Some("7")).unwrap(), Some(Duration::from_secs(4)));
        assert_eq!(of("4000000", Some("8")).unwrap(), None);
        assert!(of("1000000", None).unwrap_err().to_string().contains("watchdog timeout too small"));
        assert!(of("soon", None).is_err());
    }
}
