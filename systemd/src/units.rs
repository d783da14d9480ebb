//! What is asked of systemd's manager object. Owns which calls, which refusals mean that it is so already, and that a
//! question is asked again of a systemd that was executed anew; never decides a property. Blocks. Called by the
//! agent's tree and the runtime's sandboxes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::bus::{Bus, Error};
use crate::wire::{MethodCall, Property, Value};

/// Where systemd itself listens, with or without a message bus; root alone is let in.
const SOCKET: &str = "/run/systemd/private";

/// There where systemd is init, as sd_booted(3) tells.
const BOOTED: &str = "/run/systemd/system";

/// systemd answers late when hundreds of units begin at once; past this it does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// An end is asked for again by whoever wanted it: others wait behind it.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// As long as an upgrade takes to execute systemd anew.
const ANEW: Duration = Duration::from_secs(5);

const STEP: Duration = Duration::from_millis(50);

const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

const MANAGER: &str = "/org/freedesktop/systemd1";
const MANAGER_INTERFACE: &str = "org.freedesktop.systemd1.Manager";
const UNIT_INTERFACE: &str = "org.freedesktop.systemd1.Unit";

const DESCRIPTION: &str = "Description";

/// systemd before 242 knows quotas, and no other period than 100 ms.
const PERIOD: &str = "CPUQuotaPeriodUSec";

/// The way to systemd. Each question is a connection of its own: it may be restarted at any time.
#[derive(Debug, Clone)]
pub struct Systemd {
    socket: PathBuf,
    booted: PathBuf,
    /// How long a question is asked again of one that goes and comes.
    anew: Duration,
}

impl Default for Systemd {
    fn default() -> Self {
        Self { socket: SOCKET.into(), booted: BOOTED.into(), anew: ANEW }
    }
}

/// A name of what is done, and of the unit that it is done to: for errors.
type Operation<'a> = (&'static str, &'a str);

impl Systemd {
    /// At another socket, on a machine with another init: tests have one of their own.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self { booted: socket.with_extension("booted"), socket, anew: Duration::ZERO }
    }

    /// Whether it can be asked.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Error> {
        self.ask(PATIENCE, |_, _| Ok(()))
    }

    /// Makes a unit that lives until the next boot and waits until it is active. Whether it was made:
    /// not when there was one of that name already, whose properties stay.
    ///
    /// # Errors
    /// What systemd says, or that it cannot be asked.
    pub fn start(&self, unit: &str, properties: &[Property]) -> Result<bool, Error> {
        self.ask(PATIENCE, |bus, again| {
            let arguments =
                [text(unit), text("replace"), Value::Properties(properties.to_vec()), Value::NoUnits];
            match manage(bus, "StartTransientUnit", ("start", unit), &arguments) {
                Ok(body) => check_job_result(bus, body, ("start", unit)).map(|()| true),
                // Maybe it is ours: the answer was lost.
                Err(Error::Refused { name, .. }) if name == UNIT_EXISTS => {
                    Ok(again && is_described(bus, unit, properties)? && wait_until_active(bus, unit)?)
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Changes properties until the next boot.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub fn set(&self, unit: &str, properties: &[Property]) -> Result<(), Error> {
        if properties.is_empty() {
            return Ok(());
        }
        let set = |bus: &mut Bus, properties: Vec<Property>| {
            let arguments = [text(unit), Value::Flag(true), Value::Properties(properties)];
            manage(bus, "SetUnitProperties", ("limit", unit), &arguments).map(drop)
        };
        self.ask(PATIENCE, |bus, _| match set(bus, properties.to_vec()) {
            // All or none of them were set.
            Err(Error::Refused { message, .. }) if message.contains(PERIOD) => {
                set(bus, properties.iter().filter(|one| one.name != PERIOD).cloned().collect())
            }
            result => result,
        })
    }

    /// What a unit's maker says that it is; none where there is no such unit.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub fn description(&self, unit: &str) -> Result<Option<String>, Error> {
        self.ask(PATIENCE, |bus, _| property(bus, unit, DESCRIPTION))
    }

    /// Ends a unit with all that is in it and forgets how it ended; none of that name is fine.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub fn stop(&self, unit: &str) -> Result<(), Error> {
        self.end(unit, "replace")
    }

    /// Ends a slice and nothing else: units that somebody has just made in it run on, and it is made again with the
    /// next. None of that name is fine.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub fn stop_alone(&self, slice: &str) -> Result<(), Error> {
        self.end(slice, "ignore-dependencies")
    }

    fn end(&self, unit: &str, mode: &str) -> Result<(), Error> {
        self.ask(STOP_PATIENCE, |bus, _| {
            match manage(bus, "StopUnit", ("stop", unit), &[text(unit), text(mode)]) {
                Ok(body) => check_job_result(bus, body, ("stop", unit))?,
                Err(Error::Refused { name, .. }) if name == NO_SUCH_UNIT => {}
                Err(error) => return Err(error),
            }
            // A unit that failed would keep its name; one that did not is gone by now.
            match manage(bus, "ResetFailedUnit", ("forget", unit), &[text(unit)]) {
                Err(Error::Refused { name, .. }) if name == NO_SUCH_UNIT => Ok(()),
                result => result.map(drop),
            }
        })
    }

    /// One question, within its time; asked again, and told so, when systemd went away meanwhile.
    fn ask<T>(
        &self,
        patience: Duration,
        mut question: impl FnMut(&mut Bus, bool) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let begun = Instant::now();
        let mut again = false;
        loop {
            let result =
                Bus::connect(&self.socket, begun + patience).and_then(|mut bus| question(&mut bus, again));
            match result {
                Err(Error::Connect { path, source })
                    if source.kind() == std::io::ErrorKind::NotFound && !self.is_booted() =>
                {
                    return Err(Error::Absent { path, source });
                }
                Err(error) if error.is_of_a_restart() && begun.elapsed() < self.anew => {
                    again = true;
                    std::thread::sleep(STEP);
                }
                result => return result,
            }
        }
    }

    fn is_booted(&self) -> bool {
        is_folder(&self.booted)
    }
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn manage(
    bus: &mut Bus,
    member: &'static str,
    about: Operation<'_>,
    arguments: &[Value],
) -> Result<Vec<String>, Error> {
    let (path, interface) = (MANAGER, MANAGER_INTERFACE);
    bus.call(
        &MethodCall { destination: "org.freedesktop.systemd1", path, interface, member, arguments },
        about,
    )
}

/// Of a unit that is loaded.
fn property(bus: &mut Bus, unit: &str, name: &str) -> Result<Option<String>, Error> {
    let object = match manage(bus, "GetUnit", ("find", unit), &[text(unit)]) {
        Ok(body) => body.into_iter().next().ok_or(Error::Damaged)?,
        Err(Error::Refused { name, .. }) if name == NO_SUCH_UNIT => return Ok(None),
        Err(error) => return Err(error),
    };
    let call = MethodCall {
        destination: "org.freedesktop.systemd1",
        path: &object,
        interface: "org.freedesktop.DBus.Properties",
        member: "Get",
        arguments: &[text(UNIT_INTERFACE), text(name)],
    };
    let body = bus.call(&call, ("read a property of", unit))?;
    body.into_iter().next().ok_or(Error::Damaged).map(Some)
}

/// Whether its description is the one among these.
fn is_described(bus: &mut Bus, unit: &str, properties: &[Property]) -> Result<bool, Error> {
    let Some(described) = property(bus, unit, DESCRIPTION)? else { return Ok(false) };
    Ok(properties.contains(&Property::text(DESCRIPTION, &described)))
}

/// Waits for what another connection began, within this one's time. Whether it is active then.
fn wait_until_active(bus: &mut Bus, unit: &str) -> Result<bool, Error> {
    loop {
        match property(bus, unit, "ActiveState")?.as_deref() {
            Some("active") => return Ok(true),
            Some("activating" | "inactive") => std::thread::sleep(STEP),
            _ => return Ok(false),
        }
    }
}

/// The answer names a job; what counts is how it ends.
fn check_job_result(bus: &mut Bus, body: Vec<String>, (doing, unit): Operation<'_>) -> Result<(), Error> {
    let job = body.into_iter().next().ok_or(Error::Damaged)?;
    let result = bus.await_job(&job, unit)?;
    // Skipped: it was so already.
    if matches!(result.as_str(), "done" | "skipped") {
        return Ok(());
    }
    Err(Error::Job { doing, unit: unit.to_owned(), result })
}

#[cfg(test)]
mod tests;
