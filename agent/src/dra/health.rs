//! How the devices of DRA drivers are, as drivers told last, and for how long that counts. Pure: owns the book, its rules and
//! its form (`ROOT/dra_health_state`, upstream's); never asks a driver and never writes. Called by [`super::watch`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_model::go_json;
use gantry_proto::dra_health as wire;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::devices::{DeviceCondition, DeviceHealthWord as Word};

/// How long a word counts when the driver does not say: DefaultHealthTimeout.
const TIMEOUT: Duration = Duration::from_secs(30);
/// ResourceHealthMessageMaxLength, in bytes.
const LONGEST_MESSAGE: usize = 1024;
const CUT: &str = "...";

/// Pool and name of a device.
pub(super) type DeviceKey = (String, String);

/// What was told of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) key: DeviceKey,
    pub(super) word: Word,
    pub(super) message: String,
    pub(super) timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    report: Report,
    /// Unix nanoseconds.
    updated: i64,
}

impl Record {
    fn is_stale(&self, now: i64) -> bool {
        self.left(now).is_none()
    }

    /// How long it counts yet.
    fn left(&self, now: i64) -> Option<Duration> {
        let age = Duration::from_nanos(u64::try_from(now.saturating_sub(self.updated)).unwrap_or(0));
        self.report.timeout.checked_sub(age)
    }
}

/// By driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HealthBook(BTreeMap<String, BTreeMap<DeviceKey, Record>>);

/// What a driver told.
pub(super) fn reports(answer: wire::NodeWatchResourcesResponse) -> Vec<Report> {
    let report = |of: wire::DeviceHealth| {
        let word = match of.health() {
            wire::HealthStatus::Healthy => Word::Healthy,
            wire::HealthStatus::Unhealthy => Word::Unhealthy,
            wire::HealthStatus::Unknown => Word::Unknown,
        };
        let seconds = u64::try_from(of.health_check_timeout_seconds).unwrap_or(0);
        let timeout = if seconds == 0 { TIMEOUT } else { Duration::from_secs(seconds) };
        let wire::DeviceIdentifier { pool_name, device_name } = of.device.unwrap_or_default();
        Report { key: (pool_name, device_name), word, message: shortened(of.message), timeout }
    };
    answer.devices.into_iter().map(report).collect()
}

fn shortened(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE - CUT.len()));
        message.push_str(CUT);
    }
    message
}

impl HealthBook {
    /// Takes in what a driver told at `now`, in Unix nanoseconds. Returns the devices of which something is new.
    pub(super) fn update(&mut self, driver: &str, reports: Vec<Report>, now: i64) -> BTreeSet<DeviceKey> {
        let devices = self.0.entry(driver.to_owned()).or_default();
        let mut changed = BTreeSet::new();
        for report in reports {
            let key = report.key.clone();
            if devices.get(&key).is_none_or(|known| known.report != report) {
                changed.insert(key.clone());
            }
            devices.insert(key, Record { report, updated: now });
        }
        changed.extend(self.expire(driver, now));
        changed
    }

    /// Nobody has told of these for too long: nobody knows. Returns which they are.
    pub(super) fn expire(&mut self, driver: &str, now: i64) -> BTreeSet<DeviceKey> {
        let mut changed = BTreeSet::new();
        for (key, record) in self.0.get_mut(driver).into_iter().flatten() {
            if record.report.word != Word::Unknown && record.is_stale(now) {
                record.report.word = Word::Unknown;
                record.report.message.clear();
                record.updated = now;
                changed.insert(key.clone());
            }
        }
        changed
    }

    /// Until something of a driver counts no more; none when nothing does.
    pub(super) fn rest(&self, driver: &str, now: i64) -> Option<Duration> {
        let known = |record: &&Record| record.report.word != Word::Unknown;
        let records = self.0.get(driver)?.values().filter(known);
        records.map(|record| record.left(now).unwrap_or_default()).min()
    }

    /// The driver tells no more. Returns the devices that nobody knows of now.
    pub(super) fn clear(&mut self, driver: &str) -> BTreeSet<DeviceKey> {
        self.0.remove(driver).unwrap_or_default().into_keys().collect()
    }

    /// How a device is.
    pub(super) fn get(&self, driver: &str, key: &DeviceKey, now: i64) -> DeviceCondition {
        let record = self.0.get(driver).and_then(|devices| devices.get(key));
        match record.filter(|record| !record.is_stale(now)) {
            Some(Record { report, .. }) => {
                DeviceCondition { word: report.word, message: report.message.clone() }
            }
            None => DeviceCondition { word: Word::Unknown, message: String::new() },
        }
    }

    /// The file's content.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let device = |Record { report, updated }: &Record| DeviceFile {
            pool: report.key.0.clone(),
            device: report.key.1.clone(),
            health: report.word.as_str().to_owned(),
            updated: Timestamp::from_nanosecond(i128::from(*updated)).unwrap_or_default(),
            timeout: i64::try_from(report.timeout.as_nanos()).unwrap_or(i64::MAX),
            message: report.message.clone(),
        };
        let driver = |devices: &BTreeMap<DeviceKey, Record>| DriverFile {
            devices: devices
                .iter()
                .map(|((pool, name), own)| (format!("{pool}/{name}"), device(own)))
                .collect(),
        };
        let all: BTreeMap<&String, DriverFile> =
            self.0.iter().map(|(name, own)| (name, driver(own))).collect();
        Ok(go_json::text(&all)?.into_bytes())
    }

    /// What such a file says.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn decode(content: &[u8]) -> Result<Self, serde_json::Error> {
        let all: BTreeMap<String, DriverFile> = serde_json::from_slice(content)?;
        let record = |file: DeviceFile| {
            let timeout = Duration::from_nanos(u64::try_from(file.timeout).unwrap_or(0));
            let report = Report {
                key: (file.pool, file.device),
                word: Word::parse(&file.health),
                message: file.message,
                timeout: if timeout.is_zero() { TIMEOUT } else { timeout },
            };
            let updated = i64::try_from(file.updated.as_nanosecond()).unwrap_or(0);
            (report.key.clone(), Record { report, updated })
        };
        let devices = |file: DriverFile| file.devices.into_values().map(record).collect();
        Ok(Self(all.into_iter().map(|(name, file)| (name, devices(file))).collect()))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct DriverFile {
    #[serde(default, rename = "Devices")]
    devices: BTreeMap<String, DeviceFile>,
}

#[derive(Debug, Serialize, Deserialize)]
struct DeviceFile {
    #[serde(rename = "PoolName")]
    pool: String,
    #[serde(rename = "DeviceName")]
    device: String,
    #[serde(rename = "Health")]
    health: String,
    #[serde(rename = "LastUpdated")]
    updated: Timestamp,
    /// Nanoseconds; the usual one when 0.
    #[serde(default, rename = "HealthCheckTimeout")]
    timeout: i64,
    #[serde(default, rename = "Message")]
    message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn report(word: Word, message: &str) -> Report {
        let key = ("pool".to_owned(), "dev".to_owned());
        Report { key, word, message: message.to_owned(), timeout: TIMEOUT }
    }

    fn condition(word: Word, message: &str) -> DeviceCondition {
        DeviceCondition { word, message: message.to_owned() }
    }

    #[test]
    fn a_word_counts_until_its_time_is_up() {
        let mut book = HealthBook::default();
        let key = report(Word::Healthy, "").key;
        assert_eq!(book.update("d", vec![report(Word::Healthy, "")], 0), [key.clone()].into());
        assert_eq!(book.update("d", vec![report(Word::Healthy, "")], SECOND), [].into(), "nothing new");
        assert_eq!(book.update("d", vec![report(Word::Unhealthy, "hot")], SECOND), [key.clone()].into());
        assert_eq!(book.get("d", &key, SECOND), condition(Word::Unhealthy, "hot"));
        assert_eq!(book.rest("d", 11 * SECOND), Some(Duration::from_secs(20)));
        assert_eq!(book.expire("d", 31 * SECOND), [].into());
        // Read after its time, though nobody has looked since.
        assert_eq!(book.get("d", &key, 32 * SECOND), condition(Word::Unknown, ""));
        assert_eq!(book.expire("d", 32 * SECOND), [key.clone()].into());
        assert_eq!((book.expire("d", 99 * SECOND), book.rest("d", 99 * SECOND)), ([].into(), None));
        assert_eq!(book.clear("d"), [key.clone()].into());
        assert_eq!(book.get("d", &key, 0), condition(Word::Unknown, ""));
    }

    #[test]
    fn the_file_is_upstreams() {
        let mut book = HealthBook::default();
        book.update("d", vec![report(Word::Unhealthy, "hot")], 1_800_000_000 * SECOND);
        let file = String::from_utf8(book.encode().unwrap()).unwrap();
        assert_eq!(
            file,
            r#"{"d":{"Devices":{"pool/dev":{"PoolName":"pool","DeviceName":"dev","Health":"Unhealthy","LastUpdated":"2027-01-15T08:00:00Z","HealthCheckTimeout":30000000000,"Message":"hot"}}}}"#
        );
        assert_eq!(HealthBook::decode(file.as_bytes()).unwrap(), book);
        assert!(HealthBook::decode(b"{").is_err());
    }

    #[test]
    fn a_driver_may_say_how_long_its_word_counts_and_talk_too_much() {
        let device = |seconds, message: &str| wire::DeviceHealth {
            device: Some(wire::DeviceIdentifier { pool_name: "p".into(), device_name: "d".into() }),
            health: wire::HealthStatus::Healthy.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: seconds,
            message: message.to_owned(),
        };
        let devices = vec![device(60, ""), device(-1, &"ä".repeat(600))];
        let [long, usual] = &reports(wire::NodeWatchResourcesResponse { devices })[..] else { panic!() };
        assert_eq!((long.timeout, usual.timeout), (Duration::from_secs(60), TIMEOUT));
        assert!(usual.message.len() <= LONGEST_MESSAGE && usual.message.ends_with("ä..."));
    }
}
