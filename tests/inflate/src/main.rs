//! `gantry-inflate-bench UNPACK FILE.gz...`: how many MB of each file come out in a second of processor time, by
//! `gantry-unpack inflate` as shipped (its path is UNPACK), igzip if it is in PATH, zlib-ng and libdeflate. The best of
//! three each. Owns the table of ADR 0030; nothing of Gantry uses it. Run by hand, see CONTRIBUTING.md.

use std::fs::File;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;

const TRIES: usize = 3;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let unpack = args.next().context("usage: gantry-inflate-bench GANTRY-UNPACK FILE.gz...")?;
    for path in args {
        let packed = std::fs::read(&path).with_context(|| path.clone())?;
        let length = length(&packed)?;
        println!("{path}: {:.1} MB packed, {:.1} MB in it", mega(packed.len()), mega(length));
        let show = |name: &str, seconds: Result<f64>| match seconds {
            Ok(seconds) => println!("  {name:<24}{:>8.0} MB/s", mega(length) / seconds),
            Err(error) => println!("  {name:<24}       - ({error:#})"),
        };
        show("gantry-unpack", program(Command::new(&unpack).args(["inflate", "gzip", "600"]), &path));
        show("igzip", program(Command::new("igzip").args(["-d", "-c"]), &path));
        show("zlib-ng", best(|| Ok(self::length(&packed)?)));
        show("libdeflate", best(|| whole(&packed, length)));
    }
    Ok(())
}

fn mega(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

/// By zlib-ng, in pieces as a stream comes, hashed by nobody.
fn length(packed: &[u8]) -> io::Result<usize> {
    let mut stream = flate2::read::MultiGzDecoder::new(packed);
    let (mut buffer, mut all) = (vec![0; 128 << 10], 0);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(all),
            count => all += count,
        }
    }
}

/// All in memory at once, the only way that libdeflate has.
fn whole(packed: &[u8], length: usize) -> Result<usize> {
    let mut out = vec![0; length];
    Ok(libdeflater::Decompressor::new().gzip_decompress(packed, &mut out)?)
}

fn best(mut run: impl FnMut() -> Result<usize>) -> Result<f64> {
    least(|| {
        let before = measure_usage(getrusage(UsageWho::RUSAGE_SELF)?);
        run()?;
        Ok(measure_usage(getrusage(UsageWho::RUSAGE_SELF)?) - before)
    })
}

fn program(command: &mut Command, path: &str) -> Result<f64> {
    least(|| {
        let before = measure_usage(getrusage(UsageWho::RUSAGE_CHILDREN)?);
        let input = File::open(path).with_context(|| path.to_owned())?;
        let ended = command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        ensure!(ended.success(), "{ended}");
        Ok(measure_usage(getrusage(UsageWho::RUSAGE_CHILDREN)?) - before)
    })
}

fn least(mut run: impl FnMut() -> Result<Duration>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..TRIES {
        least = least.min(run()?.as_secs_f64());
    }
    Ok(least)
}

fn measure_usage(usage: Usage) -> Duration {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}
