//! What `gantry doctor` makes of the plugins. Pure: facts in, checks out. Every word of a plugin is shown short and without
//! what a terminal would obey.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::{AskedSocket, PluginAnswer, PluginFacts, PluginInfo, PluginSocket};
use crate::doctor::Check;
use crate::doctor::judge::{ok, warn};

/// Characters of a name, a path or a message that are shown.
const SHOWN: usize = 200;
/// Characters of a name: a resource's domain has 253, what follows its slash 63.
const NAME: usize = 317;
const RESTART: &str = "restart the pod that serves it, and see that pod's log";

pub(super) fn plugins(facts: &PluginFacts) -> Vec<Check> {
    let unread = facts.unread.iter().map(|(path, why)| {
        let remedy = "look as root, and mend or remove what stands there";
        warn("plugins", format!("{}: {}", plain(&path.to_string_lossy()), plain(why)), remedy.to_owned())
    });
    let mut checks: Vec<Check> = unread.chain(facts.asked.iter().map(row)).collect();
    if facts.more {
        let seen = "more sockets or files in the kubelet's folders of plugins than are looked at".to_owned();
        checks.push(warn("plugins", seen, "remove what no plugin serves any more".to_owned()));
    }
    checks.extend(facts.resources.iter().take(SHOWN).map(|(name, healthy)| resource(name, *healthy)));
    checks
}

fn row(asked: &AskedSocket) -> Check {
    let socket = plain(&asked.socket.path.to_string_lossy());
    match &asked.answer {
        Ok(PluginAnswer::Serves) => ok("device plugin", format!("{socket}: answers")),
        Ok(PluginAnswer::Info(info)) => info_row(info, &socket),
        Err(why) => {
            let seen = format!("{socket}{} does not answer: {}", since(&asked.socket), plain(why));
            let remedy = format!("{RESTART}; where no pod serves it any more, remove the socket");
            warn("plugin", seen, remedy)
        }
    }
}

/// `, there since 2026-11-28T10:00:00Z,`.
fn since(socket: &PluginSocket) -> String {
    let made = socket.made.and_then(|made| Timestamp::try_from(made).ok());
    made.map(|made| format!(", there since {made:.0},")).unwrap_or_default()
}

fn info_row(info: &PluginInfo, socket: &str) -> Check {
    let row = match info.kind.as_str() {
        "CSIPlugin" => "CSI driver",
        "DevicePlugin" => "device plugin",
        "DRAPlugin" => "DRA driver",
        _ => "plugin",
    };
    let endpoint = plain(&info.endpoint.to_string_lossy());
    let mut seen =
        format!("{}, versions {}, at {endpoint}", plain(&info.name), plain(&info.versions.join(", ")));
    if row == "CSI driver" {
        let word = if info.folder { "with" } else { "without" };
        let _ = write!(seen, ", {word} a folder in plugins");
    }
    if !is_name(&info.name) {
        let remedy = format!("the kubelet refuses this name: correct the plugin that serves {socket}");
        return warn(row, seen, remedy);
    }
    match &info.service {
        Some(Ok(())) => ok(row, format!("{seen}: answers")),
        Some(Err(why)) => warn(row, format!("{seen}: {}", plain(why)), RESTART.to_owned()),
        None => {
            let remedy = "Gantry's kubelet takes CSIPlugin, DevicePlugin and DRAPlugin only".to_owned();
            warn(row, format!("{seen}: type {}", plain(&info.kind)), remedy)
        }
    }
}

/// Of a driver or a resource: letters, digits and what stands between them.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
    !name.is_empty() && name.len() <= NAME && name.chars().all(is_plain)
}

fn resource(name: &str, healthy: usize) -> Check {
    let seen = format!("{}: {healthy} healthy", plain(name));
    match healthy {
        0 => warn("devices", seen, "see whether the plugin's pod runs, and its log".to_owned()),
        _ => ok("devices", seen),
    }
}

/// What others wrote, on one line: escaped as in Rust where it is not plain, and cut where it is long.
fn plain(text: &str) -> String {
    let mut line = String::new();
    let mut left = text.chars();
    for c in left.by_ref().take(SHOWN) {
        if c == ' ' || c.is_ascii_graphic() || (!c.is_control() && c.is_alphanumeric()) {
            line.push(c);
        } else {
            line.extend(c.escape_default());
        }
    }
    if left.next().is_some() {
        line.push('…');
    }
    line
}
