//! `cargo xtask fuzz`: runs the fuzz targets of `fuzz/` and says what each did. Owns cargo-fuzz's place in the
//! cache, the walls around a target (it may write into its own folder alone) and the list of targets with the
//! files they try. Never judges bytes: the targets' bodies stand beside the parsers. Called by `main` and by
//! `tiers` with `--full`.

mod coverage;
mod llvm;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::sh;
use crate::summary::Counts;

const CARGO_FUZZ: &str = "0.13.2";

/// An input longer than this says nothing that a shorter one does not.
const LONGEST: u64 = 64 << 10;
/// Of those that are kept in the repository.
const LONGEST_KEPT: u64 = 16 << 10;

/// What was asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Wanted {
    /// These targets; all when none is named
    targets: Vec<String>,
    /// How long each one runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Runs nothing new: says how many lines of each parser the kept corpus reaches
    #[arg(long)]
    coverage: bool,
    /// Writes the inputs that are made by code into the corpus, and ends
    #[arg(long)]
    seeds: bool,
    /// Afterwards puts what reached something new into the corpus that is kept
    #[arg(long)]
    keep: bool,
}

/// A target and the files it tries.
#[derive(Debug)]
struct Target {
    name: &'static str,
    files: &'static [&'static str],
}

const TARGETS: [Target; 15] = [
    Target {
        name: "layer",
        files: &[
            "shim/unpack/src/tarball.rs",
            "shim/unpack/src/tarball/fields.rs",
            "shim/unpack/src/tarball/pax.rs",
            "shim/unpack/src/plan.rs",
        ],
    },
    Target { name: "unpack", files: &["shim/unpack/src/layer.rs", "shim/unpack/src/tree.rs"] },
    Target {
        name: "inflate",
        files: &[
            "shim/unpack/src/inflate.rs",
            "shim/inflate/src/member.rs",
            "shim/inflate/src/block.rs",
            "shim/inflate/src/code.rs",
            "shim/inflate/src/symbols.rs",
            "shim/inflate/src/fast.rs",
            "shim/inflate/src/input.rs",
            "shim/inflate/src/output.rs",
        ],
    },
    Target { name: "messages", files: &["shim/unpack/src/report.rs"] },
    Target { name: "frames", files: &["shim/monitor/src/wire.rs"] },
    Target { name: "manifest", files: &["shim/image/src/image/manifest.rs"] },
    Target {
        name: "reference",
        files: &["shim/image/src/image/reference.rs", "shim/image/src/image/digest.rs"],
    },
    Target { name: "hosts", files: &["shim/image/src/image/registry/hosts.rs"] },
    Target {
        name: "credentials",
        files: &["shim/image/src/image/auth.rs", "shim/image/src/image/registry/docker_config.rs"],
    },
    Target {
        name: "spdy",
        files: &["shim/src/streaming/spdy/frame.rs", "shim/src/streaming/spdy/headers.rs"],
    },
    Target { name: "websocket", files: &["shim/src/streaming/ws.rs", "shim/src/streaming/ws/channels.rs"] },
    Target {
        name: "spec",
        files: &[
            "shim/src/spec.rs",
            "shim/src/spec/capabilities.rs",
            "shim/src/spec/container.rs",
            "shim/src/spec/profiles.rs",
            "shim/src/spec/resources.rs",
            "shim/src/spec/sandbox.rs",
            "shim/src/spec/user.rs",
        ],
    },
    Target { name: "seccomp", files: &["shim/src/seccomp/profile.rs", "shim/src/seccomp/bpf.rs"] },
    Target {
        name: "cni_config",
        files: &[
            "cni/src/chain/conflist.rs",
            "cni/src/request.rs",
            "cni/src/bridge/config.rs",
            "cni/src/ptp/config.rs",
            "cni/src/portmap/config.rs",
            "cni/src/host_local/config.rs",
            "cni/src/host_local/alloc.rs",
        ],
    },
    Target { name: "cni_result", files: &["cni/src/result.rs", "cni/src/chain/cache.rs"] },
];

/// Does what was asked for.
pub(crate) fn run(wanted: &Wanted) -> Result<()> {
    let targets = chosen(&wanted.targets)?;
    if wanted.seeds {
        return seeds();
    }
    sh::require_root("a fuzz target runs behind walls: cargo xtask fuzz")?;
    if wanted.coverage {
        return coverage::report(&targets);
    }
    let programs = build()?;
    let mut found = Vec::new();
    for target in &targets {
        let outcome = once(target, &programs, wanted.seconds);
        match &outcome {
            Ok(line) => println!("{line}"),
            Err(error) => {
                println!("{:<12}{error:#}", target.name);
                found.push(target.name);
            }
        }
        if wanted.keep && outcome.is_ok() {
            keep(target, &programs)?;
        }
    }
    ensure!(found.is_empty(), "findings in {}", found.join(", "));
    Ok(())
}

/// Every target for `seconds`, as checks of a tier.
pub(crate) fn checks(seconds: u64) -> Result<Counts> {
    sh::require_root("the tier fuzz")?;
    let programs = build()?;
    let mut counts = Counts::default();
    for target in &TARGETS {
        let outcome = once(target, &programs, seconds).map(|line| println!("{line}"));
        counts += Counts::check(&format!("fuzz {}", target.name), outcome);
    }
    Ok(counts)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let find = |name: &String| TARGETS.iter().find(|target| target.name == *name);
    let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    names.iter().map(|name| find(name).with_context(|| format!("no target {name}: {known:?}"))).collect()
}

fn kept(target: &Target) -> PathBuf {
    sh::root().join("fuzz/corpus").join(target.name)
}

/// Where a target may write: what it found in earlier runs, its scratch files, its findings.
fn own(target: &Target) -> Result<PathBuf> {
    let folder = sh::target_dir().join("fuzz/work").join(target.name);
    for name in ["corpus", "artifacts", "tmp"] {
        let path = folder.join(name);
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
    }
    Ok(folder)
}

/// The seeds of targets whose bytes nobody could write by hand; tests of the runtime's crates know them.
fn seeds() -> Result<()> {
    let mut cargo = sh::cargo(&["test", "--lib"]);
    for package in ["gantry-monitor", "gantry-shim", "gantry-unpack"] {
        cargo.args(["--package", package]);
    }
    cargo.arg("seeds_are_written_where_they_are_asked_for");
    sh::run(cargo.env("GANTRY_FUZZ_SEEDS", sh::root().join("fuzz/corpus")))
}

/// All targets, and the folder they are in. Without a sanitiser: there is no unsafe code in what they try.
fn build() -> Result<PathBuf> {
    let tools = sh::cache_dir().join("tools");
    let program = tools.join("bin/cargo-fuzz");
    if !program.is_file() {
        let version = format!("cargo-fuzz@{CARGO_FUZZ}");
        let mut install = sh::cargo(&["install", "--quiet", "--locked", &version, "--root"]);
        sh::run(install.arg(&tools))?;
    }
    let folder = sh::target_dir().join("fuzz");
    let mut build = Command::new(&program);
    build.args(["fuzz", "build", "--sanitizer", "none", "--fuzz-dir", "fuzz", "--target-dir"]);
    sh::run(build.arg(&folder).current_dir(sh::root()))?;
    Ok(folder.join(host()?).join("release"))
}

/// The toolchain's own triple, which cargo-fuzz builds for.
fn host() -> Result<String> {
    let text = sh::output(Command::new("rustc").arg("-vV"))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}

/// The walls: all is read-only but the target's own folder, with a disk in memory for scratch files.
const WALLS: &str = r#"mount --bind "$0" "$0" && mount -t tmpfs -o size=128m,mode=700 tmpfs "$0/tmp" &&
    mount -o remount,bind,ro / && exec "$@""#;

/// `program` behind the walls.
fn walled(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--propagation", "private", "sh", "-c", WALLS]);
    command.arg(folder).arg(program).env("TMPDIR", folder.join("tmp")).stdin(Stdio::null());
    command
}

fn libfuzzer(target: &Target, programs: &Path) -> Result<Command> {
    let folder = own(target)?;
    let mut command = walled(&folder, &programs.join(target.name));
    command.arg(format!("-max_len={LONGEST}"));
    command.args(["-timeout=20", "-rss_limit_mb=1024", "-print_final_stats=1", "-reload=0"]);
    command.arg(format!("-artifact_prefix={}/", folder.join("artifacts").display()));
    let dictionary = sh::root().join("fuzz/dictionaries").join(target.name);
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    Ok(command)
}

/// Runs a target and returns its line.
fn once(target: &Target, programs: &Path, seconds: u64) -> Result<String> {
    let folder = own(target)?;
    let log = folder.join("log");
    let mut command = libfuzzer(target, programs)?;
    command.arg(format!("-max_total_time={seconds}")).arg(folder.join("corpus")).arg(kept(target));
    let to = fs::File::create(&log).with_context(|| format!("write {}", log.display()))?;
    let (begun, spent) = (Instant::now(), sh::cpu_of_children()?);
    let status = command.stdout(to.try_clone()?).stderr(to).status().context("start unshare")?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if !status.success() {
        let said =
            text.lines().find(|line| line.contains("panicked at") || line.contains("ERROR: libFuzzer"));
        let after = said.and_then(|said| text.split_once(said)).and_then(|(_, after)| after.lines().nth(1));
        let how = status.signal().map(|signal| format!(" (signal {signal})")).unwrap_or_default();
        bail!("{}{how} {}; {}", said.unwrap_or("failed"), after.unwrap_or_default(), log.display());
    }
    let stat = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name));
        found.map_or("?", |rest| rest.trim_start_matches(':').trim()).to_owned()
    };
    let executed = stat("number_of_executed_units");
    // A target that tried nothing has found nothing.
    ensure!(executed.parse().is_ok_and(|units: u64| units > 0), "{executed} executions; {}", log.display());
    let last = text.lines().rev().find(|line| line.contains(" cov: ")).unwrap_or_default();
    let word = |name: &str| last.split_whitespace().skip_while(|word| *word != name).nth(1).unwrap_or("?");
    Ok(format!(
        "{:<12}{:>6} s ({:>5} s of CPU) {:>11} executions, edges {:>6}, features {:>6}, inputs {}, {} MB",
        target.name,
        begun.elapsed().as_secs(),
        (sh::cpu_of_children()? - spent).as_secs(),
        executed,
        word("cov:"),
        word("ft:"),
        word("corp:"),
        stat("peak_rss_mb"),
    ))
}

/// Puts the smallest inputs that together reach all that is reached into the corpus that is kept.
fn keep(target: &Target, programs: &Path) -> Result<()> {
    let (folder, kept) = (own(target)?, kept(target));
    let fresh = folder.join("kept");
    if fresh.is_dir() {
        fs::remove_dir_all(&fresh)?;
    }
    fs::create_dir(&fresh)?;
    let mut merge = libfuzzer(target, programs)?;
    // By lines and not by how often they run: a quarter of the inputs; the last of two lengths counts.
    merge.arg("-use_counters=0").arg(format!("-max_len={LONGEST_KEPT}"));
    merge.args([
        "-set_cover_merge=1".as_ref(),
        fresh.as_os_str(),
        kept.as_os_str(),
        folder.join("corpus").as_os_str(),
    ]);
    merge.stdout(Stdio::null()).stderr(fs::File::create(folder.join("merge.log"))?);
    sh::run(&mut merge)?;
    for entry in fs::read_dir(&kept)? {
        let path = entry?.path();
        // Findings stay by name, whatever they reach.
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("finding-")) {
            fs::remove_file(&path)?;
        }
    }
    for entry in fs::read_dir(&fresh)? {
        let path = entry?.path();
        fs::copy(&path, kept.join(path.file_name().unwrap_or_default()))?;
    }
    Ok(())
}
