//! The tier `faults`: pulls from the real registry over a way that is cut, stalls, lies, refuses or leads to
//! another host, and pulls in whose middle the runtime or the power dies. Each ends in a whole image or in an
//! error in words with nothing left. Run by `cargo xtask test --tier faults`.

#![allow(
    clippy::disallowed_methods,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of this program is tests, its helpers too"
)]

mod deaths;
mod fixture;

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use gantry_tests::fault_proxy::{FaultProxy, ProxyFault};
use gantry_tests::image::{Built, sha256};

use crate::fixture::{PullFixture, two_layers};

#[test]
fn a_line_that_is_cut_goes_on_where_it_was() -> Result<()> {
    let fixture = PullFixture::new()?;
    let half = fixture.length() / 2;
    fixture.spoil(1, ProxyFault::Cut(half));
    fixture.pull().map_err(anyhow::Error::msg)?;
    let path = format!("/blobs/{}", fixture.large());
    let asked: Vec<_> =
        fixture.way.recorded_requests().into_iter().filter(|seen| seen.target.ends_with(&path)).collect();
    let ranges: Vec<_> = asked.iter().map(|seen| seen.range.clone()).collect();
    // What had come is not asked for again; some of the cut bytes may not have come.
    let [None, Some(rest)] = ranges.as_slice() else { anyhow::bail!("asked for {ranges:?}") };
    let from: u64 = rest
        .strip_prefix("bytes=")
        .and_then(|text| text.split('-').next()?.parse().ok())
        .context("a range")?;
    ensure!(from > 0 && from <= half, "went on at {from} after {half}");
    fixture.whole()?;
    fixture.clean()
}

#[test]
fn a_line_that_is_cut_at_each_try_fails_in_words() -> Result<()> {
    let fixture = PullFixture::new()?;
    fixture.spoil(200, ProxyFault::Cut(0));
    let Err(message) = fixture.pull() else { anyhow::bail!("the pull should have failed") };
    ensure!(message.contains(fixture.large()), "the layer is not named: {message}");
    fixture.bare()?;
    fixture.way.mend();
    fixture.survives()
}

#[test]
fn a_line_that_stalls_is_given_up_and_another_one_goes_on() -> Result<()> {
    let fixture = PullFixture::new()?;
    fixture.spoil(1, ProxyFault::Stall(fixture.length() / 3));
    fixture.survives()
}

#[test]
fn a_registry_that_wants_to_be_left_alone_is_asked_again() -> Result<()> {
    let fixture = PullFixture::new()?;
    fixture.spoil(2, ProxyFault::Status(429, "Retry-After: 1\r\n"));
    fixture.way.spoil("/manifests/", 1, ProxyFault::Status(429, "Retry-After: 1\r\n"));
    fixture.survives()
}

#[test]
fn a_registry_that_stumbles_is_asked_again() -> Result<()> {
    let fixture = PullFixture::new()?;
    for status in [500, 502, 503] {
        fixture.spoil(1, ProxyFault::Status(status, ""));
    }
    fixture.way.spoil("/manifests/", 1, ProxyFault::Status(500, ""));
    fixture.survives()
}

#[test]
fn a_registry_that_stays_broken_is_quoted() -> Result<()> {
    let fixture = PullFixture::new()?;
    fixture.spoil(4, ProxyFault::Status(503, ""));
    fixture.fails(&["503"])
}

#[test]
fn a_byte_that_is_another_one_is_a_wrong_digest() -> Result<()> {
    let fixture = PullFixture::new()?;
    fixture.spoil(1, ProxyFault::Flip(fixture.length() / 2));
    let large = fixture.large().to_owned();
    fixture.fails(&[large.as_str()])
}

#[test]
fn a_manifest_that_is_another_one_is_refused() -> Result<()> {
    let fixture = PullFixture::new()?;
    let by_digest = format!("{}/demo/web@{}", fixture.way.host(), fixture.built.manifest.digest);
    fixture.way.spoil("/manifests/", 1, ProxyFault::Flip(40));
    let error = fixture.node.pull(&by_digest).expect_err("not the manifest that was asked for");
    ensure!(error.message().contains(&fixture.built.manifest.digest), "{}", error.message());
    fixture.bare()?;
    fixture.survives()
}

#[test]
fn a_length_that_is_too_short_or_too_long_is_no_layer() -> Result<()> {
    for more in [-1000, 1000] {
        let fixture = PullFixture::new()?;
        fixture.spoil(60, ProxyFault::Length(more));
        let Err(message) = fixture.pull() else { anyhow::bail!("{more}: the pull should have failed") };
        ensure!(message.contains(fixture.large()), "{more}: the layer is not named: {message}");
        fixture.bare()?;
        fixture.way.mend();
        fixture.survives()?;
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
fn assert_refused(bytes: Vec<u8>, words: &[&str]) -> Result<()> {
    let fixture = PullFixture::with(with_large(bytes)?)?;
    let Err(message) = fixture.pull() else { anyhow::bail!("the pull should have failed") };
    for word in words.iter().chain([&fixture.large()]) {
        ensure!(message.contains(word), "{word:?} is not in: {message}");
    }
    fixture.bare()?;
    // The same name with an archive that is good.
    fixture.registry.push("demo/web", "v1", &two_layers()?)?;
    fixture.survives()
}

#[test]
fn a_truncated_archive_is_refused() -> Result<()> {
    let mut bytes = two_layers()?.layers[1].bytes.clone();
    bytes.truncate(bytes.len() / 2);
    assert_refused(bytes, &[])
}

#[test]
fn a_corrupt_gzip_stream_is_refused() -> Result<()> {
    let mut bytes = two_layers()?.layers[1].bytes.clone();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0xff);
    assert_refused(bytes, &[])
}

#[test]
fn a_token_that_expires_on_the_way_is_renewed() -> Result<()> {
    let fixture = PullFixture::new()?;
    // Of manifest, config and two layers.
    fixture.way.ask_for_tokens(2);
    fixture.pull().map_err(anyhow::Error::msg)?;
    let seen = fixture.way.recorded_requests();
    let tokens = seen.iter().filter(|seen| seen.target.starts_with("/token")).count();
    ensure!(tokens >= 2, "{tokens} tokens were asked for");
    fixture.whole()?;
    fixture.way.mend();
    fixture.clean()
}

#[test]
fn a_redirect_to_another_host_takes_no_credentials_along() -> Result<()> {
    let fixture = PullFixture::new()?;
    let other = FaultProxy::at(Ipv4Addr::new(127, 0, 0, 2), fixture.registry.addr())?;
    fixture.way.ask_for_tokens(1000);
    fixture.spoil(1, ProxyFault::Redirect(other.host()));
    fixture.pull().map_err(anyhow::Error::msg)?;
    let there = other.recorded_requests();
    ensure!(there.iter().any(|seen| seen.target.ends_with(fixture.large())), "nobody came: {there:?}");
    for seen in there {
        ensure!(seen.authorization.is_none(), "{} {} brought its token along", seen.method, seen.target);
    }
    ensure!(
        fixture.way.recorded_requests().iter().any(|seen| seen.authorization.is_some()),
        "no token was used at all"
    );
    fixture.whole()?;
    fixture.way.mend();
    fixture.clean()
}

#[test]
fn redirects_without_an_end_are_given_up() -> Result<()> {
    let fixture = PullFixture::new()?;
    fixture.spoil(60, ProxyFault::Redirect(fixture.way.host()));
    let Err(message) = fixture.pull() else { anyhow::bail!("the pull should have failed") };
    ensure!(message.contains("redirect"), "{message}");
    fixture.bare()?;
    fixture.way.mend();
    fixture.survives()
}
