//! `gantry pull`: fetches images and shows how far each layer has come. Owns the asking and the
//! drawing, for `gantry run` and `gantry ps` as well; the pull is the runtime's and goes on without us.
//! Called by main.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use gantry_agent::runtime_ext::pulls::progress::Progress;
use gantry_model::clock::{Clock, SystemClock};
use gantry_proto::cri::image_service_client::ImageServiceClient;
use gantry_proto::cri::{ImageSpec, ImageStatusRequest, PullImageRequest};
use tonic::transport::Channel;

use crate::args::PullArgs;
use crate::image_store::ImageStore;
use crate::{output, runtime_client};

/// Between looks at a terminal; elsewhere lines are for people who read later.
const LIVE: Duration = Duration::from_millis(100);
const PLAIN: Duration = Duration::from_secs(5);
const BAR: usize = 30;

/// Pulls one after the other; goes on past those that can't be pulled.
pub(crate) async fn pull(args: PullArgs) -> Result<ExitCode> {
    let PullArgs { images, quiet, runtime, store } = args;
    let store = ImageStore::find_or_make(&runtime, store).await?;
    let client = runtime_client::images(store.channel());
    let mut code = ExitCode::SUCCESS;
    for image in images {
        if let Err(error) = one(client.clone(), &image, quiet).await {
            output::say(&format!("error: {}", failure(&image, &format!("{error:#}"))));
            code = ExitCode::FAILURE;
        }
    }
    drop(client);
    store.close().await?;
    Ok(code)
}

/// Our own runtime says itself what it pulled.
fn failure(image: &str, why: &str) -> String {
    if why.starts_with("pull ") { why.to_owned() } else { format!("pull {image}: {why}") }
}

async fn one(client: ImageServiceClient<Channel>, image: &str, quiet: bool) -> Result<()> {
    let spec = spec(image);
    let ask = PullImageRequest { image: Some(spec.clone()), ..PullImageRequest::default() };
    let mut puller = client.clone();
    let mut done = Box::pin(puller.pull_image(ask));
    let begun = Instant::now();
    let live = std::io::stderr().is_terminal();
    let mut drawn = 0;
    let result = loop {
        // Both arms are cancel-safe: the pull is polled by reference, the timer has no state.
        tokio::select! {
            result = &mut done => break result,
            () = tokio::time::sleep(if live { LIVE } else { PLAIN }), if !quiet => {}
        }
        if let Some(progress) = look(client.clone(), spec.clone()).await {
            drawn = show(&progress, image, live, drawn);
        }
    };
    if drawn > 0 {
        output::say_part(&output::erase(drawn));
    }
    let id = runtime_client::answer(result)?.image_ref;
    let text = if quiet {
        format!("{id}\n")
    } else {
        format!("pulled {image} in {:.1} s: {id}\n", begun.elapsed().as_secs_f64())
    };
    Ok(output::print(text.as_bytes())?)
}

/// The image of this name.
pub(crate) fn spec(image: &str) -> ImageSpec {
    ImageSpec { image: image.to_owned(), user_specified_image: image.to_owned(), ..ImageSpec::default() }
}

/// How far a pull under way has come; none when there is none.
pub(crate) async fn look(mut client: ImageServiceClient<Channel>, spec: ImageSpec) -> Option<Progress> {
    let ask = ImageStatusRequest { image: Some(spec), verbose: true };
    let info = client.image_status(ask).await.ok()?.into_inner().info;
    serde_json::from_str(info.get("pull")?).ok()
}

/// Draws over what was drawn before; returns how many lines there are now.
fn show(progress: &Progress, image: &str, live: bool, drawn: usize) -> usize {
    if !live {
        output::say(&line(progress, image));
        return 0;
    }
    let lines = output::fit(draw(progress, image));
    output::say_part(&format!("{}{}", output::erase(drawn), lines.join("")));
    lines.len()
}

/// `reg/web: 3 of 5 layers, 12.3MB of 45.6MB, 4.1MB/s, 8 s left`.
pub(crate) fn line(progress: &Progress, image: &str) -> String {
    let pace = pace(progress, SystemClock::new().wall_nanos());
    format!("{}: {}{pace}", output::one_line(image), output::one_line(&progress.words()))
}

/// How fast it has come on the whole, and how long the rest takes at that rate; nothing when it says nothing.
fn pace(progress: &Progress, now: i64) -> String {
    let (come, total) = progress.bytes();
    let nanos = u128::try_from(now.saturating_sub(progress.started_at)).unwrap_or(0);
    let rate = (u128::from(come) * 1_000_000_000).checked_div(nanos).unwrap_or(0);
    let Ok(rate @ 1..) = u64::try_from(rate) else { return String::new() };
    match total.saturating_sub(come) {
        0 => format!(", {}/s", output::bytes(rate)),
        rest => format!(", {}/s, {} s left", output::bytes(rate), rest.div_ceil(rate)),
    }
}

/// `pulling 12.3MB of 45.6MB`.
pub(crate) fn message(progress: &Progress) -> String {
    match progress.bytes() {
        (_, 0) => format!("pulling: {}", output::one_line(&progress.words())),
        (got, all) => format!("pulling {} of {}", output::bytes(got), output::bytes(all)),
    }
}

/// A line for the image and a bar for each layer.
pub(crate) fn draw(progress: &Progress, image: &str) -> Vec<String> {
    let mut lines = vec![format!("{}\n", line(progress, image))];
    for layer in &progress.layers {
        let short: String = layer.digest.trim_start_matches("sha256:").chars().take(12).collect();
        let share = u128::from(layer.downloaded) * BAR as u128 / u128::from(layer.total.max(1));
        let full = usize::try_from(share).unwrap_or(BAR).min(BAR);
        let total = output::bytes(layer.total);
        // One that was here already is not fetched.
        let (full, come) = match layer.stage.as_str() {
            "exists" => (BAR, total),
            _ => (full, format!("{} of {total}", output::bytes(layer.downloaded))),
        };
        lines.push(format!(
            "  {} {:11} [{}{}] {come}\n",
            output::one_line(&short),
            output::one_line(&layer.stage),
            "=".repeat(full),
            " ".repeat(BAR - full)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_image_once() {
        assert_eq!(failure("reg/a", "pull reg/a:latest: no such host"), "pull reg/a:latest: no such host");
        assert_eq!(failure("reg/a", "no agent answers"), "pull reg/a: no agent answers");
    }

    #[test]
    fn layers_are_bars_and_hostile_names_stay_on_their_line() {
        let text = r#"{"image":"x","startedAt":1,"stage":"layers","layers":[
            {"digest":"sha256:0123456789abcdef","total":2000,"downloaded":1000,"stage":"downloading"},
            {"digest":"sha256:\u001b[2J","total":3000,"downloaded":0,"stage":"exists"}]}"#;
        let progress: Progress = serde_json::from_str(text).unwrap();
        let lines = draw(&progress, "reg/a\nb");
        assert_eq!(lines.first().unwrap(), "reg/a b: 1 of 2 layers, 1.0kB of 2.0kB\n");
        let bar = format!("[{}{}]", "=".repeat(15), " ".repeat(15));
        assert_eq!(lines.get(1).unwrap(), &format!("  0123456789ab downloading {bar} 1.0kB of 2.0kB\n"));
        assert!(lines.get(2).unwrap().ends_with("] 3.0kB\n"), "nothing of it is fetched: {lines:?}");
        assert!(lines.iter().all(|line| !line.contains('\u{1b}')));
        assert_eq!(message(&progress), "pulling 1.0kB of 2.0kB");
        assert_eq!(pace(&progress, 500_000_001), ", 2.0kB/s, 1 s left");
        assert_eq!((pace(&progress, 1), pace(&progress, i64::MAX)), (String::new(), String::new()));
        let begun = Progress { stage: "resolving".into(), ..Progress::default() };
        assert_eq!(
            (line(&begun, "a"), message(&begun)),
            ("a: resolving".into(), "pulling: resolving".into())
        );
    }
}
