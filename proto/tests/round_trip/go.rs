//! The Go half of the round trip, built from Go's own cache. Owns the process and the framing:
//! pairs of a name and bytes, each behind its length. Never looks into a message. Called by the
//! round trip.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};

/// Some message, encoded.
pub(crate) type Pair = (String, Vec<u8>);

/// Runs one of the program's commands.
pub(crate) fn run(command: &str, input: &[Pair]) -> Result<Vec<Pair>> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = PROGRAM.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    let program = built.as_ref().map_err(|error| anyhow!("{error}"))?;
    let mut child = Command::new(program)
        .arg(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let bytes = frame(input)?;
    // It may answer before it has read everything, so somebody else has to write.
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().context("wait for the Go program")?;
    let written = writer.join().map_err(|_| anyhow!("the writer panicked"))?;
    if !output.status.success() {
        bail!("{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    written.context("write to the Go program")?;
    parse(&output.stdout)
}

fn build() -> Result<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").context("run it through cargo")?;
    let source = Path::new(&manifest).with_file_name("tests").join("go/proto");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cri-proto");
    let output = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(&source)
        .env("CGO_ENABLED", "0")
        .output()
        .context("start go: Go 1.26 is needed, from https://go.dev/dl, with its bin folder in PATH")?;
    if !output.status.success() {
        bail!("go build in {}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(program)
}

fn frame(pairs: &[Pair]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (name, body) in pairs {
        for part in [name.as_bytes(), body] {
            bytes.extend(u32::try_from(part.len()).context("a message over 4 GiB")?.to_be_bytes());
            bytes.extend(part);
        }
    }
    Ok(bytes)
}

fn parse(mut bytes: &[u8]) -> Result<Vec<Pair>> {
    let mut part = || -> Result<Option<Vec<u8>>> {
        let Some((size, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let size = usize::try_from(u32::from_be_bytes(*size))?;
        let (part, rest) = rest.split_at_checked(size).context("an answer that ends within a part")?;
        bytes = rest;
        Ok(Some(part.to_vec()))
    };
    let mut pairs = Vec::new();
    while let Some(name) = part()? {
        pairs.push((String::from_utf8(name)?, part()?.context("a name without its message")?));
    }
    Ok(pairs)
}
