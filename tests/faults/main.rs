//! The tier `faults`: pulls from the real registry over a way that is cut, stalls, lies, refuses or leads to
//! another host, and pulls in whose middle the runtime or the power dies. Each ends in a whole image or in an
//! error in words with nothing left. Run by `cargo xtask test --tier faults`.

mod bed;
mod deaths;

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use gantry_tests::crooked::{Crooked, Fault};
use gantry_tests::image::{Built, sha256};

use crate::bed::{Bed, two_layers};

#[test]
fn a_line_that_is_cut_goes_on_where_it_was() -> Result<()> {
    let bed = Bed::new()?;
    let half = bed.length() / 2;
    bed.spoil(1, Fault::Cut(half));
    bed.pull().map_err(anyhow::Error::msg)?;
    let path = format!("/blobs/{}", bed.large());
    let asked: Vec<_> = bed.way.seen().into_iter().filter(|seen| seen.target.ends_with(&path)).collect();
    let ranges: Vec<_> = asked.iter().map(|seen| seen.range.clone()).collect();
    // What had come is not asked for again; some of the cut bytes may not have come.
    let [None, Some(rest)] = ranges.as_slice() else { anyhow::bail!("asked for {ranges:?}") };
    let from: u64 = rest
        .strip_prefix("bytes=")
        .and_then(|text| text.split('-').next()?.parse().ok())
        .context("a range")?;
    ensure!(from > 0 && from <= half, "went on at {from} after {half}");
    bed.whole()?;
    bed.clean()
}

#[test]
fn a_line_that_is_cut_at_each_try_fails_in_words() -> Result<()> {
    let bed = Bed::new()?;
    bed.spoil(200, Fault::Cut(0));
    let Err(message) = bed.pull() else { anyhow::bail!("the pull should have failed") };
    ensure!(message.contains(bed.large()), "the layer is not named: {message}");
    bed.bare()?;
    bed.way.mend();
    bed.survives()
}

#[test]
fn a_line_that_stalls_is_given_up_and_another_one_goes_on() -> Result<()> {
    let bed = Bed::new()?;
    bed.spoil(1, Fault::Stall(bed.length() / 3));
    bed.survives()
}

#[test]
fn a_registry_that_wants_to_be_left_alone_is_asked_again() -> Result<()> {
    let bed = Bed::new()?;
    bed.spoil(2, Fault::Status(429, "Retry-After: 1\r\n"));
    bed.way.spoil("/manifests/", 1, Fault::Status(429, "Retry-After: 1\r\n"));
    bed.survives()
}

#[test]
fn a_registry_that_stumbles_is_asked_again() -> Result<()> {
    let bed = Bed::new()?;
    for status in [500, 502, 503] {
        bed.spoil(1, Fault::Status(status, ""));
    }
    bed.way.spoil("/manifests/", 1, Fault::Status(500, ""));
    bed.survives()
}

#[test]
fn a_registry_that_stays_broken_is_quoted() -> Result<()> {
    let bed = Bed::new()?;
    bed.spoil(4, Fault::Status(503, ""));
    bed.fails(&["503"])
}

#[test]
fn a_byte_that_is_another_one_is_a_wrong_digest() -> Result<()> {
    let bed = Bed::new()?;
    bed.spoil(1, Fault::Flip(bed.length() / 2));
    let large = bed.large().to_owned();
    bed.fails(&[large.as_str()])
}

#[test]
fn a_manifest_that_is_another_one_is_refused() -> Result<()> {
    let bed = Bed::new()?;
    let by_digest = format!("{}/demo/web@{}", bed.way.host(), bed.built.manifest.digest);
    bed.way.spoil("/manifests/", 1, Fault::Flip(40));
    let error = bed.node.pull(&by_digest).expect_err("not the manifest that was asked for");
    ensure!(error.message().contains(&bed.built.manifest.digest), "{}", error.message());
    bed.bare()?;
    bed.survives()
}

#[test]
fn a_length_that_is_too_short_or_too_long_is_no_layer() -> Result<()> {
    for more in [-1000, 1000] {
        let bed = Bed::new()?;
        bed.spoil(60, Fault::Length(more));
        let Err(message) = bed.pull() else { anyhow::bail!("{more}: the pull should have failed") };
        ensure!(message.contains(bed.large()), "{more}: the layer is not named: {message}");
        bed.bare()?;
        bed.way.mend();
        bed.survives()?;
    }
    Ok(())
}

/// An image whose large layer is these bytes, whatever they are.
fn with_large(bytes: Vec<u8>) -> Result<Built> {
    let mut built = two_layers()?;
    let mut manifest: serde_json::Value = serde_json::from_slice(&built.manifest.bytes)?;
    built.layers[1].digest = sha256(&bytes);
    let layer = manifest.pointer_mut("/layers/1").context("a manifest without a second layer")?;
    layer["digest"] = built.layers[1].digest.clone().into();
    layer["size"] = bytes.len().into();
    built.layers[1].bytes = bytes;
    built.manifest.bytes = serde_json::to_vec(&manifest)?;
    built.manifest.digest = sha256(&built.manifest.bytes);
    Ok(built)
}

/// The registry serves what the manifest names: only the archive is bad.
fn refused(bytes: Vec<u8>, words: &[&str]) -> Result<()> {
    let bed = Bed::with(with_large(bytes)?)?;
    let Err(message) = bed.pull() else { anyhow::bail!("the pull should have failed") };
    for word in words.iter().chain([&bed.large()]) {
        ensure!(message.contains(word), "{word:?} is not in: {message}");
    }
    bed.bare()?;
    // The same name with an archive that is good.
    bed.registry.push("demo/web", "v1", &two_layers()?)?;
    bed.survives()
}

#[test]
fn a_truncated_archive_is_refused() -> Result<()> {
    let mut bytes = two_layers()?.layers[1].bytes.clone();
    bytes.truncate(bytes.len() / 2);
    refused(bytes, &[])
}

#[test]
fn a_corrupt_gzip_stream_is_refused() -> Result<()> {
    let mut bytes = two_layers()?.layers[1].bytes.clone();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    refused(bytes, &[])
}

#[test]
fn a_token_that_expires_on_the_way_is_renewed() -> Result<()> {
    let bed = Bed::new()?;
    // Of manifest, config and two layers.
    bed.way.ask_for_tokens(2);
    bed.pull().map_err(anyhow::Error::msg)?;
    let seen = bed.way.seen();
    let tokens = seen.iter().filter(|seen| seen.target.starts_with("/token")).count();
    ensure!(tokens >= 2, "{tokens} tokens were asked for");
    bed.whole()?;
    bed.way.mend();
    bed.clean()
}

#[test]
fn a_redirect_to_another_host_takes_no_credentials_along() -> Result<()> {
    let bed = Bed::new()?;
    let other = Crooked::at(Ipv4Addr::new(127, 0, 0, 2), bed.registry.addr())?;
    bed.way.ask_for_tokens(1000);
    bed.spoil(1, Fault::Redirect(other.host()));
    bed.pull().map_err(anyhow::Error::msg)?;
    let there = other.seen();
    ensure!(there.iter().any(|seen| seen.target.ends_with(bed.large())), "nobody came: {there:?}");
    for seen in there {
        ensure!(seen.authorization.is_none(), "{} {} brought its token along", seen.method, seen.target);
    }
    ensure!(bed.way.seen().iter().any(|seen| seen.authorization.is_some()), "no token was used at all");
    bed.whole()?;
    bed.way.mend();
    bed.clean()
}

#[test]
fn redirects_without_an_end_are_given_up() -> Result<()> {
    let bed = Bed::new()?;
    bed.spoil(60, Fault::Redirect(bed.way.host()));
    let Err(message) = bed.pull() else { anyhow::bail!("the pull should have failed") };
    ensure!(message.contains("redirect"), "{message}");
    bed.bare()?;
    bed.way.mend();
    bed.survives()
}
