//! What is asked of systemd's manager object. Owns which calls, and which refusals mean that it is so already;
//! never decides a property. Blocks. Called by the agent's tree and the runtime's sandboxes.

use std::path::{Path, PathBuf};

use crate::bus::{Bus, Error};
use crate::wire::{Call, Property, Value};

/// Where systemd itself listens, with or without a message bus; root alone is let in.
pub const SOCKET: &str = "/run/systemd/private";

const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// Whether systemd is this machine's init, as sd_booted(3) tells.
#[must_use]
pub fn is_running() -> bool {
    Path::new("/run/systemd/system").symlink_metadata().is_ok_and(|meta| meta.is_dir())
}

/// The way to systemd. Each question is a connection of its own: it may be restarted at any time.
#[derive(Debug, Clone)]
pub struct Systemd {
    socket: PathBuf,
}

impl Default for Systemd {
    fn default() -> Self {
        Self::at(SOCKET.into())
    }
}

impl Systemd {
    /// At another socket: tests have one of their own.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Whether it can be asked.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Error> {
        Bus::connect(&self.socket).map(drop)
    }

    /// Makes a unit that lives until the next boot and waits until it is active. Whether it was made:
    /// not when there was one of that name already, whose properties stay.
    ///
    /// # Errors
    /// What systemd says, or that it cannot be asked.
    pub fn start(&self, unit: &str, properties: Vec<Property>) -> Result<bool, Error> {
        let mut bus = Bus::connect(&self.socket)?;
        let text = |text: &str| Value::Text(text.to_owned());
        let arguments = [text(unit), text("replace"), Value::Properties(properties), Value::NoUnits];
        match ask(&mut bus, "StartTransientUnit", ("start", unit), &arguments) {
            Ok(body) => done(&mut bus, body, ("start", unit)).map(|()| true),
            Err(Error::Refused { name, .. }) if name == UNIT_EXISTS => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes properties until the next boot.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub fn set(&self, unit: &str, properties: Vec<Property>) -> Result<(), Error> {
        if properties.is_empty() {
            return Ok(());
        }
        let mut bus = Bus::connect(&self.socket)?;
        let arguments = [Value::Text(unit.to_owned()), Value::Flag(true), Value::Properties(properties)];
        ask(&mut bus, "SetUnitProperties", ("limit", unit), &arguments).map(drop)
    }

    /// Ends a unit and forgets how it ended; none of that name is fine.
    ///
    /// # Errors
    /// As [`Systemd::start`].
    pub fn stop(&self, unit: &str) -> Result<(), Error> {
        let mut bus = Bus::connect(&self.socket)?;
        let text = |text: &str| Value::Text(text.to_owned());
        match ask(&mut bus, "StopUnit", ("stop", unit), &[text(unit), text("replace")]) {
            Ok(body) => done(&mut bus, body, ("stop", unit))?,
            Err(Error::Refused { name, .. }) if name == NO_SUCH_UNIT => {}
            Err(error) => return Err(error),
        }
        // A unit that failed would keep its name; one that did not is gone by now.
        match ask(&mut bus, "ResetFailedUnit", ("forget", unit), &[text(unit)]) {
            Err(Error::Refused { name, .. }) if name == NO_SUCH_UNIT => Ok(()),
            result => result.map(drop),
        }
    }
}

fn ask(
    bus: &mut Bus,
    member: &'static str,
    about: (&'static str, &str),
    arguments: &[Value],
) -> Result<Vec<String>, Error> {
    let call = Call {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member,
        arguments,
    };
    bus.call(&call, about)
}

/// The answer names a job; what counts is how it ends.
fn done(bus: &mut Bus, body: Vec<String>, (doing, unit): (&'static str, &str)) -> Result<(), Error> {
    let job = body.into_iter().next().ok_or(Error::Damaged)?;
    let result = bus.ended(&job, unit)?;
    // Skipped: it was so already.
    if matches!(result.as_str(), "done" | "skipped") {
        return Ok(());
    }
    Err(Error::Job { doing, unit: unit.to_owned(), result })
}

#[cfg(test)]
mod tests;
