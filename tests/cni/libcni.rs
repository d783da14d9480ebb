//! Upstream's libcni on our plugins, each a link to `gantry`: what containerd and CRI-O would see of them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::netns::Netns;
use gantry_tests::poll::bound;
use gantry_tests::{go, place};
use serde_json::{Value, json};

/// Folders, links and a network of one test.
struct Host {
    folder: tempfile::TempDir,
    drive: PathBuf,
}

impl Host {
    /// `list` gets the folder that leases are to lie in.
    fn new(list: impl FnOnce(&Path) -> Value) -> Result<Self> {
        place::require_own_namespaces()?;
        let host = Host { folder: tempfile::tempdir()?, drive: go::libcni()? };
        std::fs::create_dir(host.path("bin"))?;
        for name in ["bridge", "ptp", "loopback", "host-local", "portmap"] {
            std::os::unix::fs::symlink(place::bin_dir()?.join("gantry"), host.path("bin").join(name))?;
        }
        std::fs::write(host.path("10-net.conflist"), list(&host.path("leases")).to_string())?;
        Ok(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, verb: &str, flags: &[&str]) -> Result<Output> {
        Ok(Command::new(&self.drive)
            .arg("-conf")
            .arg(self.path("10-net.conflist"))
            .arg("-bin")
            .arg(self.path("bin"))
            .arg("-cache")
            .arg(self.path("cache"))
            .args(flags)
            .arg(verb)
            .output()?)
    }

    fn ok(&self, verb: &str, flags: &[&str]) -> Result<String> {
        let output = self.run(verb, flags)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{verb} {flags:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn run_expecting_error(&self, verb: &str, flags: &[&str]) -> Result<String> {
        let output = self.run(verb, flags)?;
        ensure!(!output.status.success(), "{verb} {flags:?} went well");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn leases(&self, network: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("leases").join(network)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.parse::<std::net::IpAddr>().is_ok())
            .collect();
        names.sort();
        names
    }
}

fn ruleset() -> Result<String> {
    Ok(String::from_utf8(Command::new("nft").args(["list", "ruleset"]).output()?.stdout)?)
}

fn greet(netns: &Netns, at: &str) -> Result<()> {
    let at: SocketAddr = at.parse()?;
    let listener = netns.inside(move || TcpListener::bind(at))?.with_context(|| at.to_string())?;
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            // A caller that is gone needs no greeting.
            let _ = stream.write_all(b"hello");
        }
    });
    Ok(())
}

fn assert_greeting(at: &str) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&at.parse()?, bound(Duration::from_secs(20)))?;
    stream.set_read_timeout(Some(bound(Duration::from_secs(20))))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text == "hello", "{at} said {text:?}");
    Ok(())
}

fn bridge(name: &str, folder: &Path, more: &Value) -> Value {
    let mut ipam = json!({"type": "host-local", "dataDir": folder, "ranges": [[{"subnet": "10.98.0.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}]});
    if let (Some(ipam), Some(more)) = (ipam.as_object_mut(), more.as_object()) {
        ipam.extend(more.clone());
    }
    json!({"type": "bridge", "bridge": name, "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": ipam})
}

#[test]
fn libcni_drives_a_whole_life_of_an_attachment() -> Result<()> {
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let host = Host::new(|leases| {
        let bridge = bridge("gt-interop", leases, &json!({}));
        json!({"cniVersion": "1.1.0", "name": "interop", "plugins": [bridge, portmap]})
    })?;
    let before = ruleset()?;
    let netns = Netns::new("gt-interop")?;
    let path = netns.path();
    let ports = json!([{"hostPort": 18280, "containerPort": 80, "protocol": "tcp"}]).to_string();
    let pod = ["-id", "pod1", "-netns", &path, "-ports", &ports];

    assert_eq!(host.ok("VALIDATE", &[])?.trim(), "portMappings");
    host.ok("STATUS", &[])?;
    let result: Value = serde_json::from_str(&host.ok("ADD", &pod)?)?;
    assert_eq!(result["cniVersion"], "1.1.0");
    assert_eq!(result["ips"][0]["address"], "10.98.0.2/24");
    assert_eq!(result["interfaces"][2]["sandbox"], path.as_str());
    let cached: Value = serde_json::from_str(&host.ok("CACHED", &pod)?)?;
    assert_eq!(cached["ips"], result["ips"]);
    host.ok("CHECK", &pod)?;
    greet(&netns, "0.0.0.0:80")?;
    assert_greeting("10.98.0.2:80")?;
    assert_greeting("127.0.0.1:18280")?;

    // A second ADD is refused and takes nothing from the first.
    let error = host.run_expecting_error("ADD", &pod)?;
    assert!(error.contains("is leased to container pod1 interface eth0 already"), "{error}");
    host.ok("CHECK", &pod)?;
    assert_greeting("127.0.0.1:18280")?;

    host.ok("GC", &["-valid", "pod1"])?;
    assert_eq!(host.leases("interop"), ["10.98.0.2"]);
    host.ok("CHECK", &pod)?;
    host.ok("DEL", &pod)?;
    host.ok("DEL", &pod)?;
    let error = host.run_expecting_error("CHECK", &pod)?;
    assert!(error.contains("code 7") && error.contains("prevResult missing"), "{error}");
    assert_eq!(host.leases("interop"), Vec::<String>::new());
    assert_eq!(ruleset()?, before);

    // GC is all that is left to an attachment whose DEL never comes.
    host.ok("ADD", &pod)?;
    host.ok("GC", &["-valid", "another"])?;
    assert_eq!(host.leases("interop"), Vec::<String>::new());
    assert_eq!(ruleset()?, before);
    ensure!(Command::new("ip").args(["link", "del", "gt-interop"]).status()?.success(), "the bridge");
    Ok(())
}

#[test]
fn libcni_gets_codes_and_reasons() -> Result<()> {
    let narrow =
        json!({"ranges": [[{"subnet": "10.97.0.0/24", "rangeStart": "10.97.0.9", "rangeEnd": "10.97.0.9"}]]});
    let list = |plugin: &Value| json!({"cniVersion": "1.1.0", "name": "codes", "plugins": [plugin]});
    let host = Host::new(|leases| list(&bridge("gt-codes", leases, &narrow)))?;
    let (one, two) = (Netns::new("gt-codes1")?, Netns::new("gt-codes2")?);
    host.ok("ADD", &["-id", "one", "-netns", &one.path()])?;
    let error = host.run_expecting_error("STATUS", &[])?;
    assert!(error.contains("code 50") && error.contains("no free address in 10.97.0.9-10.97.0.9"), "{error}");
    let error = host.run_expecting_error("ADD", &["-id", "two", "-netns", &two.path()])?;
    assert!(error.contains("code 999") && error.contains("no free address"), "{error}");
    let error = host.run_expecting_error("ADD", &["-id", "two", "-netns", "/proc/self/ns/net"])?;
    assert!(error.contains("code 8") && error.contains("should not be the same"), "{error}");
    host.ok("DEL", &["-id", "two", "-netns", &two.path()])?;
    host.ok("DEL", &["-id", "one", "-netns", "/run/netns/gone"])?;
    let mut wrong = bridge("gt-codes", &host.path("leases"), &narrow);
    wrong["macspoofchk"] = true.into();
    std::fs::write(host.path("10-net.conflist"), list(&wrong).to_string())?;
    let error = host.run_expecting_error("ADD", &["-id", "two", "-netns", &two.path()])?;
    assert!(error.contains("code 7") && error.contains("macspoofchk is not supported"), "{error}");
    ensure!(Command::new("ip").args(["link", "del", "gt-codes"]).status()?.success(), "the bridge");
    Ok(())
}

#[test]
fn libcni_speaks_every_version_with_our_ptp_and_loopback() -> Result<()> {
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let list = |leases: &Path| {
            json!({"cniVersion": version, "name": "versions", "plugins": [
            {"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "dataDir": leases,
                "subnet": "10.96.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "loopback"}]})
        };
        let host = Host::new(list)?;
        let before = ruleset()?;
        let netns = Netns::new("gt-versions")?;
        let path = netns.path();
        let pod = ["-id", "pod1", "-netns", path.as_str()];
        let result: Value = serde_json::from_str(&host.ok("ADD", &pod)?).with_context(|| version)?;
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result["ips"][0]["address"], "10.96.0.2/24", "{version}");
        greet(&netns, "10.96.0.2:80")?;
        assert_greeting("10.96.0.2:80")?;
        if version >= "0.4.0" {
            host.ok("CHECK", &pod)?;
        }
        host.ok("DEL", &pod)?;
        assert_eq!(ruleset()?, before, "{version}");
    }
    Ok(())
}
