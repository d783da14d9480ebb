//! What README and the quick start of pods show, typed as it stands there, one command after the other; what each prints
//! is compared. `xtask/tests/tidy/commands.rs` says which test runs the commands of other pages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::pty::Pty;

use crate::examples::docker_hub;

const PATIENCE: Duration = Duration::from_secs(60);

/// What must be printed by each command, as far as it stands in a line of code on the pages.
const SHOWN: [(&str, Expect); 13] = [
    ("gantry doctor", Expect::Says(&["cgroups", " checks, "])),
    ("gantry run examples/web.yaml", Expect::Runs),
    ("curl http://127.0.0.1:8088/", Expect::Says(&["hello from web\n"])),
    ("gantry ps", Expect::Says(&["NAMESPACE   NAME", "default     web    1/1     Running   0"])),
    ("gantry wait --for=condition=Ready pod/web", Expect::Says(&["pod/web condition met"])),
    ("gantry logs web -f", Expect::Follows("response:200")),
    ("gantry exec -it web -- sh", Expect::Shell),
    ("gantry run examples/broken.yaml", Expect::Says(&["pod/broken created"])),
    ("gantry explain broken", Expect::Says(&["  remedy  make the program listen on port 80 "])),
    ("gantry timeline web --svg web.svg", Expect::Makes("web.svg", "<title>default/web</title>")),
    ("gantry cp web:/etc/hostname hostname.txt", Expect::Makes("hostname.txt", "web\n")),
    ("gantry stop web", Expect::Stops("pod default/web stopped and removed")),
    ("gantry stop web broken", Expect::Stops("pod default/broken stopped and removed")),
];

/// How a command is run, and what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// To its end, with these words among what it prints.
    Says(&'static [&'static str]),
    /// In the foreground, until its pod is stopped.
    Runs,
    /// It goes on until it is interrupted, after these words.
    Follows(&'static str),
    /// On a terminal.
    Shell,
    /// A file with this in it.
    Makes(&'static str, &'static str),
    /// As `Says`; what `Runs` is over then.
    Stops(&'static str),
}

/// Commands of the lines of code of a page, without what a person's own place adds to them.
fn commands(page: &str) -> Result<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let code = text.split("\n```").skip(1).step_by(2);
    let lines = code.flat_map(str::lines).map(|line| line.split(" #").next().unwrap_or_default().trim());
    let plain = lines.map(|line| line.trim_start_matches("sudo "));
    Ok(plain
        .filter(|line| line.starts_with("gantry ") || line.starts_with("curl "))
        .map(str::to_owned)
        .collect())
}

/// A machine of its own, as a person finds it who has installed Gantry and is in the repository.
struct UserMachine {
    folder: PathBuf,
    path: String,
    run: Option<Child>,
}

impl Drop for UserMachine {
    fn drop(&mut self) {
        let Some(run) = &mut self.run else { return };
        // Something failed and is told already: it is to take its pods along.
        let pid = i32::try_from(run.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = poll("gantry run to end", PATIENCE, || match run.try_wait() {
            Ok(None) => Err("it runs on".to_owned()),
            _ => Ok(()),
        });
        let _ = run.kill();
        let _ = run.wait();
    }
}

impl UserMachine {
    /// The roots stand in the configuration file that all commands read.
    fn new(roots: &Roots) -> Result<Self> {
        let folder = roots.path("machine");
        fs::create_dir(&folder)?;
        symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples"), folder.join("examples"))?;
        let socket = format!("--agent-socket={}", roots.path("agent.sock").display());
        let logs = format!("--pod-logs-dir={}", roots.path("logs").display());
        let mut config = String::new();
        for flag in roots.flags()?.into_iter().chain([socket, logs]) {
            let (key, value) = match flag.trim_start_matches("--").split_once('=') {
                Some((key, value)) => (key.replace('-', "_"), format!("{value:?}")),
                None => (flag.trim_start_matches("--").replace('-', "_"), "true".to_owned()),
            };
            config.push_str(&format!("{key} = {value}\n"));
        }
        fs::write(roots.path("config.toml"), config)?;
        let path = format!("{}:{}", place::bin_dir()?.display(), std::env::var("PATH").unwrap_or_default());
        Ok(Self { folder, path, run: None })
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        // The program itself gets the signals.
        command.args(["-c", &format!("exec {line}")]).current_dir(&self.folder).stdin(Stdio::null());
        let config = self.folder.with_file_name("config.toml");
        command.env("PATH", &self.path).env("GANTRY_CONFIG", config).env("NO_PROXY", "*");
        command
    }

    /// What it printed, on either stream, and whether it went well.
    fn output(&self, line: &str) -> Result<(bool, String)> {
        let output = self.shell(line).output().with_context(|| line.to_owned())?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }

    /// The same until it says that; what is under way meanwhile is no failure yet.
    fn says(&self, line: &str, words: &[&str]) -> Result<()> {
        poll(line, PATIENCE, || {
            let (well, text) = self.output(line).map_err(|error| format!("{error:#}"))?;
            if well && words.iter().all(|word| text.contains(word)) { Ok(()) } else { Err(text) }
        })
    }

    fn types(&mut self, line: &str, expect: Expect) -> Result<()> {
        match expect {
            Expect::Says(words) => self.says(line, words),
            Expect::Runs => {
                let out = fs::File::create(self.folder.join("run.out"))?;
                let command = &mut self.shell(line);
                self.run = Some(command.stdout(out.try_clone()?).stderr(out).spawn()?);
                // A person reads that it runs before going on.
                self.says("gantry wait --for=condition=Ready pod/web", &["condition met"])
            }
            Expect::Follows(words) => {
                let mut pty = Pty::start(&self.shell(line), 120, 40)?;
                pty.await_text(words)?;
                pty.keys("\u{3}")?;
                pty.await_end().map(|_| ())
            }
            Expect::Shell => {
                let mut pty = Pty::start(&self.shell(line), 80, 24)?;
                pty.keys("echo in-$(hostname)\rexit 3\r")?;
                pty.await_text("in-web")?;
                let ended = pty.await_end()?;
                ensure!(ended.code() == Some(3), "{ended}");
                Ok(())
            }
            Expect::Makes(file, words) => {
                let (well, text) = self.output(line)?;
                ensure!(well, "{text}");
                let made = fs::read_to_string(self.folder.join(file))?;
                ensure!(made.contains(words), "{file}: {made}");
                Ok(())
            }
            Expect::Stops(words) => {
                let (well, text) = self.output(line)?;
                ensure!(well && text.contains(words), "{text}");
                let mut run = self.run.take().context("nothing runs")?;
                let said = || fs::read_to_string(self.folder.join("run.out")).unwrap_or_default();
                let ended = poll("gantry run to end", PATIENCE, || match run.try_wait() {
                    Ok(Some(status)) => Ok(status),
                    other => Err(format!("{other:?}: {}", said())),
                })?;
                ensure!(ended.success() && said().contains("default/web"), "{ended}: {}", said());
                Ok(())
            }
        }
    }
}

#[test]
fn the_pod_that_readme_shows_is_the_example() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let example = fs::read_to_string(root.join("examples/web.yaml"))?;
    for page in ["README.md", "README.ko.md"] {
        let text = fs::read_to_string(root.join(page)).with_context(|| page.to_owned())?;
        ensure!(
            text.contains(&format!("\n```yaml\n{example}```\n")),
            "{page} shows another pod than {example}"
        );
    }
    Ok(())
}

#[test]
fn every_command_of_the_first_pages_does_what_they_say() -> Result<()> {
    place::require_own_namespaces()?;
    let mut typed = Vec::new();
    for page in ["README.md", "docs/quickstart-pods.md"] {
        let roots = Roots::new()?;
        let _registry = docker_hub(&roots.path("certs.d"))?;
        // The built-in network has host ports.
        fs::remove_file(roots.path("net.d/10-test.conflist"))?;
        let scope = Scope { folders: Vec::new(), bridges: Vec::new(), ..roots.scope() };
        let before = Snapshot::take(&scope)?;
        let commands = commands(page)?;
        ensure!(commands.len() >= 8, "{page} shows {commands:?}: has its form changed?");
        let mut machine = UserMachine::new(&roots)?;
        for line in &commands {
            let Some((_, expect)) = SHOWN.iter().find(|(shown, _)| shown == line) else {
                bail!("{page} shows `{line}`: say in SHOWN what it must print");
            };
            machine.types(line, *expect).with_context(|| format!("{page}: {line}"))?;
        }
        drop(machine);
        before.await_clean(&scope)?;
        typed.extend(commands);
    }
    let unused = SHOWN.iter().find(|(shown, _)| !typed.iter().any(|line| line == shown));
    ensure!(unused.is_none(), "no page shows {unused:?} any more");
    Ok(())
}
