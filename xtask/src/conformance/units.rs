//! A stand-in for systemd, for specs that restart the kubelet as a unit: the three programs that e2e_node calls for it, as
//! scripts in front of PATH. Owns the units' processes and their end; never another program's. Called by [`super::call`].

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::sh;

/// We are root.
const SUDO: &str = "#!/bin/sh\nexec \"$@\"\n";

/// Writes down the unit's command, and starts it. It says a version: suites ask for one.
const SYSTEMD_RUN: &str = r#"#!/bin/sh
[ "$1" != --version ] || { echo 'systemd 252 (a stand-in)'; exit 0; }
log=/dev/null
while [ $# -gt 0 ]; do
  case $1 in
    -p) log_of=${2#StandardError=append:}; [ "$log_of" = "$2" ] || log=$log_of; shift 2 ;;
    --unit=*) unit=${1#--unit=}; unit=${unit%.service}; shift ;;
    -*) shift ;;
    *) break ;;
  esac
done
{
  printf 'exec >>%s 2>&1\nexec' "$log"
  for word; do printf " '%s'" "$(printf %s "$word" | sed "s/'/'\\\\''/g; s/%%/%/g; s/\\\$\\\$/\$/g")"; done
  echo
} >"FOLDER/$unit.command"
exec systemctl start "$unit"
"#;

/// What systemd does for a unit that is one process.
const SYSTEMCTL: &str = r#"#!/bin/sh
verb=$1; shift
pid() { cat "FOLDER/$1.pid" 2>/dev/null; }
runs() { [ -n "$(pid "$1")" ] && grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$(pid "$1")/status"; }
start() {
  setsid sh "FOLDER/$1.command" </dev/null >/dev/null 2>&1 &
  echo $! >"FOLDER/$1.pid"
}
stop() {
  ! runs "$1" || kill "$(pid "$1")"
  left=300
  while runs "$1"; do
    left=$((left - 1)); [ $left -gt 0 ] || { kill -9 "$(pid "$1")"; left=300; }
    sleep 0.1
  done
}
case $verb in
  list-units)
    for file in FOLDER/*.command; do
      unit=$(basename "$file" .command)
      case " $* " in *' --state=running '*) runs "$unit" || continue ;; esac
      echo "  $unit.service loaded active running $unit"
    done
    exit 0 ;;
  reset-failed) exit 0 ;;
esac
unit=${1%.service}
[ -e "FOLDER/$unit.command" ] || { echo "Unit $1 could not be found." >&2; exit 5; }
case $verb in
  start) start "$unit" ;;
  restart) stop "$unit"; start "$unit" ;;
  stop) stop "$unit" ;;
  kill) ! runs "$unit" || kill "$(pid "$unit")" ;;
  *) echo "systemctl $verb is not played" >&2; exit 1 ;;
esac
"#;

/// The scripts.
#[derive(Debug)]
pub(super) struct Units {
    bin: PathBuf,
}

impl Units {
    /// Writes them below `folder`.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let bin = folder.join("units-bin");
        let units = folder.join("units");
        for made in [&bin, &units] {
            fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
        }
        for (name, text) in [("sudo", SUDO), ("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL)] {
            let path = bin.join(name);
            let written = fs::write(&path, text.replace("FOLDER", &units.display().to_string()));
            written.with_context(|| format!("write {}", path.display()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { bin })
    }

    /// PATH with them in front.
    pub(super) fn path(&self) -> Result<OsString> {
        let others = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&others));
        std::env::join_paths(folders).context("join PATH")
    }

    /// Ends what a suite left running.
    pub(super) fn end(&self) -> Result<()> {
        let mut listed = Command::new(self.bin.join("systemctl"));
        listed.args(["list-units", "--state=running"]).env("PATH", self.path()?);
        let text = String::from_utf8_lossy(&sh::output(&mut listed)?).into_owned();
        for unit in text.lines().filter_map(|line| line.split_whitespace().next()) {
            sh::run(Command::new(self.bin.join("systemctl")).args(["stop", unit]).env("PATH", self.path()?))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gantry_tests::poll::poll;

    use super::*;

    fn call(units: &Units, words: &[&str]) -> String {
        let mut command = Command::new(units.bin.join(words[0]));
        let said = sh::output(command.args(&words[1..]).env("PATH", units.path().unwrap())).unwrap();
        String::from_utf8(said).unwrap()
    }

    #[test]
    fn a_unit_is_started_listed_killed_restarted_and_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let units = Units::make(folder.path()).unwrap();
        assert!(call(&units, &["systemd-run", "--version"]).starts_with("systemd 2"));
        let (log, said) = (folder.path().join("log"), folder.path().join("said"));
        let to = format!("StandardError=append:{}", log.display());
        let script = format!("echo \"it's $1\" >>{}; echo begun >&2; exec sleep 60", said.display());
        let command = ["sh", "-c", &script, "sh", "100%% $$5"];
        let unit =
            ["systemd-run", "-p", "Delegate=true", "-p", &to, "--unit=kubelet-7.service", "--slice=a.slice"];
        call(&units, &[&unit[..], &command[..]].concat());
        let begun = |times: usize| {
            poll("it to begin", Duration::from_secs(10), || {
                let text = fs::read_to_string(&log).unwrap_or_default();
                if text == "begun\n".repeat(times) { Ok(()) } else { Err(text) }
            })
            .unwrap();
        };
        begun(1);
        assert_eq!(fs::read_to_string(&said).unwrap(), "it's 100% $5\n");
        let running = || call(&units, &["sudo", "systemctl", "list-units", "*kubelet*", "--state=running"]);
        assert!(running().contains("kubelet-7.service"));
        call(&units, &["systemctl", "kill", "kubelet-7"]);
        poll("it to end", Duration::from_secs(10), || {
            let text = running();
            if text.is_empty() { Ok(()) } else { Err(text) }
        })
        .unwrap();
        assert!(call(&units, &["systemctl", "list-units", "*kubelet*"]).contains("kubelet-7.service"));
        call(&units, &["systemctl", "reset-failed", "kubelet-7"]);
        call(&units, &["systemctl", "restart", "kubelet-7"]);
        begun(2);
        units.end().unwrap();
        assert_eq!(running(), "");
    }
}
