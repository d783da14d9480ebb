//! Under the name `ctr`, and `containerd`: what `kind load` asks of a node, for the runtime that runs here. Owns the
//! command lines that are answered; any other is refused with what to use instead. Called by main.

mod line;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use gantry_proto::cri::{ImageSpec, ImageStatusRequest};
use gantry_proto::runtime_ext::TagImageRequest;
use gantry_proto::runtime_ext::runtime_extensions_client::RuntimeExtensionsClient;
use tonic::transport::Channel;

use crate::args::{DEFAULT_AGENT_SOCKET, RuntimeEndpoint};
use crate::load::{self, Naming};
use crate::{output, runtime_client};
use line::CtrAction;

/// The runtime's socket may stand there for tools that know no other.
const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// Repository of images that have no name in their archive; containerd's `ctr` puts the day behind it.
const UNNAMED: &str = "import";
/// The only one there is: what `ctr` is told with `--snapshotter`, and what `containerd config dump` says.
const SNAPSHOTTER: &str = "overlayfs";

/// Answers as `ctr` or `containerd`, if that is what this process is called.
pub(crate) fn program(words: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    let text: Vec<String> = words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let done = match name {
        "ctr" => line::ctr(&text, |name| std::env::var(name).ok()).and_then(run),
        "containerd" => containerd(&text),
        _ => return None,
    };
    Some(match done {
        Ok(code) => code,
        Err(error) => {
            output::say(&format!("{name}: {error:#}"));
            ExitCode::FAILURE
        }
    })
}

fn run(action: CtrAction) -> Result<ExitCode> {
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    tokio.context("start the threads that everything runs on")?.block_on(async {
        match action {
            CtrAction::Help(text) => output::print(text.as_bytes())?,
            CtrAction::Import { address, file, digests } => {
                import(dial(address).await?, &file, digests).await?;
            }
            CtrAction::Tag { address, image, names, force } => {
                tag(dial(address).await?, &image, names, force).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Where it was told, then where containerd's `ctr` looks, then where every command of ours does.
async fn dial(address: Option<String>) -> Result<Channel> {
    let usual = || Path::new(CONTAINERD_SOCKET).exists().then(|| format!("unix://{CONTAINERD_SOCKET}"));
    let address = address.or_else(usual);
    let endpoint =
        RuntimeEndpoint { container_runtime_endpoint: address, agent_socket: DEFAULT_AGENT_SOCKET.into() };
    runtime_client::dial(&endpoint).await
}

async fn import(channel: Channel, file: &Path, digests: bool) -> Result<()> {
    let repository = if digests { UNNAMED } else { "" };
    let naming = Naming { name: String::new(), repository: repository.to_owned() };
    load::one(RuntimeExtensionsClient::new(channel), file, &naming, false).await
}

async fn tag(channel: Channel, image: &str, names: Vec<String>, force: bool) -> Result<()> {
    for name in names {
        if !force {
            must_be_free(channel.clone(), image, &name).await?;
        }
        let request = TagImageRequest { image: image.to_owned(), name };
        let answer =
            runtime_client::answer(RuntimeExtensionsClient::new(channel.clone()).tag_image(request).await)?;
        output::print(format!("{}\n", answer.name).as_bytes())?;
    }
    Ok(())
}

/// Of no other image.
async fn must_be_free(channel: Channel, image: &str, name: &str) -> Result<()> {
    let mut client = runtime_client::images(channel);
    let mut ids = Vec::new();
    for wanted in [image, name] {
        let spec = ImageSpec { image: wanted.to_owned(), ..ImageSpec::default() };
        let ask = ImageStatusRequest { image: Some(spec), verbose: false };
        let found = runtime_client::answer(client.image_status(ask).await)?.image;
        ids.push(found.map(|found| found.id));
    }
    match &ids[..] {
        [own, Some(id)] if own.as_ref() != Some(id) => {
            bail!("{name} is image {id} already: take it with --force")
        }
        _ => Ok(()),
    }
}

/// What tools ask it with that only want to know.
fn containerd(words: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = match words[..] {
        ["config", "dump"] => format!(
            "# The runtime here is gantry; this is what kind looks for.\nversion = 3\n\n\
             [plugins]\n\n  [plugins.'io.containerd.cri.v1.images']\n    snapshotter = '{SNAPSHOTTER}'\n"
        ),
        ["--version" | "-v"] => format!("containerd gantry v{}\n", env!("CARGO_PKG_VERSION")),
        _ => bail!(
            "the runtime here is gantry, which answers `containerd config dump` and `containerd --version` alone: \
             start it with `gantry runtime`, see its configuration with `crictl info`"
        ),
    };
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Option<ExitCode> {
        program(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn only_those_two_names_are_answered() {
        for words in [&["gantry", "ps"][..], &["kubelet"], &["ctr2"], &[]] {
            assert!(of(words).is_none(), "{words:?}");
        }
        assert!(of(&["/usr/local/bin/ctr", "run"]).is_some());
    }
}
